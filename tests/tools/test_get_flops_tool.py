"""tools/get_flops.py and tools/print_config.py on configs of each scope."""
from __future__ import annotations

import json

import pytest
from mmengine.config import Config
from tiny import SCOPES, write_config


@pytest.fixture(params=SCOPES)
def config(request, tmp_path, data):
    return write_config(request.param, tmp_path, data)


def test_table_and_json(run, config, tmp_path):
    result = run('get_flops', config, '--shape', 64, 96, '--json', 'cost.json')
    assert result.code == 0
    assert '64x96' in result.out and result.out.splitlines()[-1].startswith('total')
    content = json.loads((tmp_path / 'cost.json').read_text())
    assert content['shape'] == [64, 96]
    assert content['flops'] == sum(part['flops'] for part in content['parts']) > 0
    assert content['params'] == sum(part['params'] for part in content['parts']) > 0
    again = run('get_flops', config, '--json', 'cost.json')
    assert again.code == 1 and 'cost.json exists' in again.error


def test_json_alone_on_stdout(run, config):
    result = run('get_flops', config, '--shape', 64, '--json', '-')
    assert json.loads(result.out)['shape'] == [64, 64]


def test_overrides_change_the_cost(run, config):
    option = 'model.backbone.attn_type=SSSS'
    costs = [json.loads(run('get_flops', config, '--shape', 64, '--json', '-', *more).out)['params']
             for more in ([], ['--cfg-options', option])]
    assert costs[0] != costs[1]


@pytest.mark.parametrize('shape', [['0'], ['64', '64', '64']])
def test_wrong_shape(run, config, shape):
    assert '--shape' in run('get_flops', config, '--shape', *shape).error


def test_model_that_cannot_be_built(run, config):
    result = run('get_flops', config, '--cfg-options', 'model.backbone.kernel_size=4')
    assert result.code == 1 and 'kernel_size=4' in result.error


def test_printed_config_is_a_config(run, config, tmp_path):
    result = run('print_config', config, '--cfg-options', 'train_cfg.max_iters=7')
    assert result.code == 0
    (tmp_path / 'printed.py').write_text(result.out)
    printed = Config.fromfile(tmp_path / 'printed.py')
    assert printed.train_cfg.max_iters == 7
    assert printed.model == Config.fromfile(config).model
