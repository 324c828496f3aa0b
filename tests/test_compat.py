"""mm's checkpoints load and nothing in them runs; mmseg's configs are found: on every stack."""
from __future__ import annotations

import logging
import os
import pickle
import subprocess
import sys
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import numpy as np
import pytest
import torch
from mmengine.config import Config
from mmengine.config.utils import MODULE2PACKAGE
from mmengine.logging import HistoryBuffer
from mmengine.model import BaseModule
from mmengine.runner import CheckpointLoader
from mmengine.utils import digit_version

import flatten_mm  # noqa: F401  (importing it is what mends)
from flatten_mm import compat
from flatten_mm.checkpoint import CheckpointError, read_checkpoint
from flatten_mm.checkpoint.training_pickle import TrainingPickle

MMSEG_CONFIG = 'mmseg::sem_fpn/fpn_r50_4xb4-160k_ade20k-512x512.py'


class Calls:
    """Pickles as a call of ``function``."""

    def __init__(self, function, *args):
        self.call = function, args

    def __reduce__(self):
        return self.call

    def __call__(self):
        """Never called: pickle wants what a call's result would be called to be callable."""


def load_with_mm(path):
    return CheckpointLoader.load_checkpoint(str(path), map_location='cpu')


def load_with_list(path):
    """What stands in for torch's own safe reading where torch is older than 2.6."""
    names = dict(compat._named(item) for item in compat._safe_globals())
    names['collections.OrderedDict'] = __import__('collections').OrderedDict
    names['torch._utils._rebuild_tensor_v2'] = torch._utils._rebuild_tensor_v2
    return torch.load(path, map_location='cpu', weights_only=False,
                      pickle_module=TrainingPickle(names))


@pytest.fixture(params=[load_with_mm, load_with_list], ids=['mm', 'list'])
def load(request):
    return request.param


def saved(content, tmp_path):
    path = tmp_path / 'saved.pth'
    torch.save(content, path)
    return path


def test_log_history_survives(load, tmp_path):
    history = HistoryBuffer()
    history.update(1.0)
    history.update(4.0, count=3)
    loaded = load(saved(dict(loss=history), tmp_path))['loss']
    assert isinstance(loaded, HistoryBuffer)
    assert loaded.statistics('mean') == 1.25
    assert loaded.statistics('max') == 4.0


@pytest.mark.parametrize('value', [
    np.float64(0.5), np.float32(0.5), np.int64(3), np.bool_(True), np.arange(6).reshape(2, 3),
    np.array([0.5, 1.5], np.float16)], ids=lambda value: f'{type(value).__name__}-{value.dtype}')
def test_numpy_values_survive(load, value, tmp_path):
    loaded = load(saved(value, tmp_path))
    assert loaded.dtype == value.dtype
    assert np.array_equal(loaded, value)


def test_optimizer_and_weights_survive(load, tmp_path):
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    loaded = load(saved(dict(state_dict=model.state_dict(), optimizer=optimizer.state_dict()),
                        tmp_path))
    assert torch.equal(loaded['state_dict']['weight'], model.weight)
    fresh = torch.optim.AdamW(model.parameters())
    fresh.load_state_dict(loaded['optimizer'])
    assert fresh.param_groups[0]['lr'] == 0.1
    assert all(torch.equal(new['exp_avg'], old['exp_avg'])
               for new, old in zip(fresh.state.values(), optimizer.state.values()))


@pytest.mark.parametrize('hostile', [
    Calls(getattr, HistoryBuffer, '__init__'),
    Calls(getattr, HistoryBuffer, '__reduce__'),
    Calls(getattr, torch.nn.Parameter, 'mean'),
    Calls(os.system, 'true'),
    Calls(eval, '1'),
    Calls(Calls(getattr, HistoryBuffer, 'mean'), 'any'),
    np.array([1, 'a'], dtype=object),
], ids=['other method', 'reduce', 'other class', 'system', 'eval', 'call of a method', 'objects'])
def test_anything_else_is_refused(load, hostile, tmp_path):
    with pytest.raises(pickle.UnpicklingError):
        load(saved(dict(value=hostile), tmp_path))


# SafePickle, with which our tools look at a file first, takes a class for inert data; this one
# creates a file when it is built.
HOSTILE = {'function': lambda mark: Calls(os.mkdir, str(mark)),
           'class': lambda mark: Calls(logging.FileHandler, str(mark))}


@pytest.mark.parametrize('kind', HOSTILE)
def test_hostile_file_runs_nothing_through_init_cfg_of_mm(kind, tmp_path):
    mark = tmp_path / 'mark'
    content = dict(state_dict=dict(weight=torch.ones(1)), extra=HOSTILE[kind](mark))
    path = saved(content, tmp_path)
    module = BaseModule(init_cfg=dict(type='Pretrained', checkpoint=str(path)))
    with pytest.raises(pickle.UnpicklingError):
        module.init_weights()
    assert not mark.exists()


@pytest.mark.parametrize('state', [(None, {'statistics': 1}), {'statistics': 1}])
def test_class_is_not_altered_by_a_file(state, tmp_path):
    before = HistoryBuffer.statistics
    data = (b'\x80\x02cmmengine.logging.history_buffer\nHistoryBuffer\n'
            + pickle.dumps(state, 2)[2:-1] + b'b.')
    with pytest.raises(pickle.UnpicklingError, match='alters'):
        names = {'mmengine.logging.history_buffer.HistoryBuffer': HistoryBuffer}
        TrainingPickle(names).Unpickler(__import__('io').BytesIO(data)).load()
    assert HistoryBuffer.statistics is before


