"""Semantic segmentation from two folders: images, and label maps of the same names."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from mmengine.logging import print_log
from mmseg.datasets import BaseSegDataset
from mmseg.registry import DATASETS

from ..engine.overlays import class_colours
from .label_map import add_label_map_check, check_values, read_label_map
from .load_image import use_checked_loading

IMG_SUFFIXES = ('.jpg', '.jpeg', '.png', '.bmp', '.tif', '.tiff', '.webp')
# Label maps read before training starts; the rest are checked as they are loaded.
_CHECKED_AT_START = 20


@DATASETS.register_module()
class FolderSegDataset(BaseSegDataset):
    """Pairs each image with the label map of the same path and stem, whatever its suffix.

    A label map is an 8-bit single-channel PNG (palette PNGs too) of the image's size, holding
    class indices, and ``ignore_index`` where no class is known. mmseg itself would train on a map
    of any values; here one that does not fit is an error that names the file. Images are read by
    :class:`.load_image.LoadCheckedImage`.

    Args:
        data_prefix: ``dict(img_path=..., seg_map_path=...)``, folders under ``data_root``.
        metainfo: ``dict(classes=[...])``, and ``palette`` where the colours matter.
        **kwargs: As in mmseg's BaseSegDataset.

    Raises:
        FileNotFoundError: A folder is missing or empty, or an image has no label map.
        ValueError: No classes, two images of one stem, or a label map that does not fit.
    """

    checks_itself = True  # what engine.preflight checks for other data sets

    def __init__(self, *args, metainfo: dict, **kwargs) -> None:
        if not metainfo.get('classes'):
            raise ValueError('FolderSegDataset needs class names: metainfo=dict(classes=[...])')
        # mmseg's random colours are often told apart by nobody
        palette = class_colours(len(metainfo['classes']), metainfo.get('palette'))
        super().__init__(*args, metainfo=dict(metainfo, palette=palette), **kwargs)
        steps = self.pipeline.transforms
        use_checked_loading(steps)
        add_label_map_check(steps, self.metainfo['classes'], self.ignore_index)

    @staticmethod
    def paired_files(img_dir: Path, map_dir: Path, map_suffix: str) -> PairedFiles:
        """See :func:`pair_files`; for a check that goes on after the first error."""
        return pair_files(img_dir, map_dir, map_suffix)

    def load_data_list(self) -> list[dict]:
        """One dict an image, sorted by path; the keys are those of BaseSegDataset."""
        img_dir, map_dir = (Path(self.data_prefix[key]) for key in ('img_path', 'seg_map_path'))
        files = self.paired_files(img_dir, map_dir, self.seg_map_suffix)
        if files.doubled:
            raise ValueError(files.doubled[0])
        total = len(files.pairs) + len(files.without_map)
        if not total:
            raise FileNotFoundError(f'no images in {img_dir}; read are {", ".join(IMG_SUFFIXES)}')
        if files.without_map:
            raise FileNotFoundError(
                f'{len(files.without_map)} of {total} images have no label map in {map_dir}: '
                f'{_few(files.without_map)}; a label map has the name of its image and ends in '
                f'{self.seg_map_suffix}')
        if files.without_image:
            print_log(f'{len(files.without_image)} label maps in {map_dir} belong to no image in '
                      f'{img_dir} and are not used: {_few(files.without_image)}',
                      logger='current', level=30)
        data_list = [
            dict(img_path=image, seg_map_path=label_map, label_map=None,
                 reduce_zero_label=self.reduce_zero_label, seg_fields=[])
            for image, label_map in files.pairs
        ]
        classes = self.metainfo['classes']
        raw_values = len(classes) + int(self.reduce_zero_label)
        for info in data_list[:_CHECKED_AT_START]:
            path = info['seg_map_path']
            check_values(path, read_label_map(path), raw_values, classes, self.ignore_index)
        return data_list


@dataclass
class PairedFiles:
    """Images and label maps of two folders; paths, sorted.

    Attributes:
        pairs: (image, label map).
        without_map, without_image: Those that are alone.
        doubled: Sentences on files of one name but for the suffix.
    """

    pairs: list[tuple[str, str]] = field(default_factory=list)
    without_map: list[str] = field(default_factory=list)
    without_image: list[str] = field(default_factory=list)
    doubled: list[str] = field(default_factory=list)


def pair_files(img_dir: Path, map_dir: Path, map_suffix: str) -> PairedFiles:
    """Pair the images under one folder with the label maps under another, by path and stem.

    Raises:
        FileNotFoundError: A folder is missing.
    """
    for folder, what in ((img_dir, 'image'), (map_dir, 'label map')):
        if not folder.is_dir():
            raise FileNotFoundError(f'the {what} folder {folder} does not exist')
    found = PairedFiles()
    images = _by_stem(img_dir, IMG_SUFFIXES, found.doubled)
    maps = _by_stem(map_dir, (map_suffix,), found.doubled)
    found.pairs = [(images[stem], maps[stem]) for stem in sorted(images.keys() & maps.keys())]
    found.without_map = sorted(images[stem] for stem in images.keys() - maps.keys())
    found.without_image = sorted(maps[stem] for stem in maps.keys() - images.keys())
    return found


def _by_stem(folder: Path, suffixes: Iterable[str], doubled: list[str]) -> dict[str, str]:
    """Files under ``folder`` that end in one of ``suffixes``, by their path below it without it."""
    found: dict[str, str] = {}
    for path in sorted(folder.rglob('*')):
        name = os.fspath(path.relative_to(folder))
        suffix = next((end for end in suffixes if name.lower().endswith(end.lower())), None)
        if suffix is None or path.name.startswith('.') or not path.is_file():
            continue
        stem = name[:-len(suffix)]
        if stem in found:
            doubled.append(f'{found[stem]} and {path} have the same name but for the suffix; '
                           'an image and its label map are paired by that name')
        found[stem] = str(path)
    return found


def _few(names: list[str], count: int = 3) -> str:
    return ', '.join(names[:count]) + (', ...' if len(names) > count else '')
