"""FolderCocoDataset refuses what CocoDataset drops or mislabels silently."""

from __future__ import annotations

import json

import numpy as np
import pytest

pytest.importorskip('mmdet')
from mmengine.registry import init_default_scope
from pycocotools import mask as coco_mask

from flatten_mm.datasets import make_demo_dataset
from flatten_mm.datasets.coco_file import compressed_total
from flatten_mm.datasets.demo import DEMO_CLASSES
from flatten_mm.datasets.folder_coco import FolderCocoDataset, FolderCocoMetric


@pytest.fixture
def root(tmp_path):
    init_default_scope('mmdet')
    make_demo_dataset(tmp_path / 'data', 3, 1)
    return tmp_path / 'data'


@pytest.fixture
def logged(monkeypatch):
    texts = []
    monkeypatch.setattr('flatten_mm.datasets.folder_coco.print_log',
                        lambda text, **options: texts.append(text))
    return texts


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


def test_classes_in_any_order_and_absent_ones_keep_their_numbers(root, logged):
    """mmdet would give 'ring' and 'disc' each other's labels, and move 'ring' into the gap."""
    classes = ['ring', 'comet', 'disc', 'square', 'triangle', 'cross']
    content = _edit(root, lambda content: None)
    by_name = {item['id']: item['name'] for item in content['categories']}
    dataset = _build(root, classes=classes)
    labels = [classes[item['bbox_label']] for i in range(len(dataset))
              for item in dataset.get_data_info(i)['instances']]
    assert labels == [by_name[item['category_id']] for item in content['annotations']]
    assert any("has no category comet" in text for text in logged)


def test_one_name_with_two_ids(root):
    """Roboflow writes such files: the first of the two has no annotations."""
    def double(content):
        content['categories'].insert(0, dict(id=0, name='disc'))
    content = _edit(root, double)
    dataset = _build(root)
    labels = [item['bbox_label'] for i in range(len(dataset))
              for item in dataset.get_data_info(i)['instances']]
    assert labels == [item['category_id'] - 1 for item in content['annotations']]
    _edit(root, lambda content: content['annotations'][0].update(category_id=0) or
          content['annotations'][1].update(category_id=1))
    with pytest.raises(ValueError, match=r"categories \[0, 1\] are both called 'disc'"):
        _build(root)


@pytest.mark.parametrize('changes, message', [
    (dict(ann_file='annotations/none.json'), 'annotation file .*none.json does not exist'),
    (dict(data_prefix=dict(img='images/none')), 'image folder .*none does not exist'),
    (dict(data_prefix=dict(img='annotations')), r'000000\.png, the first image of'),
])
def test_missing_files(root, changes, message):
    with pytest.raises(FileNotFoundError, match=message):
        _build(root, **changes)


def _set(**values):
    return lambda annotation, image: annotation.update(values)


def _rle(annotation, image, size=None, counts=None):
    size = size or [image['height'], image['width']]
    annotation['segmentation'] = dict(size=size, counts=counts or [size[0] * size[1]])


