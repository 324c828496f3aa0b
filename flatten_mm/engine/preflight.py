"""Checks before a run starts: the files a config names, and its classes."""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

from mmengine.config import Config
from mmengine.dataset import BaseDataset
from mmengine.registry import DATASETS
from mmengine.runner import BaseLoop, Runner
from torch import nn
from torch.utils.data import Dataset

from ..checkpoint.load import NO_FILE_HINT
from .annotations import check_annotations
from .config import scope_of
from .errors import UserError, reported_as

_MAX_IMAGES_CHECKED = 2000  # a stat each: a second or so, also over a network
_EMPTY = ('the {split} data set is empty: {source} brings no image that can be used; check that it '
          'holds annotations of the classes of the config (filter_cfg drops images without)')
# Where the number of classes of a module is not that of the data set.
OTHER_CLASSES = ('backbone', 'rpn_head', 'panoptic', 'semantic_head')


def check_data_paths(cfg: Config, splits: Sequence[str]) -> None:
    """Check that the folders and annotation files of data sets exist.

    Args:
        cfg: The config.
        splits: Which of ``'train'``, ``'val'`` and ``'test'`` will run.

    Raises:
        UserError: One does not exist; the sentence names it and the layout that belongs there.
    """
    for split in splits:
        for dataset in dataset_cfgs(cfg.get(f'{split}_dataloader')):
            _check_dataset_cfg(dataset, split, scope_of(cfg))
        for metric in _as_list(cfg.get(f'{split}_evaluator')):
            path = metric.get('ann_file')
            if isinstance(path, str) and _is_local(path) and not os.path.isfile(path):
                raise UserError(f'annotation file {path} of {split}_evaluator '
                                f'({metric.get("type")}) does not exist')


def check_pretrained(model: dict) -> None:
    """Check that checkpoints named by ``init_cfg`` or ``pretrained`` exist, if they are local.

    Raises:
        UserError: One does not.
    """
    for place, value in walk(model, 'model'):
        key = place.rpartition('.')[2]
        path = value if key == 'pretrained' else None
        if key == 'init_cfg':
            path = next((item.get('checkpoint') for item in _as_list(value)
                         if isinstance(item, dict)
                         and item.get('type', 'Pretrained') == 'Pretrained'), None)
        if isinstance(path, str) and _is_local(path) and not os.path.isfile(
                os.path.expanduser(path)):
            raise UserError(f'pretrained checkpoint {path} ({place}) does not exist; '
                            f'{NO_FILE_HINT} --cfg-options {place}=None')


