"""Detection and instance segmentation from a folder of images and a COCO annotation file."""

from __future__ import annotations

import logging
import os
from collections import defaultdict
from collections.abc import Iterable, Sequence

from mmdet.datasets import CocoDataset
from mmdet.evaluation import CocoMetric
from mmdet.registry import DATASETS, METRICS
from mmengine.logging import print_log

from .coco_file import (
    category_ids,
    category_problems,
    check_instances,
    read_json,
    structure_problems,
)
from .load_image import use_checked_loading
from .problems import ERROR, WARNING, Problem

_SHOWN = 3


class NamedCOCO(CocoDataset.COCOAPI):
    """COCO content that numbers classes by their names.

    mmdet's own takes the categories in the order of the file and closes the gaps of absent ones.

    Args:
        content: A sound COCO content (see :mod:`.coco_file`).
    """

    def __init__(self, content: dict) -> None:
        super().__init__()
        # many programs write no "info", and loadRes wants one
        self.dataset = dict(dict(info={}), **content)
        self.createIndex()
        self.img_ann_map, self.cat_img_map = self.imgToAnns, self.catToImgs

    def get_cat_ids(self, cat_names: Sequence[str] = (), **kwargs) -> list[int]:
        """The id of each class, in the order of ``cat_names``."""
        ids = category_ids(self.dataset, cat_names)
        for number, name in zip(ids, cat_names):
            self.cats.setdefault(number, dict(id=number, name=name))
        return ids


@DATASETS.register_module()
class FolderCocoDataset(CocoDataset):
    """mmdet's CocoDataset that refuses what CocoDataset drops, mislabels or crashes on.

    Classes are found by name, in any order, and the file may lack some. Annotations that cannot
    be used are named by their ids: of an unknown category, with a box outside the image, a polygon
    of two points, an RLE of another size (:mod:`.coco_file` has the list). Images are read by
    :class:`.load_image.LoadCheckedImage`.

    Args:
        metainfo: ``dict(classes=[...])``, names of categories.
        with_mask: Whether every instance must have a ``segmentation``.
        bad_instances: ``'refuse'``, or ``'drop'`` to leave annotations that cannot be used out
            with a warning.
        **kwargs: As in mmdet's CocoDataset.

    Raises:
        FileNotFoundError: The annotation file, the image folder or its first image is missing.
        ValueError: The file is no COCO file, does not fit the classes, or has instances that
            cannot be used.
    """

    checks_itself = True  # what engine.preflight checks for other data sets

    def __init__(self, *args, with_mask: bool = False, bad_instances: str = 'refuse',
                 **kwargs) -> None:
        if bad_instances not in ('refuse', 'drop'):
            raise ValueError(f"bad_instances={bad_instances!r}; expected 'refuse' or 'drop'")
        self.with_mask = with_mask
        self.bad_instances = bad_instances
        super().__init__(*args, **kwargs)
        use_checked_loading(self.pipeline.transforms)

    def load_data_list(self) -> list[dict]:
        """One dict an image; the keys are those of CocoDataset."""
        for path, what in ((self.ann_file, 'annotation file'),
                           (self.data_prefix['img'], 'image folder')):
            if not os.path.exists(path):
                raise FileNotFoundError(f'the {what} {path} does not exist')
        data_list = super().load_data_list()
        self._check_images(data_list)
        if not any(info['instances'] for info in data_list):
            raise ValueError(f'{self.ann_file} has no usable instance of '
                             f'{list(self.metainfo["classes"])}')
        return data_list

    def COCOAPI(self, ann_file: str) -> NamedCOCO:
        """What CocoDataset opens its file with: check the content and index it."""
        content = read_json(ann_file)
        classes = self.metainfo['classes']
        _refuse(structure_problems(content, self.ann_file), 'entries')
        found = [*category_problems(content, self.ann_file, classes)]
        _refuse((problem for problem in found if problem.level == ERROR), 'categories')
        problems, usable = check_instances(content, self.ann_file, self.with_mask)
        found += problems
        bad = [problem for problem in found if problem.level == ERROR]
        if bad and self.bad_instances == 'refuse':
            _refuse(bad, 'annotations', '; mend or delete them, or leave them out with '
                    'bad_instances="drop" in the data set')
        _warn([problem for problem in found if problem.level == WARNING])
        if bad:
            print_log(f'{len(bad)} annotations of {self.ann_file} cannot be used and are left '
                      f'out: {_listed(bad)}', logger='current', level=logging.WARNING)
        return NamedCOCO(dict(content, annotations=usable))

    def _check_images(self, data_list: list[dict]) -> None:
        if not data_list:
            raise ValueError(f'{self.ann_file} lists no images')
        first = data_list[0]['img_path']
        if not os.path.isfile(first):
            raise FileNotFoundError(f'{first}, the first image of {self.ann_file}, does not exist')


@METRICS.register_module()
class FolderCocoMetric(CocoMetric):
    """mmdet's CocoMetric for the files that FolderCocoDataset takes: classes are found by name,
    annotations that cannot be used do not count, and an "info" entry need not be there."""

    def __init__(self, *args, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        if self._coco_api is not None:
            content = self._coco_api.dataset
            _, usable = check_instances(content, '', 'segm' in self.metrics)
            self._coco_api = NamedCOCO(dict(content, annotations=usable))


def _refuse(problems: Iterable[Problem], what: str, mend: str = '') -> None:
    problems = list(problems)
    if problems:
        count = f'{len(problems)} {what} of ' if len(problems) > 1 else ''
        raise ValueError(f'{count}{problems[0].file} cannot be used: {_listed(problems)}{mend} '
                         '(tools/check_data.py lists every problem)')


def _warn(problems: list[Problem]) -> None:
    """One warning a kind."""
    kinds = defaultdict(list)
    for problem in problems:
        kinds[problem.kind].append(problem)
    for alike in kinds.values():
        more = f' (and {len(alike) - 1} more like it)' if len(alike) > 1 else ''
        print_log(f'{alike[0]}{more}', logger='current', level=logging.WARNING)


def _listed(problems: list[Problem]) -> str:
    texts = [f'{problem.where} {problem.text}'.strip() for problem in problems[:_SHOWN]]
    more = len(problems) - _SHOWN
    return '; '.join(texts) + (f'; and {more} more' if more > 0 else '')
