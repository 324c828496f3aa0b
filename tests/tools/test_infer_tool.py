"""tools/infer.py on each scope, and what it says when it cannot."""
from __future__ import annotations

import json

import cv2
import numpy as np
import pytest
import torch
from pycocotools import mask as coco_mask
from tiny import SCOPES, write_config, write_image


def results(folder):
    return json.loads((folder / 'results.json').read_text())


@pytest.mark.parametrize('scope', SCOPES)
def test_folder_of_images(scope, trained, run, tmp_path):
    done = trained(scope)
    images = done.data / 'img'
    options = ['--score-thr', '0'] if scope == 'mmdet' else []
    result = run('infer', done.config, done.checkpoint, images, '--out-dir', 'out',
                 '--device', 'cpu', *options)
    assert result.code == 0, result.err
    assert '6 images done, 0 skipped; results: out/results.json' in result.out
    assert '6/6' in result.err  # progress
    out = tmp_path / 'out'
    content = results(out)
    assert content['skipped'] == []
    assert [entry['file'] for entry in content['images']] == [
        str(path) for path in sorted(images.rglob('*.jpg'))]
    for entry in content['images']:
        height, width = cv2.imread(entry['file']).shape[:2]
        assert (entry['height'], entry['width']) == (height, width)
        assert max(cv2.imread(str(out / entry['overlay'])).shape) >= 512
        CHECKS[scope](entry, out, content['classes'])


def check_segmentation(entry, out, classes):
    label_map = cv2.imread(str(out / entry['label_map']), cv2.IMREAD_UNCHANGED)
    assert label_map.shape == (entry['height'], entry['width'])
    assert {item['label'] for item in entry['classes']} == set(np.unique(label_map))
    for item in entry['classes']:
        assert item['name'] == ('background', 'square', 'disc')[item['label']]
        assert item['share'] == pytest.approx((label_map == item['label']).mean(), abs=1e-5)


def check_detection(entry, out, classes):
    assert classes == ['square', 'disc']
    assert len(entry['detections']) == 5  # max_per_img
    for item in entry['detections']:
        assert item['name'] == classes[item['label']]
        left, top, right, bottom = item['box']
        assert 0 <= left <= right <= entry['width'] and 0 <= top <= bottom <= entry['height']
        assert coco_mask.decode(item['mask']).shape == (entry['height'], entry['width'])


def check_classification(entry, out, classes):
    assert {item['name'] for item in entry['top']} == {'cat', 'dog'} == set(classes)
    assert sum(item['score'] for item in entry['top']) == pytest.approx(1, abs=1e-4)
    assert entry['top'][0]['score'] >= entry['top'][1]['score']


CHECKS = dict(mmseg=check_segmentation, mmdet=check_detection, mmpretrain=check_classification)


def test_results_are_those_of_the_weights(trained, run, tmp_path):
    done = trained('mmseg')
    content = torch.load(done.checkpoint)
    content['state_dict']['decode_head.conv_seg.weight'].zero_()
    content['state_dict']['decode_head.conv_seg.bias'][:] = torch.tensor([0.0, 0.0, 9.0])
    torch.save(content, tmp_path / 'disc.pth')
    assert run('infer', done.config, 'disc.pth', done.data / 'img' / 'val' / '0.jpg',
               '--out-dir', 'out').code == 0
    entry, = results(tmp_path / 'out')['images']
    assert entry['classes'] == [dict(name='disc', label=2, share=1.0)]
    assert cv2.imread(str(tmp_path / 'out' / entry['label_map']), -1).min() == 2


def test_any_kind_and_size_of_image(trained, run, tmp_path):
    folder = tmp_path / 'kinds'
    folder.mkdir()
    rng = np.random.default_rng(0)
    write_image(folder / 'grey.png', rng.integers(0, 255, (33, 71)))
    write_image(folder / 'sixteen.png', rng.integers(0, 65535, (50, 40)).astype(np.uint16))
    write_image(folder / 'rgba.png', rng.integers(0, 255, (40, 40, 4)))
    write_image(folder / 'narrow.png', rng.integers(0, 255, (9, 200, 3)))
    done = trained('mmseg')
    result = run('infer', done.config, done.checkpoint, folder)
    assert result.code == 0, result.err
    sizes = {entry['file'].split('/')[-1]: (entry['height'], entry['width'])
             for entry in results(tmp_path / 'outputs' / 'mmseg')['images']}
    assert sizes == {'grey.png': (33, 71), 'sixteen.png': (50, 40), 'rgba.png': (40, 40),
                     'narrow.png': (9, 200)}