def check_dataset(dataset: Dataset, split: str) -> None:
    """Check a built data set: it holds images, they exist, and its annotations can be used.

    Raises:
        UserError: It is empty, images or label maps are missing, or see :mod:`.annotations`.
    """
    for part in _parts(dataset):
        if not isinstance(part, BaseDataset):
            continue
        if len(part) == 0:
            raise UserError(_EMPTY.format(split=split, source=part.ann_file or part.data_prefix))
        step = max(1, len(part) // _MAX_IMAGES_CHECKED)
        paths = [path for i in range(0, len(part), step) for path in _files(part.get_data_info(i))]
        missing = [path for path in paths if not os.path.exists(path)]
        if missing:
            raise UserError(
                f'{len(missing)} of {len(paths)} files checked of the {split} data set do not '
                f'exist, the first being {missing[0]}; check data_root, data_prefix and suffixes')
        check_annotations(part, split)


def check_classes(model: nn.Module, dataset: Dataset, split: str) -> None:
    """Check that the model's heads have as many classes as the data set.

    Raises:
        UserError: They differ; the sentence names both counts.
    """
    metainfo = getattr(dataset, 'metainfo', None) or {}
    classes = metainfo.get('classes')
    if classes is None or 'thing_classes' in metainfo:  # panoptic heads share them out
        return
    for name, count in class_counts(model).items():
        if count != len(classes):
            raise UserError(
                f'{name} has num_classes={count}, but the {split} data set has {len(classes)} '
                f'classes ({", ".join(list(classes)[:5])}{", …" if len(classes) > 5 else ""}); '
                'set one to match the other')


def class_counts(model: nn.Module) -> dict[str, int]:
    """``num_classes`` of the modules of ``model`` that classify the classes of the data set."""
    if hasattr(model, 'language_model'):  # open vocabulary: the head's classes are tokens
        return {}
    counts = {}
    for name, module in model.named_modules():
        count = getattr(module, 'num_classes', None)
        if name and isinstance(count, int) and not any(part in name for part in OTHER_CLASSES):
            counts[name] = count
    return counts


def check_runner_data(runner: Runner, *splits: str) -> None:
    """Build the loops of ``splits`` and check their data sets and classes.

    Raises:
        UserError: See :func:`check_dataset` and :func:`check_classes`; or the data sets name
            their classes differently, as folders of which one split lacks some do.
    """
    model = getattr(runner.model, 'module', runner.model)
    first: tuple[str, list] | None = None
    for split in splits:
        loop = _build_loop(runner, split)
        if loop is None:
            continue
        dataset = loop.dataloader.dataset
        check_dataset(dataset, split)
        check_classes(model, dataset, split)
        classes = list((getattr(dataset, 'metainfo', None) or {}).get('classes') or [])
        first = first or (split, classes)
        if classes and first[1] and classes != first[1]:
            raise UserError(f'the {split} data set has the classes {_few(classes)}, but the '
                            f'{first[0]} data set {_few(first[1])}; labels are numbers, so both '
                            'must have the same names in the same order')


def _few(names: list, count: int = 10) -> str:
    return ', '.join(map(str, names[:count])) + (', …' if len(names) > count else '')


def _check_dataset_cfg(dataset: dict, split: str, scope: str) -> None:
    signature = _signature(dataset, scope)
    if 'download' in signature or not _local_backend(dataset):
        return
    root = dataset.get('data_root')
    root = os.path.expanduser(root) if isinstance(root, str) else ''
    layout = _layout(dataset, signature, scope)
    if root and _is_local(root) and not os.path.isdir(root):
        raise UserError(f'data folder {root} of the {split} data set does not exist; '
                        f'expected there: {layout}')
    prefix = dataset.get('data_prefix') or {}
    if isinstance(prefix, str):
        prefix = dict(img_path=prefix)
    # ImageNet and others that know a split add it to these paths themselves
    if dataset.get('split'):
        prefix = {}
    for key, value in prefix.items():
        folder = _joined(root, value) if isinstance(value, str) else ''
        if not folder or not _is_local(folder):
            continue
        if not os.path.isdir(folder):
            raise UserError(f'folder {folder} of the {split} data set does not exist; '
                            f'expected: {layout}')
        if scope == 'mmseg' and key == 'img_path' and not dataset.get('ann_file'):
            _check_suffix(dataset, signature, folder, split)
    ann_file = dataset.get('ann_file')
    if isinstance(ann_file, str) and ann_file and not dataset.get('split'):
        path = _joined(root, ann_file)
        if _is_local(path) and not os.path.exists(path):
            raise UserError(f'annotation file {path} of the {split} data set does not exist; '
                            f'expected: {layout}')


def _layout(dataset: dict, signature: dict, scope: str) -> str:
    """One line on the files that belong into the data set's folders."""
    def default(key: str, other: str) -> str:
        value = dataset.get(key, signature.get(key, other))
        return value if isinstance(value, str) else other

    prefix = dataset.get('data_prefix') or {}
    prefix = prefix if isinstance(prefix, dict) else dict(img_path=prefix)
    images = prefix.get('img_path') or prefix.get('img') or ''
    root = dataset.get('data_root') or ''
    if scope == 'mmseg':
        labels = _joined(root, prefix.get('seg_map_path'))
        return (f'images {_joined(root, images)}/NAME{default("img_suffix", ".*")} and '
                f'label maps {labels}/NAME{default("seg_map_suffix", ".*")}')
    ann_file = dataset.get('ann_file')
    if scope == 'mmdet':
        return (f'annotations {_joined(root, ann_file)} and the images they name in '
                f'{_joined(root, images)}')
    if ann_file:
        return (f'a list {_joined(root, ann_file)} of lines "image label" and the images in '
                f'{_joined(root, images)}')
    images = images or dataset.get('split') or ''  # ImageNet names its folders after the split
    return f'a folder a class, {_joined(root, images)}/CLASS/NAME.jpg'


def _joined(root: str, path: str | None) -> str:
    """A path of a data set as mm joins it, without the slash at its end."""
    path = os.path.join(root, os.path.expanduser(path or ''))
    return path.rstrip('/') or path


def _check_suffix(dataset: dict, signature: dict, folder: str, split: str) -> None:
    """mmseg takes every file with the suffix, so that a wrong one gives an empty data set."""
    suffix = dataset.get('img_suffix', signature.get('img_suffix'))
    if isinstance(suffix, str) and not any(Path(folder).rglob(f'*{suffix}')):
        found = sorted({path.suffix for path in islice(Path(folder).rglob('*.*'), 1000)})
        raise UserError(f'no image NAME{suffix} in {folder} of the {split} data set '
                        f'(found: {", ".join(found) or "nothing"}); set img_suffix or the folder')


def _build_loop(runner: Runner, split: str) -> BaseLoop | None:
    """The loop of ``split`` with its data set, which the runner builds when first asked."""
    dataset = (runner.cfg.get(f'{split}_dataloader') or {}).get('dataset') or {}
    try:
        with reported_as(f'cannot build the {split} data set or its loop'):
            return getattr(runner, f'{split}_loop')
    except UserError as error:
        if 'at least one array to concatenate' in str(error):  # mmengine serializes no images
            leaf = next(dataset_cfgs(dataset))
            raise UserError(_EMPTY.format(
                split=split, source=leaf.get('ann_file') or leaf.get('data_prefix'))) from error
        raise


def _parts(dataset: Dataset) -> Iterator[Dataset]:
    """The data sets that wrappers hold."""
    if hasattr(dataset, 'datasets'):
        for inner in dataset.datasets:
            yield from _parts(inner)
    elif isinstance(getattr(dataset, 'dataset', None), Dataset):
        yield from _parts(dataset.dataset)
    else:
        yield dataset


def dataset_cfgs(dataloader: dict | list | None) -> Iterator[dict]:
    """The configs of data sets that wrappers hold."""
    for item in _as_list(dataloader):
        if 'datasets' in item:
            yield from (leaf for inner in item['datasets'] for leaf in dataset_cfgs(inner))
        elif isinstance(item.get('dataset'), (dict, list)):
            yield from dataset_cfgs(item['dataset'])
        else:
            yield item


def _files(info: dict) -> Iterator[str]:
    for key in ('img_path', 'seg_map_path'):
        path = info.get(key)
        if isinstance(path, str) and _is_local(path):
            yield path


def _signature(dataset: dict, scope: str) -> dict:
    """Parameters of the data set's class, with their defaults."""
    kind = dataset.get('type')
    if isinstance(kind, str):
        with DATASETS.switch_scope_and_registry(scope) as registry:
            kind = registry.get(kind)
    if kind is None:
        return {}  # building it says what is wrong
    # of the class itself: what it hands to its bases it may set there as well
    return {name: value.default for name, value in inspect.signature(kind).parameters.items()}


def _local_backend(dataset: dict) -> bool:
    backend = (dataset.get('backend_args') or dataset.get('file_client_args') or {})
    return backend.get('backend', 'local') in ('local', 'disk')


def _is_local(path: str) -> bool:
    return '://' not in path


def _as_list(value: dict | list | tuple | None) -> list:
    if value is None:
        return []
    return list(value) if isinstance(value, (list, tuple)) else [value]


def walk(node: object, place: str) -> Iterator[tuple[str, object]]:
    """Every value of nested dicts and lists with its place, keys and indices with dots between."""
    if isinstance(node, dict):
        items = list(node.items())
    else:
        items = list(enumerate(node)) if isinstance(node, (list, tuple)) else []
    for key, value in items:
        yield f'{place}.{key}', value
        yield from walk(value, f'{place}.{key}')
