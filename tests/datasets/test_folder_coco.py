"""FolderCocoDataset refuses what CocoDataset drops or mislabels silently."""

from __future__ import annotations

import json

import numpy as np
import pytest

pytest.importorskip('mmdet')
from mmengine.registry import init_default_scope

from flatten_mm.datasets import make_demo_dataset
from flatten_mm.datasets.demo import DEMO_CLASSES
from flatten_mm.datasets.folder_coco import FolderCocoDataset, FolderCocoMetric


@pytest.fixture
def root(tmp_path):
    init_default_scope('mmdet')
    make_demo_dataset(tmp_path / 'data', 3, 1)
    return tmp_path / 'data'


def _build(root, classes=DEMO_CLASSES, **changes):
    options = dict(data_root=str(root), metainfo=dict(classes=classes), pipeline=[],
                   ann_file='annotations/train.json', data_prefix=dict(img='images/train'))
    return FolderCocoDataset(**options | changes)


def _edit(root, change):
    """Apply ``change`` to the content of train.json."""
    path = root / 'annotations/train.json'
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))
    return content


def test_labels_are_indices_of_the_classes(root):
    content = _edit(root, lambda content: None)
    by_name = {item['id']: item['name'] for item in content['categories']}
    dataset = _build(root, with_mask=True)
    labels = [DEMO_CLASSES[item['bbox_label']] for i in range(len(dataset))
              for item in dataset.get_data_info(i)['instances']]
    assert labels == [by_name[item['category_id']] for item in content['annotations']]


def test_some_of_the_classes(root):
    content = _edit(root, lambda content: None)
    dataset = _build(root, classes=['square', 'ring'])
    found = [item['bbox_label'] for i in range(len(dataset))
             for item in dataset.get_data_info(i)['instances']]
    assert found == [[2, 5].index(item['category_id']) for item in content['annotations']
                     if item['category_id'] in (2, 5)]


def test_unknown_class_names_both_lists(root):
    with pytest.raises(ValueError, match=r"\['Disc'\] of \['Disc', 'ring'\].*'disc', 'square'"):
        _build(root, classes=['Disc', 'ring'])


def test_other_order(root):
    with pytest.raises(ValueError, match=r"another order.*\['disc', 'ring'\]"):
        _build(root, classes=['ring', 'disc'])


@pytest.mark.parametrize('changes, message', [
    (dict(ann_file='annotations/none.json'), 'annotation file .*none.json does not exist'),
    (dict(data_prefix=dict(img='images/none')), 'image folder .*none does not exist'),
    (dict(data_prefix=dict(img='annotations')), r'000000\.png, the first image of'),
])
def test_missing_files(root, changes, message):
    with pytest.raises(FileNotFoundError, match=message):
        _build(root, **changes)


def test_no_usable_instance(root):
    def no_area(content):
        for item in content['annotations']:
            item['area'] = 0

    _edit(root, no_area)
    with pytest.raises(ValueError, match='no usable instance'):
        _build(root)


def test_incomplete_annotation(root):
    _edit(root, lambda content: content['annotations'][0].pop('area'))
    with pytest.raises(ValueError, match="lacks 'area'"):
        _build(root)


def test_masks_wanted_and_absent(root):
    _edit(root, lambda content: content['annotations'][0].pop('segmentation'))
    assert len(_build(root)) == 3
    with pytest.raises(ValueError, match='1 of .* instances .* no "segmentation"'):
        _build(root, with_mask=True)


def test_no_images(root):
    _edit(root, lambda content: content.update(images=[], annotations=[]))
    with pytest.raises(ValueError, match='lists no images'):
        _build(root)


def test_file_without_info_can_be_evaluated(root):
    content = _edit(root, lambda content: content.pop('info'))
    metric = FolderCocoMetric(ann_file=str(root / 'annotations/train.json'))
    metric.dataset_meta = dict(classes=DEMO_CLASSES)
    for image in content['images']:
        truth = [item for item in content['annotations'] if item['image_id'] == image['id']]
        boxes = np.array([item['bbox'] for item in truth], float)
        boxes[:, 2:] += boxes[:, :2]
        found = dict(bboxes=boxes, scores=np.ones(len(truth)),
                     labels=np.array([item['category_id'] - 1 for item in truth]))
        metric.results.append((dict(img_id=image['id'], width=image['width'],
                                    height=image['height']), dict(found, img_id=image['id'])))
    assert metric.evaluate(len(content['images']))['coco/bbox_mAP'] == 1.0
