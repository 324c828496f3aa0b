"""The demo images laid out as ADE20K, COCO and ImageNet are, and configs cut down to them."""
from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from mmengine.config import Config

import flatten_mm
from flatten_mm.datasets.demo import make_demo_sample

COUNTS = dict(train=4, val=2)
ADE_LABELS = (1, 4, 21, 77, 150)  # pixel values of the five demo classes; 0 is "other"
COCO_NAMES = ('person', 'stop sign', 'cat', 'bottle', 'toothbrush')
# COCO's 80 categories have the ids from 1 to 90 but for these.
COCO_GAPS = (12, 26, 29, 30, 45, 66, 68, 69, 71, 83)
IMAGENET_FOLDERS = (0, 7, 99, 500, 999)  # indices of the five demo classes

DEPTHS = [1, 1, 1, 1]


def write_layouts(root: Path) -> Path:
    """Write the three data sets under ``root``; returns it."""
    for split, count in COUNTS.items():
        samples = [make_demo_sample(0, split, i) for i in range(count)]
        _write_ade(root / 'ade', split, samples)
        _write_coco(root / 'coco', split, samples)
        _write_imagenet(root / 'imagenet', split, samples)
    return root


def shrunk(cfg: Config, layouts: Path) -> Config:
    """``cfg`` on the small data: one block a stage, small images, from scratch; all else its own.
    """
    backbone = cfg.model.backbone
    arch = backbone.arch
    if isinstance(arch, str):
        arch = getattr(flatten_mm, backbone.type).ARCHS[arch]
    backbone.arch = dict(arch, depths=DEPTHS)
    for module in _dicts(cfg.model):
        if module.get('init_cfg', {}).get('type') == 'Pretrained':
            del module['init_cfg']
    factor = dict(mmseg=8, mmdet=8, mmpretrain=3.5)[cfg.default_scope]
    root = str(layouts / dict(mmseg='ade', mmdet='coco', mmpretrain='imagenet')[cfg.default_scope])
    for split in ('train', 'val', 'test'):
        loader = cfg[f'{split}_dataloader']
        loader.update(num_workers=0, persistent_workers=False)
        for item in _dicts(loader):
            if 'data_root' in item:
                item.data_root = root
            for key in ('scale', 'scales', 'crop_size'):
                if key in item:
                    item[key] = _smaller(item[key], factor)
        evaluator = cfg.get(f'{split}_evaluator')
        if evaluator and 'ann_file' in evaluator:
            evaluator.ann_file = f'{root}/annotations/instances_val2017.json'
    cfg.train_dataloader.batch_size = 2
    if cfg.default_scope == 'mmseg':
        cfg.model.data_preprocessor.size = _smaller(cfg.model.data_preprocessor.size, factor)
    for item in _dicts(cfg.model.get('train_cfg')):
        if item.get('type') == 'RandomSampler':
            item.num = 16  # boxes a head learns from
    return cfg


def _dicts(node: Any):
    if isinstance(node, dict):
        yield node
        node = list(node.values())
    if isinstance(node, (list, tuple)):
        for item in node:
            yield from _dicts(item)


def _smaller(size: Any, factor: float) -> Any:
    if isinstance(size, (list, tuple)):
        return type(size)(_smaller(side, factor) for side in size)
    return max(1, round(size / factor))


def _write_ade(root: Path, split: str, samples: list) -> None:
    folder = dict(train='training', val='validation')[split]
    values = np.array([0, *ADE_LABELS], np.uint8)
    for i, sample in enumerate(samples):
        _write(root / 'images' / folder / f'ADE_{split}_{i:08d}.jpg', sample.image[..., ::-1])
        _write(root / 'annotations' / folder / f'ADE_{split}_{i:08d}.png', values[sample.label_map])


def _write_coco(root: Path, split: str, samples: list) -> None:
    from mmdet.datasets import CocoDataset
    ids = [number for number in range(1, 91) if number not in COCO_GAPS]
    categories = dict(zip(CocoDataset.METAINFO['classes'], ids))
    content = dict(info={}, images=[], annotations=[],
                   categories=[dict(id=number, name=name) for name, number in categories.items()])
    for i, sample in enumerate(samples):
        height, width = sample.image.shape[:2]
        name = f'{i:012d}.jpg'
        _write(root / f'{split}2017' / name, sample.image[..., ::-1])
        content['images'].append(dict(id=i, file_name=name, height=height, width=width))
        for instance in sample.instances:
            contours, _ = cv2.findContours(instance.mask.astype(np.uint8), cv2.RETR_EXTERNAL,
                                           cv2.CHAIN_APPROX_NONE)
            polygons = [c.flatten().tolist() for c in contours if len(c) >= 3]
            x, y, w, h = cv2.boundingRect(instance.mask.astype(np.uint8))
            content['annotations'].append(dict(
                id=len(content['annotations']) + 1, image_id=i, iscrowd=0, bbox=[x, y, w, h],
                category_id=categories[COCO_NAMES[instance.label]], area=int(instance.mask.sum()),
                segmentation=polygons))
    (root / 'annotations').mkdir(exist_ok=True)
    path = root / 'annotations' / f'instances_{split}2017.json'
    path.write_text(json.dumps(content))


def _write_imagenet(root: Path, split: str, samples: list) -> None:
    for number in range(1000):
        (root / split / f'n{number:08d}').mkdir(parents=True)
    for i, sample in enumerate(samples):
        label = sample.instances[0].label
        name = f'n{IMAGENET_FOLDERS[label]:08d}'
        _write(root / split / name / f'{name}_{i}.JPEG', sample.image[..., ::-1], '.jpg')


def _write(path: Path, image: np.ndarray, encoding: str | None = None) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    done, data = cv2.imencode(encoding or path.suffix, image)
    assert done
    path.write_bytes(data.tobytes())