@pytest.fixture
def mixed(data, tmp_path):
    """A folder of two readable images and three that are not."""
    folder = tmp_path / 'mixed'
    folder.mkdir()
    whole = (data / 'img' / 'val' / '0.jpg').read_bytes()
    (folder / 'a.jpg').write_bytes(whole)
    (folder / 'b.jpg').write_bytes(whole[:len(whole) // 2])
    (folder / 'c.png').write_bytes(b'')
    (folder / 'd.png').write_text('hello')
    (folder / 'e.jpg').write_bytes(whole)
    return folder


def test_unreadable_images_are_named_skipped_and_counted(trained, run, mixed, tmp_path):
    done = trained('mmpretrain')
    result = run('infer', done.config, done.checkpoint, mixed, '--out-dir', 'out')
    assert result.code == 3
    assert '2 images done, 3 skipped' in result.out
    content = results(tmp_path / 'out')
    assert [entry['file'][-5:] for entry in content['images']] == ['a.jpg', 'e.jpg']
    assert [item['file'][-5:] for item in content['skipped']] == ['b.jpg', 'c.png', 'd.png']
    for name in 'bcd':
        assert f'skipped {mixed}/{name}.' in result.out + result.err
    assert 'truncated' in content['skipped'][0]['reason']
    assert 'Traceback' not in result.out + result.err


def test_a_missing_image_holds_up_no_others(trained, run, mixed, tmp_path):
    done = trained('mmpretrain')
    result = run('infer', done.config, done.checkpoint, mixed / 'a.jpg', mixed / 'gone.jpg',
                 '--out-dir', 'out')
    assert result.code == 3
    assert '1 images done, 1 skipped' in result.out
    skipped, = results(tmp_path / 'out')['skipped']
    assert skipped == dict(file=f'{mixed}/gone.jpg', reason='cannot be read: it does not exist')


def test_image_20000_pixels_wide(trained, run, tmp_path):
    write_image(tmp_path / 'wide.png', np.full((1_000, 20_000, 3), 90))
    done = trained('mmseg')
    assert run('infer', done.config, done.checkpoint, 'wide.png', '--out-dir', 'out').code == 0
    entry, = results(tmp_path / 'out')['images']
    assert cv2.imread(str(tmp_path / 'out' / entry['label_map']), -1).shape == (1_000, 20_000)


def test_no_readable_image(trained, run, mixed):
    done = trained('mmpretrain')
    result = run('infer', done.config, done.checkpoint, mixed / 'd.png', '--out-dir', 'out')
    assert result.code == 1
    assert 'no image could be used; the first' in result.error
    assert 'd.png' in result.error


def test_image_that_the_model_fails_on_holds_up_no_other(trained, run, tmp_path, monkeypatch):
    from mmpretrain.models import ImageClassifier
    done = trained('mmpretrain')
    forward = ImageClassifier.test_step

    def fails_on_dogs(self, batch):
        if 'dog' in batch['data_samples'][0].img_path:
            raise RuntimeError('no memory')
        return forward(self, batch)
    monkeypatch.setattr(ImageClassifier, 'test_step', fails_on_dogs)
    result = run('infer', done.config, done.checkpoint, done.data / 'cls' / 'val')
    assert result.code == 3
    skipped = results(tmp_path / 'outputs' / 'mmpretrain')['skipped']
    assert [item['reason'] for item in skipped] == ['the model failed: RuntimeError: no memory'] * 2


def test_existing_results_are_kept_unless_asked(trained, run, tmp_path):
    done = trained('mmpretrain')
    image = done.data / 'img' / 'val' / '0.jpg'
    out = tmp_path / 'out'
    out.mkdir()
    (out / 'mine.txt').write_text('mine')
    command = ['infer', done.config, done.checkpoint, image, '--out-dir', 'out']
    result = run(*command)
    assert result.code == 1
    assert '--out-dir out already holds mine.txt' in result.error
    assert '--overwrite' in result.error
    assert run(*command, '--overwrite').code == 0
    assert (out / 'mine.txt').read_text() == 'mine'
    assert run(*command, '--overwrite').code == 0


def test_input_is_never_written_over(trained, run, tmp_path):
    done = trained('mmpretrain')
    folder = tmp_path / 'out' / 'overlays'
    folder.mkdir(parents=True)
    photo = folder / '0.jpg'
    photo.write_bytes((done.data / 'img' / 'val' / '0.jpg').read_bytes())
    before = photo.read_bytes()
    result = run('infer', done.config, done.checkpoint, photo, '--out-dir', 'out', '--overwrite')
    assert result.code == 1
    assert 'written over the input' in result.error
    assert photo.read_bytes() == before


@pytest.mark.parametrize('item, message', [
    ('gone.jpg', 'input gone.jpg does not exist'), ('*.jpg', 'no image found by *.jpg')])
def test_inputs_without_images(trained, run, item, message):
    done = trained('mmpretrain')
    result = run('infer', done.config, done.checkpoint, item)
    assert result.code == 1
    assert message in result.error


def test_checkpoint_of_another_class_count(trained, run, tmp_path):
    done = trained('mmdet')
    config = write_config('mmdet', tmp_path, done.data, **{
        'num_classes=2': 'num_classes=7', "'disc')": "'disc', 'c', 'd', 'e', 'f', 'g')"})
    result = run('infer', config, done.checkpoint, done.data / 'img' / 'val')
    assert result.code == 1
    assert 'was trained for 2 classes' in result.error
    assert 'roi_head.bbox_head of the config has num_classes=7' in result.error
    assert not (tmp_path / 'outputs').exists()


def test_checkpoint_of_another_architecture(trained, run):
    done = trained('mmdet')
    result = run('infer', done.config, trained('mmseg').checkpoint, done.data / 'img' / 'val')
    assert result.code == 1
    assert 'does not fit the model' in result.error


def test_names_without_metainfo_in_the_checkpoint(trained, run, tmp_path):
    done = trained('mmdet')
    bare = dict(state_dict=torch.load(done.checkpoint)['state_dict'])
    torch.save(bare, tmp_path / 'bare.pth')
    assert run('infer', done.config, 'bare.pth', done.data / 'img' / 'val' / '0.jpg').code == 0
    assert results(tmp_path / 'outputs' / 'mmdet')['classes'] == ['square', 'disc']


@pytest.mark.skipif(torch.cuda.is_available(), reason='there is a GPU')
def test_gpu_that_is_not_there(trained, run):
    done = trained('mmpretrain')
    result = run('infer', done.config, done.checkpoint, done.data / 'img', '--device', 'cuda')
    assert result.code == 1
    assert 'use --device cpu' in result.error


def test_score_threshold_is_for_detections(trained, run):
    done = trained('mmseg')
    result = run('infer', done.config, done.checkpoint, done.data / 'img', '--score-thr', '0.5')
    assert result.code == 1
    assert '--score-thr is for detections' in result.error
