"""What is checked of the mm libraries' own data sets before and while they are loaded."""
from __future__ import annotations

import json

import numpy as np
import pytest
from mmengine.registry import DATASETS, init_default_scope
from PIL import Image
from tiny import write_config, write_data

from flatten_mm.engine import UserError, load_config
from flatten_mm.engine.annotations import numbering_problem
from flatten_mm.engine.preflight import check_dataset


@pytest.fixture
def data(tmp_path):
    write_data(tmp_path / 'data')
    return tmp_path / 'data'


@pytest.fixture
def told(monkeypatch):
    texts = []
    monkeypatch.setattr('flatten_mm.engine.annotations.warn', texts.append)
    return texts


def checked(scope, data, split='train', **replaced):
    init_default_scope(scope)
    cfg = load_config(write_config(scope, data.parent, data, **replaced))
    dataset = DATASETS.build(cfg[f'{split}_dataloader'].dataset)
    check_dataset(dataset, split)
    return dataset


def edit(path, change):
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


@pytest.mark.parametrize('scope, folder', [
    ('mmseg', 'img/train'), ('mmdet', 'img/train'), ('mmpretrain', 'cls/train/cat')])
def test_damaged_image_is_named_whatever_the_data_set(scope, folder, data):
    path = data / folder / '0.jpg'
    dataset = checked(scope, data)
    path.write_bytes(path.read_bytes()[:300])
    with pytest.raises(ValueError, match=rf'^{path} is truncated'):
        dataset[0]


def test_label_map_is_checked_whatever_the_data_set(data):
    dataset = checked('mmseg', data)
    path = data / 'ann/train/0.png'
    Image.fromarray(np.full((48, 64), 9, np.uint8)).save(path)
    with pytest.raises(ValueError, match=rf'^{path} holds the label values \[9\]'):
        dataset[0]


@pytest.mark.parametrize('classes, names, wrong', [
    ('abc', 'abc', ''), ('abc', 'ab', ''), ('ab', 'abc', ''), ('ab', 'xab', ''),
    ('abc', 'ac', 'does not name class .b.'), ('abc', 'bc', 'does not name class .a.'),
    ('ab', 'ax', 'does not name class .b.'), ('ab', 'ba', 'in another order'),
    ('abc', 'cab', 'in another order')])
def test_numbering_of_mmdet(classes, names, wrong):
    """Right exactly where each class finds its own number."""
    text = numbering_problem(list(classes), list(names))
    found = [name for name in names if name in classes]  # as CocoDataset numbers them
    right = all(classes[label] == name for label, name in enumerate(found))
    assert (text == '') == (wrong == '')
    if not right:
        assert text
    if wrong:
        assert wrong.replace('.', "'") in text


def test_file_of_the_first_classes_only(data, told):
    def change(content):
        content['annotations'] = [a for a in content['annotations'] if a['category_id'] == 1]
        del content['categories'][1]
    edit(data / 'train.json', change)
    dataset = checked('mmdet', data)
    assert {item['bbox_label'] for i in range(4)
            for item in dataset.get_data_info(i)['instances']} == {0}
    assert 'has no category disc' in told[0]


def test_annotations_that_crash_are_refused_and_others_told(data, told):
    edit(data / 'train.json', lambda content: content['annotations'][3].update(category_id=9))
    checked('mmdet', data)
    assert 'annotation 3 (image 1.jpg) has category_id 9' in told[0]
    edit(data / 'train.json', lambda content: content['annotations'][4].update(
        segmentation=dict(size=[7, 7], counts=[49])))
    with pytest.raises(UserError, match=r'annotation 4 \(image 2.jpg\) has an RLE of size'):
        checked('mmdet', data)


def test_lines_of_a_list_of_images(data):
    path = data / 'cls/list.txt'
    path.write_text('cat/0.jpg 0\ndog/0.jpg 5\n')
    with pytest.raises(UserError, match=rf'{path} cannot be used, the first: line 2 has label 5'):
        checked('mmpretrain', data, **{
            'data_prefix=split': "data_prefix=split, ann_file='list.txt', "
                                 "metainfo=dict(classes=['cat', 'dog'])"})
