"""The demo set: the same pixels everywhere, annotations that agree with them, safe folders."""

from __future__ import annotations

import hashlib
import json

import cv2
import numpy as np
import pytest
from pycocotools import mask as coco_mask
from pycocotools.coco import COCO

from flatten_mm.datasets import DEMO_CLASSES, make_demo_dataset
from flatten_mm.datasets.demo import make_demo_sample, mask_to_rle

NUM_TRAIN, NUM_VAL = 12, 6
PIXELS_SHA256 = '47197a302f722a3809492055438a905ad40888a0dd4da88aa5458371b1414627'
ANNOTATIONS_SHA256 = 'c5a18d4d8e32f3325c7afaa7428dcebc712a1b85def945aafd672ee1ea0cabc5'


@pytest.fixture(scope='module')
def dataset(tmp_path_factory):
    return make_demo_dataset(tmp_path_factory.mktemp('demo') / 'data', NUM_TRAIN, NUM_VAL)


@pytest.fixture(scope='module', params=['train', 'val'])
def split(request):
    return request.param


def _read(path):
    image = cv2.imread(str(path), cv2.IMREAD_UNCHANGED)
    assert image is not None, path
    return image


def test_pixels_are_those_of_every_other_machine(dataset):
    digest = hashlib.sha256()
    for folder in (dataset.image_dir('train'), dataset.label_dir('train'),
                   dataset.image_dir('val'), dataset.label_dir('val')):
        for path in sorted(folder.glob('*.png')):
            array = _read(path)
            digest.update(repr((path.name, array.shape, array.dtype.str)).encode())
            digest.update(array.tobytes())
    assert digest.hexdigest() == PIXELS_SHA256


def test_annotations_are_those_of_every_other_machine(dataset):
    content = [json.loads(dataset.ann_file(split).read_text()) for split in ('train', 'val')]
    text = json.dumps(content, sort_keys=True).encode()
    assert hashlib.sha256(text).hexdigest() == ANNOTATIONS_SHA256


def test_coco_file_agrees_with_images_and_masks(dataset, split):
    coco = COCO(str(dataset.ann_file(split)))
    assert [cat['name'] for cat in coco.loadCats(coco.getCatIds())] == list(DEMO_CLASSES)
    files = sorted(path.name for path in dataset.image_dir(split).iterdir())
    assert files == sorted(image['file_name'] for image in coco.dataset['images'])
    for image in coco.dataset['images']:
        picture = _read(dataset.image_dir(split) / image['file_name'])
        assert picture.shape == (image['height'], image['width'], 3)
        labels = _read(dataset.label_dir(split) / image['file_name'])
        painted = np.zeros_like(labels)
        annotations = coco.imgToAnns[image['id']]
        assert 1 <= len(annotations) <= 6
        for annotation in annotations:
            mask = coco.annToMask(annotation).astype(bool)
            assert not painted[mask].any(), 'masks of one image overlap'
            painted[mask] = annotation['category_id']
            rle = coco.annToRLE(annotation)
            assert annotation['area'] == mask.sum() == coco_mask.area(rle) >= 20
            assert annotation['bbox'] == coco_mask.toBbox(rle).tolist()
            assert annotation['iscrowd'] == 0
        np.testing.assert_array_equal(painted, labels)


def test_sizes_and_classes_vary():
    samples = [make_demo_sample(0, 'train', i) for i in range(40)]
    shapes = [sample.image.shape[:2] for sample in samples]
    assert len(set(shapes)) > 30
    assert all(96 <= side <= 160 for shape in shapes for side in shape)
    assert any(h > w for h, w in shapes) and any(h < w for h, w in shapes)
    assert {item.label for sample in samples for item in sample.instances} == set(range(5))


