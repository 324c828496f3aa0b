"""What the data sets of a config hold, read without stopping at the first problem."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from mmengine.registry import DATASETS

from ..engine.annotations import numbering_problem, reads_as_coco, reads_as_list
from ..engine.errors import one_line
from .coco_file import (
    category_ids,
    category_problems,
    check_instances,
    read_json,
    structure_problems,
)
from .image_list import list_problems
from .problems import ERROR, WARNING, Problem


@dataclass
class Instance:
    """``label`` indexes the classes; ``box`` is x1, y1, x2, y2 in pixels; ``mask`` as in COCO."""

    label: int
    box: list[float]
    mask: list | dict | None = None


@dataclass
class Sample:
    """An image and its annotations.

    Attributes:
        image: Its path.
        size: (height, width) that its annotations are for, where they say.
        label_map: Path of its label map.
        instances: Its objects, None where objects are not what is learned.
        label: Its class number.
    """

    image: str
    size: tuple[int, int] | None = None
    label_map: str | None = None
    instances: list[Instance] | None = None
    label: int | None = None


@dataclass
class Source:
    """One data set of a config.

    Attributes:
        classes: Names.
        samples: Its images.
        problems: What reading the annotations found.
        to_classes: Function of the values of a label map that gives class numbers.
        palette: A colour a class, or None.
        ignore_index: The class number of pixels that do not count.
    """

    classes: list[str]
    samples: list[Sample] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    to_classes: Callable[[np.ndarray], np.ndarray] = np.asarray
    palette: list | None = None
    ignore_index: int = 255


def read_source(dataset: dict, scope: str, with_mask: bool = False) -> Source:
    """Read the annotations of one data set.

    Args:
        dataset: Its config, no wrapper.
        scope: ``'mmseg'``, ``'mmdet'`` or ``'mmpretrain'``.
        with_mask: Whether masks of instances are learned.
    """
    with DATASETS.switch_scope_and_registry(scope) as registry:
        kind = registry.get(dataset['type']) if isinstance(dataset['type'], str) else (
            dataset['type'])
    name = dataset.get('ann_file') or dataset.get('data_root') or str(dataset['type'])
    if kind is None:
        return Source([], problems=[Problem(ERROR, 'data-set', name, 'is of an unknown type '
                                            f'{dataset["type"]!r}; check custom_imports')])
    try:
        if scope == 'mmseg' and hasattr(kind, 'paired_files'):
            return _folder_seg(dataset, kind)
        if scope == 'mmdet' and reads_as_coco(kind):
            return _coco(dataset, kind, with_mask)
        if scope == 'mmpretrain':
            return _classification(dataset, name)
        return _any(dataset, scope)
    except Exception as error:  # a data set may raise anything
        return Source([], problems=[Problem(ERROR, 'data-set', name,
                                            f'cannot be read: {one_line(error)}')])


def _folder_seg(dataset: dict, kind: type) -> Source:
    """A FolderSegDataset, which itself would stop at the first problem."""
    metainfo = _metainfo(dataset, kind)
    prefix = dataset.get('data_prefix') or {}
    folders = [Path(os.path.join(dataset.get('data_root') or '', prefix.get(key) or ''))
               for key in ('img_path', 'seg_map_path')]
    files = kind.paired_files(*folders, dataset.get('seg_map_suffix', '.png'))
    source = Source(list(metainfo['classes']), palette=metainfo.get('palette'),
                    ignore_index=dataset.get('ignore_index', 255))
    source.to_classes = _reduce_zero if dataset.get('reduce_zero_label') else source.to_classes
    source.samples = [Sample(image, label_map=label_map) for image, label_map in files.pairs]
    source.problems += [Problem(ERROR, 'label-map-missing', path, f'has no label map in '
                                f'{folders[1]}') for path in files.without_map]
    source.problems += [Problem(WARNING, 'image-of-label-map-missing', path, 'is the label map of '
                                f'no image in {folders[0]}') for path in files.without_image]
    source.problems += [Problem(ERROR, 'name-doubled', text.split(' and ')[0],
                                text.split(' ', 1)[1]) for text in files.doubled]
    return source


def _coco(dataset: dict, kind: type, with_mask: bool) -> Source:
    metainfo = _metainfo(dataset, kind)
    classes = list(metainfo['classes'])
    root, prefix = dataset.get('data_root') or '', dataset.get('data_prefix') or {}
    ann_file = os.path.join(root, dataset['ann_file'])
    source = Source(classes, palette=metainfo.get('palette'))
    content = read_json(ann_file)
    structure = list(structure_problems(content, ann_file))
    source.problems += structure
    if structure:  # nothing else can be told
        return source
    if getattr(kind, 'checks_itself', False):
        source.problems += category_problems(content, ann_file, classes)
    else:
        text = numbering_problem(classes, [item['name'] for item in content['categories']])
        if text:
            source.problems.append(Problem(ERROR, 'class-unknown', ann_file, text))
    problems, usable = check_instances(content, ann_file, with_mask)
    source.problems += problems
    labels = {number: label for label, number in enumerate(category_ids(content, classes))}
    found: dict = {image['id']: [] for image in content['images']}
    for annotation in usable:
        x, y, width, height = annotation['bbox']
        label = labels.get(annotation['category_id'])
        if label is None or min(width, height) < 1 or annotation.get('ignore'):
            continue
        found[annotation['image_id']].append(Instance(
            label, [x, y, x + width, y + height],
            annotation.get('segmentation') if with_mask else None))
    folder = os.path.join(root, prefix.get('img') or prefix.get('img_path') or '')
    source.samples = [Sample(os.path.join(folder, image['file_name']),
                             (image['height'], image['width']), instances=found[image['id']])
                      for image in content['images']]
    return source


def _classification(dataset: dict, name: str) -> Source:
    """mmpretrain's data sets; of a list of images all bad lines are told."""
    try:
        built = _build(dataset, 'mmpretrain')
    except Exception as error:  # a data set may raise anything
        path = os.path.join(dataset.get('data_root') or '', dataset.get('ann_file') or '')
        problems = list_problems(path) if os.path.isfile(path) else []
        return Source([], problems=problems or [
            Problem(ERROR, 'data-set', name, f'cannot be read: {one_line(error)}')])
    source = Source(list(built.metainfo.get('classes') or []))
    if reads_as_list(built):
        source.problems += list_problems(built.ann_file, len(source.classes) or None)
    for info in _infos(built):
        label = info.get('gt_label')
        label = int(label) if isinstance(label, (int, np.integer)) else None  # else several
        if label is not None and label < len(source.classes):
            source.samples.append(Sample(info['img_path'], label=label))
        else:
            source.samples.append(Sample(info['img_path']))
    return source


