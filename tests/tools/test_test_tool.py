"""tools/test.py on each scope, and what it says when it cannot."""
from __future__ import annotations

import pickle
import shutil

import cv2
import numpy as np
import pytest
import torch
from tiny import SCOPES, write_config

METRICS = {'mmseg': 'mIoU', 'mmdet': 'coco/bbox_mAP', 'mmpretrain': 'accuracy/top1'}


@pytest.mark.parametrize('scope', SCOPES)
def test_metrics_predictions_and_pictures(scope, trained, run, tmp_path):
    done = trained(scope)
    out = tmp_path / ('maps' if scope == 'mmseg' else 'predictions.pkl')
    result = run('test', done.config, done.checkpoint, '--out', out, '--show-dir', 'pictures')
    assert result.code == 0, result.err
    assert f'{METRICS[scope]}: ' in result.out
    if scope == 'mmseg':
        maps = [cv2.imread(str(path), cv2.IMREAD_UNCHANGED) for path in sorted(out.iterdir())]
        assert [image.shape for image in maps] == [(48, 64), (56, 64)]
    else:
        assert len(pickle.loads(out.read_bytes())) == (2 if scope == 'mmdet' else 4)
    assert len(list((tmp_path / 'pictures').rglob('*.[pj]*g'))) == 2  # cat/0 and dog/0 are one
    assert len(list((tmp_path / 'work_dirs' / scope).glob('2*_*/*.log'))) == 1


def test_result_is_that_of_the_weights_in_the_file(trained, run, tmp_path):
    """A head that always answers "dog" is right for half of the images."""
    done = trained('mmpretrain')
    content = torch.load(done.checkpoint)
    content['state_dict']['head.fc.weight'].zero_()
    content['state_dict']['head.fc.bias'][:] = torch.tensor([0.0, 9.0])
    torch.save(content, tmp_path / 'dog.pth')
    result = run('test', done.config, 'dog.pth')
    assert 'accuracy/top1: 50.0' in result.out


def test_in_the_folder_of_a_training_nothing_changes(trained, run):
    done = trained('mmseg')
    before = {path: path.read_bytes() for path in done.work_dir.rglob('*') if path.is_file()}
    assert run('test', done.config, done.checkpoint, '--work-dir', done.work_dir).code == 0
    for path, content in before.items():
        assert path.read_bytes() == content


def test_tta(trained, run):
    done = trained('mmseg')
    assert 'mIoU' in run('test', done.config, done.checkpoint, '--tta').out
    done = trained('mmdet')
    assert 'has no tta_model' in run('test', done.config, done.checkpoint, '--tta').error


def test_missing_checkpoint(trained, run):
    result = run('test', trained('mmseg').config, 'gone.pth')
    assert result.code == 1
    assert result.error == 'error: checkpoint gone.pth does not exist'


def test_truncated_checkpoint(trained, run, tmp_path):
    done = trained('mmseg')
    whole = done.checkpoint.read_bytes()
    (tmp_path / 'cut.pth').write_bytes(whole[:len(whole) // 2])
    assert 'cut.pth' in run('test', done.config, 'cut.pth').error


def test_checkpoint_of_another_architecture(trained, run):
    result = run('test', trained('mmseg').config, trained('mmpretrain').checkpoint)
    assert result.code == 1
    assert 'does not fit the model' in result.error
    assert 'are not in the file' in result.error


def test_checkpoint_of_another_class_count(trained, run, tmp_path):
    done = trained('mmseg')
    config = write_config('mmseg', tmp_path, done.data, **{
        'num_classes=3': 'num_classes=4',
        "('background', 'square', 'disc')": "('background', 'square', 'disc', 'ring')"})
    result = run('test', config, done.checkpoint)
    assert result.code == 1
    assert 'was trained for 3 classes' in result.error
    assert 'decode_head of the config has num_classes=4' in result.error


def test_classes_named_otherwise_than_in_training(trained, run, tmp_path):
    done = trained('mmseg')
    config = write_config('mmseg', tmp_path, done.data, **{"'disc')": "'circle')"})
    result = run('test', config, done.checkpoint)
    assert result.code == 0
    assert 'results compare them by number' in result.out + result.err


def test_existing_output_is_kept(trained, run, tmp_path):
    done = trained('mmdet')
    (tmp_path / 'out.pkl').write_text('mine')
    assert '--out out.pkl exists' in run('test', done.config, done.checkpoint,
                                         '--out', 'out.pkl').error
    assert (tmp_path / 'out.pkl').read_text() == 'mine'
    assert 'should be a .pkl file' in run('test', done.config, done.checkpoint,
                                          '--out', 'x.json').error
    (tmp_path / 'pictures').mkdir()
    (tmp_path / 'pictures' / 'mine.png').write_text('')
    assert 'already holds mine.png' in run('test', done.config, done.checkpoint,
                                           '--show-dir', 'pictures').error


def test_image_that_vanishes_is_named(trained, run, tmp_path):
    """The check before the run looks at names alone; a damaged file shows in the run."""
    done = trained('mmseg')
    shutil.copytree(done.data, tmp_path / 'data')
    (tmp_path / 'data' / 'img' / 'val' / '1.jpg').write_bytes(b'no image')
    config = write_config('mmseg', tmp_path, tmp_path / 'data')
    result = run('test', config, done.checkpoint)
    assert result.code == 1
    assert 'cannot be decoded: it is no image' in result.error
    assert '1.jpg' in result.error


def test_config_without_a_test_set(trained, run, tmp_path):
    done = trained('mmseg')
    config = tmp_path / 'no_test.py'
    config.write_text(f"_base_ = ['{done.config}']\ntest_evaluator = None\n")
    assert 'has no test_evaluator' in run('test', config, done.checkpoint).error


def test_pickles_hold_numbers(trained, run, tmp_path):
    """mmdet's dump encodes masks; whole bitmaps would fill the disk."""
    done = trained('mmdet')
    assert run('test', done.config, done.checkpoint, '--out', 'x.pkl').code == 0
    first = pickle.loads((tmp_path / 'x.pkl').read_bytes())[0]['pred_instances']
    assert np.asarray(first['scores']).max() <= 1
    assert all(isinstance(mask, dict) for mask in first['masks'])
