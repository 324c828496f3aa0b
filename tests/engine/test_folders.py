"""Nothing of the user's is written over."""
from __future__ import annotations

import pytest
from mmengine.config import Config

from flatten_mm.engine.errors import UserError
from flatten_mm.engine.folders import refuse_used, refuse_used_work_dir, work_dir_of

CFG = Config(dict(), filename=None)


def test_work_dir_is_argument_then_config_then_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    cfg = Config(dict(work_dir='of_config', experiment_name='name'))
    assert str(work_dir_of(cfg, 'of_argument')) == 'of_argument'
    assert str(work_dir_of(cfg, None)) == 'of_config'
    assert str(work_dir_of(Config(dict(experiment_name='name')), None)) == 'work_dirs/name'
    assert (tmp_path / 'work_dirs' / 'name').is_dir()


def test_file_in_place_of_a_work_dir(tmp_path):
    (tmp_path / 'file').write_text('')
    with pytest.raises(UserError, match='--work-dir .*deeper cannot be made'):
        work_dir_of(CFG, tmp_path / 'file' / 'deeper')
    with pytest.raises(UserError, match='--work-dir .*file cannot be made'):
        work_dir_of(CFG, tmp_path / 'file')


@pytest.mark.parametrize('name', ['last_checkpoint', 'notes.txt', 'photos', '2026_results'])
def test_work_dir_with_contents_is_refused(tmp_path, name):
    (tmp_path / name).mkdir()
    with pytest.raises(UserError, match=f'already holds {name}; .*--resume'):
        refuse_used_work_dir(tmp_path, CFG)


def test_logs_of_a_test_are_no_hindrance(tmp_path):
    (tmp_path / '20261130_101500').mkdir()
    (tmp_path / '20261130_101500.py').write_text('')
    refuse_used_work_dir(tmp_path, CFG)


def test_output_paths(tmp_path):
    refuse_used(tmp_path / 'new', '--out', 'mend')
    refuse_used(tmp_path, '--out', 'mend')
    for name in 'abcde':
        (tmp_path / name).write_text('')
    with pytest.raises(UserError, match='holds a, b, c and 2 more; choose'):
        refuse_used(tmp_path, '--out', 'choose')
    with pytest.raises(UserError, match='exists; choose'):
        refuse_used(tmp_path / 'a', '--out', 'choose')