def _any(dataset: dict, scope: str) -> Source:
    """Any other data set of mmseg or mmdet, by what it hands to its pipeline."""
    built = _build(dataset, scope)
    metainfo = built.metainfo
    source = Source(list(metainfo.get('classes') or []), palette=metainfo.get('palette'),
                    ignore_index=getattr(built, 'ignore_index', 255))
    if getattr(built, 'reduce_zero_label', False) or getattr(built, 'label_map', None):
        source.to_classes = _as_mmseg(built.reduce_zero_label, built.label_map)
    for info in _infos(built):
        height, width = info.get('height'), info.get('width')
        instances = None
        if scope == 'mmdet':
            instances = [Instance(item['bbox_label'], list(item['bbox']), item.get('mask'))
                         for item in info.get('instances', ())]
        source.samples.append(Sample(
            info['img_path'], (height, width) if height and width else None,
            info.get('seg_map_path') if scope == 'mmseg' else None, instances))
    return source


def _build(dataset: dict, scope: str):
    dataset = copy.deepcopy(dataset)
    dataset.update(pipeline=[], test_mode=True)
    with DATASETS.switch_scope_and_registry(scope) as registry:
        return registry.build(dataset)


def _infos(built) -> Iterator[dict]:
    return (built.get_data_info(i) for i in range(len(built)))


def _metainfo(dataset: dict, kind: type) -> dict:
    return {**(getattr(kind, 'METAINFO', None) or {}), **(dataset.get('metainfo') or {})}


def _reduce_zero(labels: np.ndarray) -> np.ndarray:
    """mmseg's ``reduce_zero_label``: 1 becomes 0, and 0 is ignored."""
    return np.where(labels == 0, 255, np.where(labels == 255, 255, labels - 1)).astype(np.uint8)


def _as_mmseg(reduce_zero_label: bool, label_map: dict | None) -> Callable:
    """What mmseg's LoadAnnotations does to the values of a label map."""
    def to_classes(labels: np.ndarray) -> np.ndarray:
        labels = _reduce_zero(labels) if reduce_zero_label else labels
        if not label_map:
            return labels
        table = np.arange(256)
        for old, new in label_map.items():
            table[old] = new % 256
        return table.astype(np.uint8)[labels]
    return to_classes
