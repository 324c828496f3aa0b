"""Reading configs: each mistake gets one sentence that names it."""
from __future__ import annotations

import os

import pytest

from flatten_mm.engine import UserError, load_config

BASIC = "default_scope = 'mmseg'\nmodel = dict(type='EncoderDecoder', depth=3)\n"


@pytest.fixture
def write(tmp_path):
    def write_file(text, name='config.py'):
        path = tmp_path / name
        path.write_text(text)
        return path
    return write_file


def refusal(path, *args, **kwargs):
    with pytest.raises(UserError) as info:
        load_config(path, *args, **kwargs)
    message = str(info.value)
    assert '\n' not in message
    return message


def test_missing_config(tmp_path):
    assert 'no.py does not exist' in refusal(tmp_path / 'no.py')
    assert 'is a folder' in refusal(tmp_path)


@pytest.mark.parametrize('text, line, reason', [
    ("default_scope = 'mmseg'\nmodel = dict(\n", 2, 'was never closed'),
    ("default_scope = 'mmseg'\n\nmodel = dict(depth=depht)\n", 3, "NameError: name 'depht'"),
    ("a = 1\nb = {}\nc = b['x']\n", 3, 'KeyError: x'),
])
def test_line_of_a_mistake_is_named(write, text, line, reason):
    message = refusal(write(text))
    assert 'config.py ' in message
    assert f'at line {line}:' in message
    assert reason in message


def test_line_of_a_mistake_in_a_base_is_named(write):
    base = write("x = 1\ny = (\n", 'base.py')
    message = refusal(write("_base_ = ['base.py']\n" + BASIC))
    assert f'at line 2 of {base}' in message


def test_missing_base_and_module_are_named(write):
    assert 'gone.py' in refusal(write("_base_ = ['gone.py']\n" + BASIC))
    message = refusal(write(BASIC + "custom_imports = dict(imports=['no_such_module_of_mine'])\n"))
    assert 'no_such_module_of_mine' in message


def test_scope_is_needed(write):
    assert "default_scope=None" in refusal(write('model = dict()\n'))
    assert "default_scope='mmpose'" in refusal(write("default_scope = 'mmpose'\n"))


def test_options_change_known_keys(write):
    path = write(BASIC)
    cfg = load_config(path, {'model.depth': 5, 'randomness.seed': 0, 'load_from': 'x.pth'})
    assert (cfg.model.depth, cfg.randomness.seed, cfg.load_from) == (5, 0, 'x.pth')


def test_misspelt_option_is_named_with_the_nearest(write):
    message = refusal(write(BASIC), {'modle.depth': 5})
    assert 'modle.depth' in message
    assert "did you mean 'model'" in message


def test_option_that_does_not_fit(write):
    path = write(BASIC + 'steps = [1, 2]\n')
    assert 'steps.7' in refusal(path, {'steps.7': 5})


OWN_DATA = BASIC + '''
root = '{{$FLATTEN_DATA_ROOT:data}}'
classes = '{{$FLATTEN_CLASSES:a,b}}'.split(',')
size = tuple(int(side) for side in '{{$FLATTEN_IMG_SIZE:64,64}}'.split(','))
iters = int('{{$FLATTEN_MAX_ITERS:10}}')
'''


def test_data_options_reach_the_config(write):
    path = write(OWN_DATA)
    cfg = load_config(path, data_root='/my data', classes=['traffic light', 'car'],
                      img_size=(48, 96), max_iters=7)
    assert cfg.root == '/my data'
    assert cfg.classes == ['traffic light', 'car']
    assert cfg['size'] == (48, 96)
    assert cfg.iters == 7
    assert load_config(path).root == 'data'


def test_data_options_reach_a_base(write):
    write(OWN_DATA, 'base.py')
    assert load_config(write("_base_ = ['base.py']\n"), classes=['x']).classes == ['x']


def test_environment_is_left_as_it_was(write, monkeypatch):
    monkeypatch.setenv('FLATTEN_CLASSES', 'mine')
    monkeypatch.delenv('FLATTEN_DATA_ROOT', raising=False)
    path = write(OWN_DATA)
    load_config(path, classes=['x'], data_root='y')
    assert os.environ['FLATTEN_CLASSES'] == 'mine'
    assert 'FLATTEN_DATA_ROOT' not in os.environ
    assert load_config(path).classes == ['mine']


def test_data_option_that_changes_nothing_is_refused(write):
    message = refusal(write(OWN_DATA), batch_size=4)
    assert '--batch-size' in message
    assert 'FLATTEN_BATCH_SIZE' in message


@pytest.mark.parametrize('options', [
    dict(classes=["driver's seat"]), dict(data_root='C:\\data'), dict(classes=['a\nb'])])
def test_values_that_would_break_the_source_are_refused(write, options):
    assert 'quote' in refusal(write(OWN_DATA), **options)