def test_occlusion_hides_the_earlier_shape_in_part():
    # a disc's full box is square; one cut by a later shape or the border is not convex or square
    filled = []
    for i in range(40):
        for item in make_demo_sample(0, 'train', i).instances:
            rows, columns = np.nonzero(item.mask)
            box = (np.ptp(rows) + 1) * (np.ptp(columns) + 1)
            if DEMO_CLASSES[item.label] == 'disc':
                filled.append(item.mask.sum() / box)
    whole = np.pi / 4
    assert sum(abs(share - whole) < 0.03 for share in filled) > 10, 'hardly any disc is whole'
    assert min(filled) < whole - 0.1, 'no disc is hidden in part'


def test_an_image_depends_on_seed_split_and_index_alone():
    first = make_demo_sample(3, 'val', 7)
    again = make_demo_sample(3, 'val', 7)
    np.testing.assert_array_equal(first.image, again.image)
    for other in ((4, 'val', 7), (3, 'train', 7), (3, 'val', 8)):
        image = make_demo_sample(*other).image
        assert image.shape != first.image.shape or (image != first.image).any()


@pytest.mark.parametrize('corner', [False, True])
def test_rle_round_trip(corner):
    mask = np.zeros((7, 5), bool)
    mask[2:4, 1:4] = True
    mask[0, 0] = corner  # runs start with zeros, be there any or not
    rle = mask_to_rle(mask)
    decoded = coco_mask.decode(coco_mask.frPyObjects(rle, *rle['size']))
    np.testing.assert_array_equal(decoded.astype(bool), mask)


def test_finished_set_is_reused(tmp_path):
    dataset = make_demo_dataset(tmp_path / 'data', 2, 1)
    image = dataset.image_dir('train') / '000000.png'
    before = image.stat().st_mtime_ns
    make_demo_dataset(tmp_path / 'data', 2, 1)
    assert image.stat().st_mtime_ns == before


def test_interrupted_set_is_written_anew(tmp_path):
    root = tmp_path / 'data'
    dataset = make_demo_dataset(root, 3, 1)
    marker = root / 'demo_dataset.json'
    marker.write_text(json.dumps(json.loads(marker.read_text()) | dict(complete=False)))
    (dataset.image_dir('train') / '000001.png').unlink()
    (dataset.image_dir('train') / '000099.png').write_bytes(b'left over')
    make_demo_dataset(root, 3, 1)
    names = sorted(path.name for path in dataset.image_dir('train').iterdir())
    assert names == ['000000.png', '000001.png', '000002.png']
    assert json.loads(marker.read_text())['complete']


def test_set_is_not_complete_while_it_is_written(tmp_path, monkeypatch):
    def stop(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr('flatten_mm.datasets.demo._write_png', stop)
    with pytest.raises(KeyboardInterrupt):
        make_demo_dataset(tmp_path / 'data', 2, 1)
    monkeypatch.undo()
    assert not json.loads((tmp_path / 'data/demo_dataset.json').read_text())['complete']
    dataset = make_demo_dataset(tmp_path / 'data', 2, 1)
    assert len(list(dataset.image_dir('train').iterdir())) == 2


def test_foreign_folder_is_left_alone(tmp_path):
    (tmp_path / 'images').mkdir()
    (tmp_path / 'images/mine.png').write_bytes(b'mine')
    with pytest.raises(FileExistsError, match='is not empty'):
        make_demo_dataset(tmp_path, 2, 1)
    assert (tmp_path / 'images/mine.png').read_bytes() == b'mine'


def test_set_with_other_parameters_is_left_alone(tmp_path):
    make_demo_dataset(tmp_path / 'data', 2, 1)
    with pytest.raises(FileExistsError, match="'num_train': 2.*'num_train': 3"):
        make_demo_dataset(tmp_path / 'data', 3, 1)


@pytest.mark.parametrize('wrong', [dict(num_train=0), dict(num_val=0), dict(seed=-1)])
def test_wrong_counts(tmp_path, wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        make_demo_dataset(tmp_path / 'data', **wrong)
    assert not (tmp_path / 'data').exists()


def test_wrong_split():
    with pytest.raises(ValueError, match="'test'"):
        make_demo_sample(0, 'test', 0)