# name -> (change of annotation 2 and its image, what the error says of it)
BAD = {
    'category': (_set(category_id=77), 'category_id 77, which is not among the categories'),
    'category of another type': (_set(category_id='1'), "category_id '1', which is not among"),
    'no box': (lambda a, _: a.pop('bbox'), 'bbox None; expected'),
    'three numbers': (_set(bbox=[1, 2, 3]), r'bbox \[1, 2, 3\]; expected'),
    'text': (_set(bbox=['1', 2, 3, 4]), 'bbox .*; expected'),
    'nan box': (_set(bbox=[1, 2, float('nan'), 4]), 'bbox .*nan.*; expected'),
    'corners': (_set(bbox=[50, 60, -20, 10]), 'negative width or height.*not two corners'),
    'outside': (_set(bbox=[5000, 60, 20, 10]), 'wholly outside its image of width'),
    'left of it': (_set(bbox=[-30, 6, 20, 10]), 'wholly outside its image of width'),
    'no area': (lambda a, _: a.pop('area'), "lacks 'area'"),
    'area of 0': (_set(area=0), 'area 0 although its bbox is'),
    'crowd': (_set(iscrowd='yes'), 'iscrowd .*yes'),
    'no mask': (lambda a, _: a.pop('segmentation'), 'no "segmentation"'),
    'empty mask': (_set(segmentation=[]), 'no "segmentation"'),
    'two points': (_set(segmentation=[[1, 2, 30, 40]]), 'a polygon of 2 points'),
    'odd': (_set(segmentation=[[1, 2, 30, 40, 5, 6, 7]]), 'a polygon of 3.5 points'),
    'flat': (_set(segmentation=[1, 2, 30, 40, 5, 6]), 'neither an RLE nor a list of polygons'),
    'nan polygon': (_set(segmentation=[[1, 2, 30, 40, 5, float('nan')]]), 'that is no number'),
    'polygon outside': (_set(segmentation=[[900, 2, 930, 40, 905, 60]]), 'polygon wholly outside'),
    'rle size': (lambda a, i: _rle(a, i, size=[i['width'], i['height'] + 1]), 'an RLE of size'),
    'rle too long': (lambda a, i: _rle(a, i, counts=[10, 10**9]), 'runs cover 1000000010, not'),
    'rle damaged': (lambda a, i: _rle(a, i, counts='oooo'), 'runs cannot be read'),
    'rle negative': (lambda a, i: _rle(a, i, counts=[-5, 10]), 'runs cannot be read'),
}


@pytest.mark.parametrize('name', BAD)
def test_annotation_that_cannot_be_used_is_named(name, root, logged):
    change, message = BAD[name]

    def edit(content):
        annotation = content['annotations'][1]
        image, = (item for item in content['images'] if item['id'] == annotation['image_id'])
        change(annotation, image)
    content = _edit(root, edit)
    with pytest.raises(ValueError, match=rf'train\.json cannot be used: annotation 2 \(image '
                       rf'\d+\.png\) (has|lacks) .*{message}|annotation 2 .*{message}'):
        _build(root, with_mask=True)
    dataset = _build(root, with_mask=True, bad_instances='drop')
    kept = [item for i in range(len(dataset)) for item in dataset.get_data_info(i)['instances']]
    assert len(kept) == len(content['annotations']) - 1
    assert any('1 annotations of' in text and 'annotation 2 ' in text for text in logged)


@pytest.mark.parametrize('name, change, message', [
    ('degenerate', _set(bbox=[5, 5, 0.5, 9]), 'under a pixel, and is left out'),
    ('image', _set(image_id=999), 'image_id 999, which is not among the images'),
    ('beyond', _set(bbox=[5, 5, 4000, 9]), 'reaches beyond its image'),
    ('box and mask', _set(segmentation=[[1, 1, 5, 1, 5, 5]]), 'but its polygons span'),
])
def test_annotation_that_is_likely_wrong_is_warned_of(name, change, message, root, logged):
    _edit(root, lambda content: change(content['annotations'][1], None))
    assert len(_build(root, with_mask=True)) == 3
    assert any('annotation 2' in text and message in text for text in logged), logged


def test_part_of_a_polygon_that_is_none_is_left_out(root, logged):
    """pycocotools takes four numbers for a box, in validation too."""
    whole = [1, 1, 50, 1, 50, 50]
    content = _edit(root, lambda content: content['annotations'][1].update(
        segmentation=[[0, 0, 90, 90], whole], bbox=[1, 1, 49, 49]))
    dataset = _build(root, with_mask=True)
    masks = [item['mask'] for i in range(len(dataset))
             for item in dataset.get_data_info(i)['instances']]
    assert masks[1] == [whole]
    metric = FolderCocoMetric(ann_file=str(root / 'annotations/train.json'), metric=['segm'])
    assert metric._coco_api.anns[content['annotations'][1]['id']]['segmentation'] == [whole]


def _twice(key, **values):
    return lambda content: content[key].append(dict(content[key][0], **values))


