"""tools/train.py on each scope, and what it says when it cannot."""
from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tiny import SCOPES, write_config, write_data

TOOLS = Path(__file__).resolve().parents[2] / 'tools'


def log_of(folder):
    return '\n'.join(path.read_text() for path in sorted(folder.glob('*/*.log')))


@pytest.mark.parametrize('scope', SCOPES)
def test_resume_continues_where_training_stopped(scope, trained, run, tmp_path):
    done = trained(scope)
    work = tmp_path / 'work'
    shutil.copytree(done.work_dir, work)
    (work / 'last_checkpoint').write_text(str(work / 'iter_2.pth'))
    result = run('train', done.config, '--work-dir', work, '--resume',
                 '--cfg-options', 'train_cfg.max_iters=4')
    assert result.code == 0, result.err
    assert 'resumed epoch: 0, iter: 2' in log_of(work)
    before, after = (torch.load(work / f'iter_{i}.pth') for i in (2, 4))
    steps = [state['step'] for state in after['optimizer']['state'].values()]
    assert set(map(float, steps)) == {4.0}  # the optimizer went on, too
    assert len(after['message_hub']['log_scalars']['train/loss']._log_history) == 4
    assert any(not torch.equal(value, after['state_dict'][key])
               for key, value in before['state_dict'].items())


def test_resume_from_a_file(trained, run, tmp_path):
    done = trained('mmpretrain')
    result = run('train', done.config, '--resume', done.checkpoint, '--auto-scale-lr',
                 '--cfg-options', 'train_cfg.max_iters=3', 'val_evaluator.topk=1')
    assert result.code == 0, result.err
    assert 'iter: 2' in log_of(tmp_path / 'work_dirs' / 'mmpretrain')


def test_used_work_dir_is_refused_and_left_as_it_is(trained, run):
    done = trained('mmpretrain')
    before = sorted(done.work_dir.rglob('*'))
    result = run('train', done.config, '--work-dir', done.work_dir)
    assert result.code == 1
    assert f'work dir {done.work_dir} already holds iter_2.pth, last_checkpoint' in result.error
    assert '--resume' in result.error
    assert sorted(done.work_dir.rglob('*')) == before


def test_resume_in_a_new_folder_starts_with_a_warning(trained, run, tmp_path):
    done = trained('mmpretrain')
    result = run('train', done.config, '--work-dir', 'new', '--resume', '--cfg-options',
                 'train_cfg.max_iters=1')
    assert result.code == 0, result.err
    assert 'starts from the beginning' in result.out + result.err


def test_resume_in_a_folder_of_other_things(trained, run, tmp_path):
    (tmp_path / 'photos').mkdir()
    (tmp_path / 'photos' / 'me.jpg').write_text('')
    result = run('train', trained('mmpretrain').config, '--work-dir', 'photos', '--resume')
    assert result.code == 1
    assert 'already holds me.jpg' in result.error


def test_resume_from_weights_alone(trained, run, tmp_path):
    done = trained('mmpretrain')
    content = torch.load(done.checkpoint)
    bare = tmp_path / 'bare.pth'
    torch.save(dict(state_dict=content['state_dict']), bare)
    result = run('train', done.config, '--resume', bare)
    assert result.code == 1
    assert 'bare.pth is not of a training to resume' in result.error
    del content['optimizer']
    torch.save(content, bare)
    result = run('train', done.config, '--resume', bare, '--work-dir', 'other')
    assert result.code == 1
    assert 'no state of the optimizer' in result.error


def test_last_checkpoint_that_is_gone(trained, run, tmp_path):
    (tmp_path / 'work').mkdir()
    (tmp_path / 'work' / 'last_checkpoint').write_text(str(tmp_path / 'gone.pth'))
    result = run('train', trained('mmpretrain').config, '--work-dir', 'work', '--resume')
    assert result.code == 1
    assert 'gone.pth, which does not exist' in result.error


def test_config_in_its_own_work_dir_is_not_written_over(trained, run, tmp_path):
    work = tmp_path / 'work'
    work.mkdir()
    config = work / 'mmpretrain.py'
    text = '# a comment of mine\n' + trained('mmpretrain').config.read_text()
    config.write_text(text)
    result = run('train', config, '--work-dir', work, '--cfg-options', 'train_cfg.max_iters=1')
    assert result.code == 0, result.err
    assert config.read_text() == text
    assert len(list(work.glob('2*_*.py'))) == 1


def test_missing_config(run):
    result = run('train', 'configs/gone.py')
    assert result.code == 1
    assert result.error.startswith('error: config configs/gone.py does not exist')


@pytest.mark.parametrize('name', ['train', 'test', 'infer'])
def test_script_ends_with_its_status(name, tmp_path):
    arguments = dict(train=[], test=['x.pth'], infer=['x.pth', 'x.jpg'])[name]
    result = subprocess.run(
        [sys.executable, TOOLS / f'{name}.py', 'gone.py', *arguments], cwd=tmp_path,
        capture_output=True, text=True, check=False,
        env=dict(os.environ, PYTHONPATH=str(TOOLS.parent)))
    assert result.returncode == 1
    assert result.stderr.splitlines()[-1].startswith('error: config gone.py does not exist')
    assert 'Traceback' not in result.stderr