def test_missing_checkpoint_is_named():
    with pytest.raises(FileNotFoundError, match='absent.pth'):
        load_with_mm('absent.pth')
    with pytest.raises(FileNotFoundError, match='absent.pth'):
        compat.load_from_local('absent.pth', None)


def test_files_of_either_numpy_load(load, tmp_path):
    """numpy 2 renamed the module that rebuilds arrays; pickles keep the name of their writer."""
    here = b'numpy._core.multiarray' if np.__version__ >= '2' else b'numpy.core.multiarray'
    other = b'numpy.core.multiarray' if np.__version__ >= '2' else b'numpy._core.multiarray'
    path = tmp_path / 'legacy.pth'
    torch.save(np.arange(3), path, _use_new_zipfile_serialization=False)
    content = path.read_bytes()
    assert here in content
    path.write_bytes(content.replace(here, other))
    assert np.array_equal(load(path), np.arange(3))


@pytest.mark.skipif(digit_version(torch.__version__) < compat._SAFE_TORCH,
                    reason='torch.load is not safe before 2.6')
def test_plain_torch_load_takes_the_same_files(tmp_path):
    loaded = torch.load(saved(dict(loss=HistoryBuffer([1.0, 2.0], [1, 1])), tmp_path))
    assert loaded['loss'].statistics('mean') == 1.5


def test_stand_in_for_getattr_names_what_it_allows():
    assert compat.history_method(HistoryBuffer, 'mean') is HistoryBuffer.mean
    with pytest.raises(pickle.UnpicklingError, match='min, max, mean, current'):
        compat.history_method(HistoryBuffer, 'update')


def test_our_own_reader_takes_the_same_files(tmp_path):
    history = HistoryBuffer([1.0, 2.0], [1, 1])
    content = dict(state_dict=dict(weight=torch.ones(2)), meta=dict(iter=2),
                   message_hub=dict(log_scalars=dict(loss=history)))
    assert read_checkpoint(saved(content, tmp_path)).meta['meta'] == dict(iter=2)
    content['message_hub'] = Calls(getattr, HistoryBuffer, '__init__')
    with pytest.raises(CheckpointError, match='builtins.getattr'):
        read_checkpoint(saved(content, tmp_path))


# --- configs of mmseg ---------------------------------------------------------------------------


@pytest.fixture
def config(tmp_path):
    path = tmp_path / 'inherits.py'
    path.write_text(f'_base_ = {MMSEG_CONFIG!r}\n')
    return path


def test_config_of_mmseg_is_found(config):
    assert Config.fromfile(config).model.decode_head.type == 'FPNHead'


def test_config_of_mmseg_is_found_whatever_its_distribution_is_called(config, monkeypatch):
    def absent(name):
        raise PackageNotFoundError(name)

    monkeypatch.setitem(MODULE2PACKAGE, 'mmseg', 'a-distribution-that-is-not-there')
    with pytest.raises(Exception, match='mmseg|a-distribution'):
        Config.fromfile(config)
    monkeypatch.setattr(compat, 'distribution', absent)
    compat.find_mmseg_configs()
    assert Config.fromfile(config).model.decode_head.type == 'FPNHead'


def test_names_stay_where_mmseg_is_absent(monkeypatch):
    def absent(name):
        raise PackageNotFoundError(name)

    monkeypatch.setitem(MODULE2PACKAGE, 'mmseg', 'mmsegmentation')
    monkeypatch.setattr(compat, 'distribution', absent)
    monkeypatch.setattr(compat.importlib.util, 'find_spec', lambda name: None)
    compat.find_mmseg_configs()
    assert MODULE2PACKAGE['mmseg'] == 'mmsegmentation'


def python_m(*arguments, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, '-m', 'flatten_mm', *map(str, arguments)], cwd=cwd,
                          capture_output=True, text=True)


def test_script_of_mm_runs_with_the_package_imported(config, tmp_path):
    """A script that, like mm's tools, reads its config before anything imports flatten_mm."""
    folder = tmp_path / 'tools'
    folder.mkdir()
    (folder / 'beside.py').write_text('HERE = 1\n')
    (folder / 'script.py').write_text(
        'import sys\n'
        'from beside import HERE\n'
        'from mmengine.config import Config\n'
        'if __name__ == "__main__":\n'
        '    assert "flatten_mm.compat" in sys.modules\n'
        '    print(Config.fromfile(sys.argv[1]).default_scope, sys.argv[2:])\n'
        '    sys.exit(3)\n')
    result = python_m('tools/script.py', config, '--x', '1', cwd=tmp_path)
    assert result.returncode == 3, result.stderr
    assert result.stdout.splitlines()[-1] == "mmseg ['--x', '1']"


def test_script_that_is_absent_is_named(tmp_path):
    result = python_m('tools/absent.py', cwd=tmp_path)
    assert result.returncode == 1
    assert 'there is no script tools/absent.py' in result.stderr
    assert 'usage' in python_m(cwd=tmp_path).stderr