@pytest.mark.parametrize('change, message', [
    (_twice('annotations', bbox=[1, 1, 9, 9]), r'id 1 of "annotations" is the id of 2 entries'),
    (_twice('images', file_name='x.png'), r'id 0 of "images" is the id of 2 entries'),
    (_twice('categories', name='x'), r'id 1 of "categories" is the id of 2 entries'),
    (_twice('images', id=50), r'image 000000\.png is listed 2 times \(ids \[0, 50\]\)'),
    (lambda content: content['images'][0].pop('width'), r'entry 0 of "images" lacks .width'),
    (lambda content: content['images'][0].update(height='96'), "has height '96'"),
    (lambda content: content['images'][0].update(height=0), 'has height 0'),
    (lambda content: content['annotations'].append(None), 'is a NoneType'),
    (lambda content: content['categories'][2].pop('name'), r'entry 2 of "categories" lacks'),
    (lambda content: content.pop('annotations'), "lacks 'annotations'"),
    (lambda content: content.update(images={}), "'images' is a dict, not a list"),
    (lambda content: content.update(annotations=[]), 'no usable instance'),
])
def test_file_of_another_structure(root, change, message):
    _edit(root, change)
    with pytest.raises(ValueError, match=message):
        _build(root)


@pytest.mark.parametrize('text, message', [
    ('', r'train\.json is not JSON'), ('{"images": [', r'train\.json is not JSON'),
    ('[1]', r'train\.json holds a list'), ('[' * 100_000, r'train\.json is not JSON')])
def test_file_that_is_no_coco_file(root, text, message):
    (root / 'annotations/train.json').write_text(text)
    with pytest.raises(ValueError, match=message):
        _build(root)


def test_crowd_is_ignored_and_compressed_runs_are_read(root):
    def crowd(content):
        annotation = content['annotations'][0]
        rle = annotation['segmentation']
        rle = coco_mask.frPyObjects(rle, *rle['size'])
        annotation.update(iscrowd=1, segmentation=dict(rle, counts=rle['counts'].decode()))
    _edit(root, crowd)
    instances = _build(root, with_mask=True).get_data_info(0)['instances']
    assert [item['ignore_flag'] for item in instances] == [1] + [0] * (len(instances) - 1)


def test_sum_of_compressed_runs_is_that_of_pycocotools():
    rng = np.random.default_rng(0)
    for _ in range(300):
        height, width = rng.integers(1, 200, 2)
        mask = np.asfortranarray(rng.random((height, width)) < rng.random() ** 3)
        counts = coco_mask.encode(mask.astype(np.uint8))['counts'].decode()
        assert compressed_total(counts) == height * width


def test_masks_wanted_or_not(root):
    _edit(root, lambda content: content['annotations'][0].pop('segmentation'))
    assert len(_build(root)) == 3


def test_bad_instances_is_one_of_two(root):
    with pytest.raises(ValueError, match="bad_instances='skip'; expected 'refuse' or 'drop'"):
        _build(root, bad_instances='skip')


def test_image_of_another_size_than_annotated(root):
    _edit(root, lambda content: content['images'][0].update(
        width=content['images'][0]['width'] + 500))
    dataset = _build(root, pipeline=[dict(type='LoadImageFromFile')])
    with pytest.raises(ValueError, match=r'000000\.png is .* but its annotations are for'):
        dataset[0]


def test_no_images(root):
    _edit(root, lambda content: content.update(images=[], annotations=[]))
    with pytest.raises(ValueError, match='lists no images'):
        _build(root)


@pytest.mark.parametrize('classes', [
    DEMO_CLASSES, DEMO_CLASSES[::-1], ('comet', *DEMO_CLASSES[2:], *DEMO_CLASSES[:2])])
def test_evaluation_without_info_and_with_classes_of_another_order(root, classes):
    content = _edit(root, lambda content: content.pop('info'))
    metric = FolderCocoMetric(ann_file=str(root / 'annotations/train.json'), classwise=True)
    metric.dataset_meta = dict(classes=classes)
    for image in content['images']:
        truth = [item for item in content['annotations'] if item['image_id'] == image['id']]
        boxes = np.array([item['bbox'] for item in truth], float)
        boxes[:, 2:] += boxes[:, :2]
        found = dict(bboxes=boxes, scores=np.ones(len(truth)),
                     labels=np.array([classes.index(DEMO_CLASSES[item['category_id'] - 1])
                                      for item in truth]))
        metric.results.append((dict(img_id=image['id'], width=image['width'],
                                    height=image['height']), dict(found, img_id=image['id'])))
    assert metric.evaluate(len(content['images']))['coco/bbox_mAP'] == 1.0
