"""Label maps of every kind, and the check behind LoadAnnotations of any mmseg config."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

pytest.importorskip('mmseg')
from mmengine.dataset import Compose
from mmengine.registry import init_default_scope

from flatten_mm.datasets.label_map import CheckLabelMap, add_label_map_check, read_label_map

LABELS = np.array([[0, 1, 2], [2, 255, 0]], np.uint8)


def save(path, picture, **options):
    (Image.fromarray(picture) if isinstance(picture, np.ndarray) else picture).save(path, **options)
    return str(path)


def palette():
    picture = Image.fromarray(LABELS, mode='P')
    picture.putpalette([9, 8, 7] * 256)
    return picture


def test_read(tmp_path):
    path = tmp_path / 'x.png'
    np.testing.assert_array_equal(read_label_map(save(path, LABELS)), LABELS)
    np.testing.assert_array_equal(read_label_map(save(path, palette())), LABELS)
    bits = read_label_map(save(path, Image.fromarray(LABELS > 0)))
    np.testing.assert_array_equal(bits, LABELS > 0)


def cut(path):
    save(path, np.random.default_rng(0).integers(0, 3, (64, 64)).astype(np.uint8))
    path.write_bytes(path.read_bytes()[:200])


@pytest.mark.parametrize('write, message', [
    (lambda path: save(path, np.dstack([LABELS] * 3)), 'is a picture of mode RGB'),
    (lambda path: save(path, LABELS.astype(np.uint16)), 'is a picture of mode I;16'),
    (lambda path: save(path, np.dstack([LABELS] * 4)), 'is a picture of mode RGBA'),
    (lambda path: save(path, LABELS, format='JPEG'), 'is a JPEG, whose compression changes'),
    (lambda path: path.write_bytes(b''), 'cannot be read as a label map'),
    (lambda path: path.write_text('<html>'), 'cannot be read as a label map'),
    (cut, 'cannot be read as a label map'),
])
def test_refused_by_name(tmp_path, write, message):
    path = tmp_path / 'x.png'
    write(path)
    with pytest.raises(ValueError, match=rf'^{path} {message}'):
        read_label_map(str(path))
    steps = _steps()
    with pytest.raises(ValueError, match=rf'^{path} {message}'):
        Compose(steps)(_results(path))


def _steps(reduce_zero_label=None):
    init_default_scope('mmseg')
    steps = Compose([dict(type='LoadAnnotations')]).transforms
    add_label_map_check(steps, ['a', 'b', 'c'])
    return steps


def _results(path, **values):
    return dict(seg_map_path=str(path), img_path='x.jpg', reduce_zero_label=False, seg_fields=[],
                label_map=None, **values)


def test_missing_file_stays_a_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError, match='gone.png'):
        Compose(_steps())(_results(tmp_path / 'gone.png'))


def test_values_and_size(tmp_path):
    path = tmp_path / 'x.png'
    save(path, LABELS)
    result = Compose(_steps())(_results(path, ori_shape=(2, 3)))
    np.testing.assert_array_equal(result['gt_seg_map'], LABELS)
    with pytest.raises(ValueError, match=rf'^{path} has .* \(2, 3\), but its image x.jpg has'):
        Compose(_steps())(_results(path, ori_shape=(3, 2)))
    save(path, np.arange(40, dtype=np.uint8)[None])
    with pytest.raises(ValueError, match=rf'^{path} holds the label values \[3, 4, .*\.\.\.\]'):
        Compose(_steps())(_results(path))


def test_in_a_pipeline_of_ones_own(tmp_path):
    init_default_scope('mmseg')
    path = save(tmp_path / 'x.png', LABELS)
    pipeline = Compose([dict(type='LoadAnnotations'), dict(type='CheckLabelMap', num_classes=2)])
    with pytest.raises(ValueError, match=r'\[2\], but the 2 classes are the values 0 to 1'):
        pipeline(_results(path))
    add_label_map_check(pipeline.transforms, ['a'])
    assert sum(isinstance(step, CheckLabelMap) for step in pipeline.transforms) == 1
