"""tools/compare_runs.py on a training of ours."""
from __future__ import annotations

import shutil


def test_table_and_picture_of_a_real_training(trained, run, tmp_path):
    work_dirs = [trained('mmseg').work_dir, trained('mmpretrain').work_dir]
    result = run('compare_runs', *work_dirs, '--out-dir', 'out', '--shape', '64', '96')
    assert result.code == 0, result.err
    assert sorted(file.name for file in (tmp_path / 'out').iterdir()) == ['runs.md', 'runs.png']
    table = (tmp_path / 'out' / 'runs.md').read_text()
    assert table in result.out
    head, _, seg, cls = (line.split(' | ') for line in table.splitlines())
    assert head[1:-1] == ['iterations', 'mIoU', 'mAcc', 'top-1', 'params (M)', 'FLOPs (G)']
    assert seg[1] == cls[1] == '2'
    assert seg[4] == '–' and 0 <= float(cls[4].split()[0]) <= 100
    assert seg[-2].endswith('at 64x96') and float(seg[5]) > 0

    result = run('compare_runs', *work_dirs, '--out-dir', 'out')
    assert result.code == 1
    assert 'runs.png exists; choose another --out-dir or give --overwrite' in result.error
    (tmp_path / 'out' / 'runs.md').unlink()
    assert run('compare_runs', *work_dirs, '--out-dir', 'out', '--overwrite').code == 0
    assert (tmp_path / 'out' / 'runs.md').exists()


def test_folder_without_a_training(run, tmp_path):
    (tmp_path / 'empty').mkdir()
    assert 'empty holds no log of a training' in run('compare_runs', 'empty').error
    assert not (tmp_path / 'outputs').exists()


def test_config_that_cannot_be_built_costs_only_its_columns(trained, run, tmp_path):
    shutil.copytree(trained('mmseg').work_dir, tmp_path / 'seg')
    config, = (tmp_path / 'seg').glob('*/vis_data/config.py')
    config.write_text("default_scope = 'mmseg'\nmodel = dict(type='Unknown')\n")
    result = run('compare_runs', 'seg')
    assert result.code == 0
    assert 'seg: no FLOPs, since its config' in result.out + result.err
    table = (tmp_path / 'outputs' / 'compare_runs' / 'runs.md').read_text()
    assert 'FLOPs' not in table and 'mIoU' in table
