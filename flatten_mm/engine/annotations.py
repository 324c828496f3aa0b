"""What the annotations of a built data set hold that mm would drop, mislabel or crash on."""

from __future__ import annotations

import os

from mmengine.dataset import BaseDataset

from ..datasets.coco_file import check_instances, read_json, structure_problems
from ..datasets.image_list import list_problems
from ..datasets.label_map import add_label_map_check
from ..datasets.load_image import use_checked_loading
from ..datasets.problems import ERROR, Problem
from .errors import UserError, reported_as
from .runner import warn

# Masks that mmdet crashes on; other annotations that cannot be used it leaves out.
_CRASHES = ('rle-size', 'rle-counts', 'polygon-malformed', 'mask-missing', 'box-malformed', 'area')


def check_annotations(dataset: BaseDataset, split: str) -> None:
    """Check what is cheap to check now, and have the rest checked as it is loaded.

    Our own data sets do so themselves; this is for those of the mm libraries.

    Raises:
        UserError: Annotations that training would crash on or learn wrongly.
    """
    if getattr(dataset, 'checks_itself', False):
        return
    steps = getattr(dataset.pipeline, 'transforms', [])
    use_checked_loading(steps)
    classes = dataset.metainfo.get('classes')
    if classes and hasattr(dataset, 'reduce_zero_label'):  # mmseg's
        add_label_map_check(steps, classes, getattr(dataset, 'ignore_index', 255))
    if reads_as_coco(type(dataset)):
        _check_coco(dataset, split)
    elif classes and reads_as_list(dataset):
        _refuse(list_problems(dataset.ann_file, len(classes)), 'lines')


def reads_as_coco(kind: type) -> bool:
    """Whether a data set is mmdet's CocoDataset or a user's own made of it; mmdet's others
    (LVIS, Objects365, panoptic) number classes in their own ways."""
    if not any(base.__name__ == 'CocoDataset' for base in kind.__mro__):
        return False
    loader = kind.load_data_list
    return loader.__qualname__ == 'CocoDataset.load_data_list' or not loader.__module__.startswith(
        'mmdet.')


def reads_as_list(dataset: BaseDataset) -> bool:
    """Whether the data set is mmpretrain's CustomDataset (ImageNet too) with an annotation file."""
    loader = type(dataset).load_data_list
    return (loader.__qualname__ == 'CustomDataset.load_data_list'
            and getattr(dataset, 'with_label', False) and os.path.isfile(dataset.ann_file or ''))


def numbering_problem(classes: list[str], names: list[str]) -> str:
    """What mmdet's CocoDataset would number wrongly; '' where it does not.

    Args:
        classes: Of the config.
        names: The categories of the file, in its order.

    Returns:
        A sentence that reads on after the file's name.
    """
    by_name = 'or use FolderCocoDataset and FolderCocoMetric, which go by name'
    in_file = [name for name in names if name in classes]
    absent = [name for name in classes if name not in names]
    in_order = in_file == classes[:len(in_file)]
    if absent and (not in_order or len(in_file) < len(names)):
        return (f'does not name class {absent[0]!r} among its categories ({", ".join(names[:10])}),'
                f' and mmdet would number the others anew; set the classes of its metainfo to '
                f'those names, capitals too, {by_name}')
    if not in_order:
        return (f'has its categories in another order than the classes ({", ".join(classes)}), and '
                f'mmdet numbers them by that; give {",".join(in_file)}, {by_name}')
    return ''


def _check_coco(dataset: BaseDataset, split: str) -> None:
    """mmdet numbers classes in the order of the file, and closes the gaps of absent ones."""
    path = dataset.ann_file
    with reported_as(f'cannot check the {split} data set'):
        content = read_json(path)
    _refuse(list(structure_problems(content, path)), 'entries')
    if split != 'train' and 'info' not in content:
        raise UserError(f'{path} has no "info" entry, without which pycocotools cannot evaluate; '
                        'add "info": {} to it')
    names = [item['name'] for item in content['categories']]
    classes = list(dataset.metainfo['classes'])
    wrong = numbering_problem(classes, names)
    if wrong:
        raise UserError(f'{path} of the {split} data set {wrong}')
    absent = [name for name in classes if name not in names]
    if absent:
        warn(f'{path} has no category {", ".join(absent)}: none of its images is labelled with it')
    unused = [name for name in names if name not in classes]
    if unused:
        warn(f'{path}: categories {", ".join(unused)} are not among the classes, '
             'their annotations are left out')
    with_mask = any(getattr(step, 'with_mask', False) for step in dataset.pipeline.transforms)
    problems, _ = check_instances(content, path, with_mask)
    _refuse([problem for problem in problems if problem.kind in _CRASHES], 'annotations')
    left_out = [problem for problem in problems if problem.level == ERROR]
    if left_out:
        warn(f'{len(left_out)} annotations of {path} cannot be used and are left out, the first: '
             f'{left_out[0].where} {left_out[0].text} (tools/check_data.py lists all)')


def _refuse(problems: list[Problem], what: str) -> None:
    errors = [problem for problem in problems if problem.level == ERROR]
    if errors:
        raise UserError(f'{len(errors)} {what} of {errors[0].file} cannot be used, the first: '
                        f'{errors[0].where} {errors[0].text} (tools/check_data.py lists all)')
