"""Checks of the files and classes a config names."""
from __future__ import annotations

import json
import shutil

import pytest
from mmengine.config import Config
from mmengine.registry import DATASETS, init_default_scope
from tiny import write_config, write_data
from torch import nn

from flatten_mm.engine import UserError, load_config
from flatten_mm.engine.preflight import (
    check_classes,
    check_data_paths,
    check_dataset,
    check_pretrained,
    class_counts,
)


@pytest.fixture
def data(tmp_path):
    write_data(tmp_path / 'data')
    return tmp_path / 'data'


def config(scope, data, **replaced):
    return load_config(write_config(scope, data.parent, data, **replaced))


def built(scope, data, split='train', **replaced):
    cfg = config(scope, data, **replaced)
    init_default_scope(scope)
    return DATASETS.build(cfg[f'{split}_dataloader'].dataset)


def refusal(function, *args):
    with pytest.raises(UserError) as info:
        function(*args)
    return str(info.value)


@pytest.mark.parametrize('scope', ['mmseg', 'mmdet', 'mmpretrain'])
def test_complete_data_passes(scope, data):
    cfg = config(scope, data)
    check_data_paths(cfg, ['train', 'val', 'test'])
    for split in ('train', 'val'):
        check_dataset(built(scope, data, split), split)


@pytest.mark.parametrize('scope, gone, expected', [
    ('mmseg', '.', 'images DATA/img/train/NAME.jpg and label maps DATA/ann/train/NAME.png'),
    ('mmseg', 'img/train', 'images DATA/img/train/NAME.jpg'),
    ('mmseg', 'ann/train', 'label maps DATA/ann/train/NAME.png'),
    ('mmdet', '.', 'annotations DATA/train.json and the images they name in DATA/img/train'),
    ('mmdet', 'img/train', 'the images they name in DATA/img/train'),
    ('mmdet', 'train.json', 'annotations DATA/train.json'),  # within a RepeatDataset
    ('mmpretrain', 'cls/train', 'DATA/cls/train/CLASS/NAME.jpg'),
])
def test_missing_path_and_its_layout_are_named(scope, gone, expected, data):
    path = data / gone
    path.unlink() if path.is_file() else shutil.rmtree(path)
    message = refusal(check_data_paths, config(scope, data), ['train'])
    assert f'{path} of the train data set does not exist' in message
    assert expected.replace('DATA', str(data)) in message


def test_only_splits_that_run_are_checked(data):
    shutil.rmtree(data / 'img' / 'val')
    cfg = config('mmseg', data)
    check_data_paths(cfg, ['train'])
    assert 'img/val of the test data set' in refusal(check_data_paths, cfg, ['test'])


def test_inner_data_sets_of_wrappers_are_checked(data):
    cfg = config('mmdet', data)
    inner = dict(cfg.val_dataloader.dataset, ann_file='gone.json')
    cfg.train_dataloader.dataset = dict(
        type='ClassBalancedDataset', oversample_thr=0.1,
        dataset=dict(type='ConcatDataset', datasets=[cfg.val_dataloader.dataset, inner]))
    assert 'gone.json' in refusal(check_data_paths, cfg, ['train'])


def test_annotation_file_of_the_metric_is_checked(data):
    cfg = config('mmdet', data)
    cfg.val_evaluator.ann_file = str(data / 'gone.json')
    assert 'gone.json of val_evaluator (CocoMetric)' in refusal(check_data_paths, cfg, ['val'])


def test_remote_and_downloaded_data_are_left_alone():
    remote = dict(type='CocoDataset', data_root='s3://bucket', ann_file='a.json',
                  data_prefix=dict(img='x'))
    cfg = Config(dict(default_scope='mmdet', train_dataloader=dict(dataset=remote)))
    check_data_paths(cfg, ['train'])
    download = dict(type='CIFAR10', data_root='/no/such/folder', data_prefix='')
    cfg = Config(dict(default_scope='mmpretrain', train_dataloader=dict(dataset=download)))
    check_data_paths(cfg, ['train'])


def test_image_suffix_without_images(data):
    cfg = config('mmseg', data, **{"data_root='": "img_suffix='.png', data_root='"})
    message = refusal(check_data_paths, cfg, ['train'])
    assert 'no image NAME.png' in message
    assert 'found: .jpg' in message


def test_missing_label_maps_are_counted(data):
    (data / 'ann' / 'train' / '1.png').unlink()
    message = refusal(check_dataset, built('mmseg', data), 'train')
    assert '1 of 8 files' in message
    assert str(data / 'ann' / 'train' / '1.png') in message


def test_missing_images_of_a_coco_file_are_named(data):
    (data / 'img' / 'train' / '2.jpg').unlink()
    message = refusal(check_dataset, built('mmdet', data), 'train')
    assert str(data / 'img' / 'train' / '2.jpg') in message


def test_class_that_the_coco_file_lacks(data):
    dataset = built('mmdet', data, **{"('square', 'disc')": "('square', 'Disc')"})
    message = refusal(check_dataset, dataset, 'train')
    assert "'Disc'" in message
    assert '(square, disc)' in message


def test_classes_in_another_order_than_the_coco_file(data):
    dataset = built('mmdet', data, **{"('square', 'disc')": "('disc', 'square')"})
    assert 'give square,disc' in refusal(check_dataset, dataset, 'train')


def test_coco_file_that_cannot_be_evaluated(data):
    path = data / 'val.json'
    content = json.loads(path.read_text())
    del content['info']
    path.write_text(json.dumps(content))
    assert '"info"' in refusal(check_dataset, built('mmdet', data, 'val'), 'val')


def test_coco_file_without_usable_annotations(data):
    path = data / 'train.json'
    content = json.loads(path.read_text())
    content['annotations'] = []
    path.write_text(json.dumps(content))
    dataset = built('mmdet', data, **{
        'data_prefix': 'serialize_data=False, filter_cfg=dict(filter_empty_gt=True), data_prefix'})
    assert 'is empty' in refusal(check_dataset, dataset, 'train')


class Head(nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        self.num_classes = num_classes


class Data:
    def __init__(self, *classes, **metainfo):
        self.metainfo = dict(classes=classes, **metainfo)


def test_class_counts_must_agree():
    model = nn.ModuleDict(dict(decode_head=Head(3), rpn_head=Head(1), backbone=Head(1000)))
    assert class_counts(model) == {'decode_head': 3}
    check_classes(model, Data('a', 'b', 'c'), 'train')
    message = refusal(check_classes, model, Data('a', 'b'), 'train')
    assert 'decode_head has num_classes=3' in message
    assert 'the train data set has 2 classes (a, b)' in message


def test_panoptic_data_share_their_classes_out():
    check_classes(nn.ModuleDict(dict(head=Head(2))),
                  Data('a', 'b', 'c', thing_classes=('a', 'b')), 'train')


@pytest.mark.parametrize('model, key', [
    (dict(backbone=dict(init_cfg=dict(type='Pretrained', checkpoint='/no/such.pth'))), 'init_cfg'),
    (dict(backbone=[dict(init_cfg=[dict(type='Kaiming'), dict(
        type='Pretrained', checkpoint='/no/such.pth')])]), 'init_cfg'),
    (dict(pretrained='/no/such.pth'), 'pretrained'),
])
def test_missing_pretrained_file_is_named(model, key):
    message = refusal(check_pretrained, model)
    assert '/no/such.pth' in message
    assert key in message


def test_pretrained_urls_are_left_to_the_loader():
    check_pretrained(dict(init_cfg=dict(type='Pretrained', checkpoint='torchvision://resnet18'),
                          pretrained=None))
