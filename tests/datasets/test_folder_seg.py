"""Pairing of images and label maps, and the errors in place of silent mistakes."""

from __future__ import annotations

import cv2
import numpy as np
import pytest
from PIL import Image

pytest.importorskip('mmseg')
from mmengine.registry import init_default_scope

from flatten_mm.datasets.folder_seg import FolderSegDataset

CLASSES = ['background', 'traffic light', 'car']
PIPELINE = [dict(type='LoadImageFromFile'), dict(type='LoadAnnotations')]


@pytest.fixture(autouse=True)
def mmseg_scope():
    init_default_scope('mmseg')


@pytest.fixture
def root(tmp_path):
    for name in ('images', 'labels'):
        (tmp_path / name / 'sub').mkdir(parents=True)
    for name in ('b.jpg', 'a.PNG', 'sub/c.jpeg'):
        _write_image(tmp_path / 'images' / name)
    for name in ('a.png', 'b.png', 'sub/c.png'):
        _write_labels(tmp_path / 'labels' / name, [[0, 1], [2, 255]])
    return tmp_path


def _write_image(path, height=2, width=2):
    suffix = path.suffix.lower()
    path.write_bytes(cv2.imencode(suffix, np.zeros((height, width, 3), np.uint8))[1].tobytes())


def _write_labels(path, values, dtype=np.uint8):
    Image.fromarray(np.array(values, dtype)).save(path)


def _build(root, **changes):
    options = dict(data_root=str(root), metainfo=dict(classes=CLASSES), pipeline=PIPELINE,
                   data_prefix=dict(img_path='images', seg_map_path='labels'))
    return FolderSegDataset(**options | changes)


def test_pairs_by_name_whatever_the_suffix(root):
    dataset = _build(root)
    pairs = [(info['img_path'], info['seg_map_path']) for info in map(dataset.get_data_info,
                                                                      range(len(dataset)))]
    expected = [('a.PNG', 'a.png'), ('b.jpg', 'b.png'), ('sub/c.jpeg', 'sub/c.png')]
    assert pairs == [(str(root / 'images' / image), str(root / 'labels' / labels))
                     for image, labels in expected]
    np.testing.assert_array_equal(dataset[1]['gt_seg_map'], [[0, 1], [2, 255]])


def test_suffix_longer_than_an_extension(root):
    for path in list((root / 'labels').rglob('*.png')):
        path.rename(path.with_name(f'{path.stem}_labels.png'))
    assert len(_build(root, seg_map_suffix='_labels.png')) == 3


def test_palette_png_holds_indices(root):
    picture = Image.fromarray(np.array([[0, 1], [2, 255]], np.uint8), mode='P')
    picture.putpalette([10, 20, 30] * 256)
    picture.save(root / 'labels/a.png')
    np.testing.assert_array_equal(_build(root)[0]['gt_seg_map'], [[0, 1], [2, 255]])


def test_image_without_label_map(root):
    (root / 'labels/b.png').unlink()
    with pytest.raises(FileNotFoundError, match=r'1 of 3 images have no label map.*b\.jpg'):
        _build(root)


def test_unused_label_map_is_told_and_left_out(root, monkeypatch):
    told = []
    monkeypatch.setattr('flatten_mm.datasets.folder_seg.print_log',
                        lambda text, **options: told.append(text))
    _build(root)
    assert not told
    _write_labels(root / 'labels/z.png', [[0, 0], [0, 0]])
    assert len(_build(root)) == 3
    assert len(told) == 1 and 'z.png' in told[0]


def test_two_images_of_one_name(root):
    _write_image(root / 'images/a.jpg')
    with pytest.raises(ValueError, match='same name but for the suffix'):
        _build(root)


@pytest.mark.parametrize('folder', ['images', 'labels'])
def test_missing_folder(root, folder):
    (root / folder).rename(root / 'elsewhere')
    with pytest.raises(FileNotFoundError, match=f'{folder} does not exist'):
        _build(root)


def test_no_images(root):
    (root / 'none').mkdir()
    with pytest.raises(FileNotFoundError, match=r'no images in .*none'):
        _build(root, data_prefix=dict(img_path='none', seg_map_path='labels'))


def test_palette_is_the_given_one_or_told_apart(root):
    given = [(1, 2, 3), (4, 5, 6), (7, 8, 9)]
    metainfo = dict(classes=CLASSES, palette=given)
    assert list(_build(root, metainfo=metainfo).metainfo['palette']) == given
    colours = _build(root, metainfo=dict(classes=list('abcdefghijk'))).metainfo['palette']
    lab = cv2.cvtColor(np.array([colours], np.float32) / 255, cv2.COLOR_RGB2LAB)[0]
    differences = np.linalg.norm(lab[:, None] - lab[None], axis=-1) + 1000 * np.eye(11)
    assert differences.min() > 20, 'CIE76; mmseg has two at 9.8'


def test_no_classes(root):
    with pytest.raises(ValueError, match='class names'):
        _build(root, metainfo=dict(classes=[]))


def test_label_beyond_the_classes_is_found_before_training(root):
    _write_labels(root / 'labels/b.png', [[0, 1], [3, 7]])
    with pytest.raises(ValueError, match=r'b\.png holds the label values \[3, 7\].*3 classes'):
        _build(root)


@pytest.mark.parametrize('values, dtype, message', [
    ([[0, 1], [2, 3]], np.uint8, r'b\.png holds the label values \[3\]'),
    ([[0, 1], [2, 300]], np.uint16, r'b\.png is a picture of mode I;16'),
    ([[[0] * 3, [1] * 3], [[2] * 3, [1] * 3]], np.uint8, r'b\.png is a picture of mode RGB'),
    ([[0, 1, 2], [2, 1, 0]], np.uint8, r'b\.png has \(height, width\) \(2, 3\).*\(2, 2\)'),
])
def test_bad_label_map_is_found_when_loaded(root, monkeypatch, values, dtype, message):
    monkeypatch.setattr('flatten_mm.datasets.folder_seg._CHECKED_AT_START', 0)
    dataset = _build(root)
    _write_labels(root / 'labels/b.png', values, dtype)
    assert dataset[0]['gt_seg_map'].shape == (2, 2)
    with pytest.raises(ValueError, match=message):
        dataset[1]


def test_reduce_zero_label(root):
    """Values 1 to 3 become 0 to 2, and 0 is ignored: 3 is in range before, not after."""
    _write_labels(root / 'labels/a.png', [[0, 1], [3, 255]])
    dataset = _build(root, reduce_zero_label=True)
    np.testing.assert_array_equal(dataset[0]['gt_seg_map'], [[255, 0], [2, 255]])
    _write_labels(root / 'labels/a.png', [[0, 1], [4, 255]])
    with pytest.raises(ValueError, match=r'\[4\]'):
        _build(root, reduce_zero_label=True)