def test_debug_shows_the_traceback(run):
    result = run('train', 'configs/gone.py', '--debug')
    assert result.code == 1
    assert 'Traceback' in result.err
    assert result.err.splitlines()[-1].startswith('error: config configs/gone.py')


def test_data_that_are_not_there_leave_no_folder_behind(run, tmp_path):
    config = write_config('mmseg', tmp_path, tmp_path / 'nowhere')
    result = run('train', config)
    assert result.code == 1
    assert f'data folder {tmp_path}/nowhere of the train data set does not exist' in result.error
    assert not (tmp_path / 'work_dirs').exists()


def test_classes_of_config_and_data_disagree(data, run, tmp_path):
    config = write_config('mmdet', tmp_path, data, **{
        'num_classes=2, bbox_coder': 'num_classes=3, bbox_coder'})
    result = run('train', config)
    assert result.code == 1
    assert 'roi_head.bbox_head has num_classes=3' in result.error
    assert 'train data set has 2 classes (square, disc)' in result.error
    # the failed start is no obstacle to the next
    result = run('train', write_config('mmdet', tmp_path, data), '--cfg-options',
                 'train_cfg.max_iters=1', 'train_cfg.val_interval=10')
    assert result.code == 0, result.err


def test_labels_outside_the_classes(data, run, tmp_path):
    config = write_config('mmseg', tmp_path, data, **{
        'num_classes=3': 'num_classes=2', "('background', 'square', 'disc')": "('a', 'b')"})
    result = run('train', config)
    assert result.code == 1
    assert '.png holds the label values [2], but the 2 classes' in result.error


def test_image_that_cannot_be_used_ends_the_run_with_its_name(tmp_path):
    """In a worker process, which is left waiting for the next batch: the script ends all the same.
    """
    write_data(tmp_path / 'data')
    config = write_config('mmpretrain', tmp_path, tmp_path / 'data', **{
        'num_workers=0': 'num_workers=1'})
    for path in (tmp_path / 'data/cls/train').glob('*/*.jpg'):
        path.write_text('<!DOCTYPE html><html>')
    result = subprocess.run([sys.executable, TOOLS / 'train.py', config], cwd=tmp_path,
                            capture_output=True, text=True, check=False, timeout=300,
                            env=dict(os.environ, PYTHONPATH=str(TOOLS.parent)))
    assert result.returncode == 1
    error = result.stderr.strip().splitlines()[-1]
    assert error.startswith(f'error: the data cannot be loaded: {tmp_path}/data/cls/train/')
    assert '.jpg is not an image that can be read but a web page' in error


def test_splits_with_other_classes(tmp_path, run):
    """Folders are numbered in the order of their names."""
    write_data(tmp_path / 'data')
    (tmp_path / 'data/cls/val/cat').rename(tmp_path / 'data/cls/val/wolf')
    result = run('train', write_config('mmpretrain', tmp_path, tmp_path / 'data'))
    assert result.code == 1
    assert 'the val data set has the classes dog, wolf, but the train data set cat, dog' in (
        result.error)


def test_unknown_backbone_setting(data, run, tmp_path):
    config = write_config('mmpretrain', tmp_path, data, **{'out_indices=(3,)': "attn_type='XX'"})
    result = run('train', config)
    assert result.code == 1
    assert 'XX' in result.error


def test_unknown_setting_of_the_optimizer(data, run, tmp_path):
    config = write_config('mmpretrain', tmp_path, data, **{'lr=1e-3': 'learning_rate=1e-3'})
    result = run('train', config)
    assert result.code == 1
    assert 'training cannot start' in result.error
    assert 'learning_rate' in result.error


def test_load_from_reports_what_fits(trained, run, tmp_path):
    done = trained('mmpretrain')
    torch.save(dict(state_dict={'other.weight': torch.ones(1)}), tmp_path / 'other.pth')
    result = run('train', done.config, '--cfg-options', 'load_from=other.pth')
    assert result.code == 1
    assert 'other.pth has none of the' in result.error
    content = torch.load(done.checkpoint)
    content['state_dict'] = {key: value for key, value in content['state_dict'].items()
                             if 'head' not in key}
    torch.save(content, tmp_path / 'part.pth')
    result = run('train', done.config, '--work-dir', 'part', '--cfg-options',
                 'load_from=part.pth', 'train_cfg.max_iters=1')
    assert result.code == 0, result.err
    assert 'parameters are in the file, the others start anew' in result.out + result.err


def test_misplaced_options(run, capfd):
    with pytest.raises(SystemExit) as info:
        run('train', '--cfg-options', 'a=1', 'config.py')
    assert info.value.code == 2
    assert 'KEY=VALUE' in capfd.readouterr().err


@pytest.mark.parametrize('options', [
    ['--batch-size', '0'], ['--max-iters', 'many'], ['--classes', 'a,,b'], ['--classes', 'a,a']])
def test_values_of_data_options(run, capfd, options):
    with pytest.raises(SystemExit) as info:
        run('train', 'config.py', *options)
    assert info.value.code == 2
    assert options[0] in capfd.readouterr().err
