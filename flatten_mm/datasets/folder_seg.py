"""Semantic segmentation from two folders: images, and label maps of the same names."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from mmengine.logging import print_log
from mmseg.datasets import BaseSegDataset
from mmseg.registry import DATASETS
from PIL import Image

from ..engine.overlays import class_colours

IMG_SUFFIXES = ('.jpg', '.jpeg', '.png', '.bmp', '.tif', '.tiff', '.webp')
# Label maps read before training starts; the rest are checked as they are loaded.
_CHECKED_AT_START = 20


@DATASETS.register_module()
class FolderSegDataset(BaseSegDataset):
    """Pairs each image with the label map of the same path and stem, whatever its suffix.

    A label map is an 8-bit single-channel PNG (palette PNGs too) of the image's size, holding
    class indices, and ``ignore_index`` where no class is known. mmseg itself would train on a map
    of any values; here one that does not fit is an error that names the file.

    Args:
        data_prefix: ``dict(img_path=..., seg_map_path=...)``, folders under ``data_root``.
        metainfo: ``dict(classes=[...])``, and ``palette`` where the colours matter.
        **kwargs: As in mmseg's BaseSegDataset.

    Raises:
        FileNotFoundError: A folder is missing or empty, or an image has no label map.
        ValueError: No classes, two images of one stem, or a label map that does not fit.
    """

    def __init__(self, *args, metainfo: dict, **kwargs) -> None:
        if not metainfo.get('classes'):
            raise ValueError('FolderSegDataset needs class names: metainfo=dict(classes=[...])')
        # mmseg's random colours are often told apart by nobody
        palette = class_colours(len(metainfo['classes']), metainfo.get('palette'))
        super().__init__(*args, metainfo=dict(metainfo, palette=palette), **kwargs)
        self._check_after_loading()

    def load_data_list(self) -> list[dict]:
        """One dict an image, sorted by path; the keys are those of BaseSegDataset."""
        img_dir, map_dir = (Path(self.data_prefix[key]) for key in ('img_path', 'seg_map_path'))
        for folder, what in ((img_dir, 'image'), (map_dir, 'label map')):
            if not folder.is_dir():
                raise FileNotFoundError(f'the {what} folder {folder} does not exist')
        images = _by_stem(img_dir, IMG_SUFFIXES)
        maps = _by_stem(map_dir, (self.seg_map_suffix,))
        if not images:
            raise FileNotFoundError(f'no images in {img_dir}; read are {", ".join(IMG_SUFFIXES)}')
        without = sorted(str(images[stem]) for stem in images.keys() - maps.keys())
        if without:
            raise FileNotFoundError(
                f'{len(without)} of {len(images)} images have no label map in {map_dir}: '
                f'{_few(without)}; a label map has the name of its image and ends in '
                f'{self.seg_map_suffix}')
        unused = maps.keys() - images.keys()
        if unused:
            print_log(f'{len(unused)} label maps in {map_dir} belong to no image in {img_dir} and '
                      f'are not used: {_few(sorted(str(maps[stem]) for stem in unused))}',
                      logger='current', level=30)
        data_list = [
            dict(img_path=str(images[stem]), seg_map_path=str(maps[stem]), label_map=None,
                 reduce_zero_label=self.reduce_zero_label, seg_fields=[])
            for stem in sorted(images)
        ]
        raw_values = len(self.metainfo['classes']) + int(self.reduce_zero_label)
        for info in data_list[:_CHECKED_AT_START]:
            with Image.open(info['seg_map_path']) as label_map:
                self._check_labels(info['seg_map_path'], label_map.mode, np.asarray(label_map),
                                   raw_values)
        return data_list

    def _check_after_loading(self) -> None:
        """Put the check of a loaded map behind LoadAnnotations, so no file is decoded twice."""
        steps = self.pipeline.transforms
        for place, step in enumerate(steps):
            if type(step).__name__ == 'LoadAnnotations':
                steps.insert(place + 1, self._check_loaded)
                return

    def _check_loaded(self, results: dict) -> dict:
        path, labels = results['seg_map_path'], results['gt_seg_map']
        with Image.open(path) as label_map:  # reads the header alone
            mode = label_map.mode
        self._check_labels(path, mode, labels, len(self.metainfo['classes']))
        if 'ori_shape' in results and labels.shape[:2] != tuple(results['ori_shape'][:2]):
            raise ValueError(f'{path} has (height, width) {labels.shape[:2]}, but its image '
                             f'{results["img_path"]} has {tuple(results["ori_shape"][:2])}')
        return results

    def _check_labels(self, path: str, mode: str, labels: np.ndarray, num_values: int) -> None:
        if mode not in ('L', 'P', '1'):
            raise ValueError(f'{path} is a picture of mode {mode}; a label map must be 8-bit with '
                             'one channel, each pixel a class index')
        strange = labels[(labels >= num_values) & (labels != self.ignore_index)]
        if strange.size:
            raise ValueError(
                f'{path} holds the label values {np.unique(strange).tolist()}, but the '
                f'{len(self.metainfo["classes"])} classes {self.metainfo["classes"]} are the '
                f'values 0 to {num_values - 1} ({self.ignore_index} = ignored)')


def _by_stem(folder: Path, suffixes: Iterable[str]) -> dict[str, Path]:
    """Files under ``folder`` that end in one of ``suffixes``, by their path below it without it."""
    found: dict[str, Path] = {}
    for path in sorted(folder.rglob('*')):
        name = os.fspath(path.relative_to(folder))
        suffix = next((end for end in suffixes if name.lower().endswith(end.lower())), None)
        if suffix is None or path.name.startswith('.') or not path.is_file():
            continue
        stem = name[:-len(suffix)]
        if stem in found:
            raise ValueError(f'{found[stem]} and {path} have the same name but for the suffix; '
                             'an image and its label map are paired by that name')
        found[stem] = path
    return found


def _few(names: list[str], count: int = 3) -> str:
    return ', '.join(names[:count]) + (', ...' if len(names) > count else '')
