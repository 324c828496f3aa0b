"""The settings of the configs for a user's own data: texts from the environment, checked.

The tools set these variables from their options; with mm's own tools they are set by hand.

==================== ================ ==========================================================
variable             option           meaning
==================== ================ ==========================================================
FLATTEN_DATA_ROOT    --data-root      folder with ``images/{train,val}`` and ``annotations``
FLATTEN_CLASSES      --classes        class names in index order, comma separated
FLATTEN_IMG_SIZE     --img-size       "H,W" in pixels, or one number for a square
FLATTEN_BATCH_SIZE   --batch-size     images a step and process
FLATTEN_MAX_ITERS    --max-iters      optimizer steps
==================== ================ ==========================================================

The configs write ``'{{$FLATTEN_DATA_ROOT:data/custom}}'``, which mmengine replaces by the value or
the default, and hand the texts to :func:`custom_settings`.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass

# mmengine takes no empty default; no class is called this.
UNSET = '<unset>'


@dataclass(frozen=True)
class CustomSettings:
    """The settings of one run. ``img_size`` is (H, W); ``scale`` is the (W, H) of mm's Resize."""

    data_root: str
    classes: list[str]
    img_size: tuple[int, int]
    batch_size: int
    max_iters: int

    @property
    def scale(self) -> tuple[int, int]:
        return self.img_size[::-1]


def custom_settings(data_root: str, classes: str, img_size: str, batch_size: str, max_iters: str,
                    classes_from: str | None = None) -> CustomSettings:
    """Check the texts of the environment variables and turn them into values.

    Args:
        data_root: Folder of the data.
        classes: Names, comma separated, or UNSET.
        img_size: "H,W" or one number, in pixels.
        batch_size: Images a step and process.
        max_iters: Optimizer steps.
        classes_from: COCO file under ``data_root`` whose categories are the classes where
            ``classes`` is UNSET. None: the classes must be given.

    Raises:
        ValueError: A text that cannot be read, or no classes.
        FileNotFoundError: ``classes_from`` is needed and does not exist.
    """
    return CustomSettings(
        data_root=data_root,
        classes=_classes(classes, data_root, classes_from),
        img_size=_img_size(img_size),
        batch_size=_count('FLATTEN_BATCH_SIZE (--batch-size)', batch_size),
        max_iters=_count('FLATTEN_MAX_ITERS (--max-iters)', max_iters))


def _count(name: str, text: str) -> int:
    if not text.strip().isdecimal() or int(text) < 1:
        raise ValueError(f'{name} must be a whole number above 0, got {text!r}')
    return int(text)


def _img_size(text: str) -> tuple[int, int]:
    sides = [side.strip() for side in text.split(',')]
    if len(sides) > 2 or not all(side.isdecimal() and int(side) >= 32 for side in sides):
        raise ValueError('FLATTEN_IMG_SIZE (--img-size) must be "H,W" or one number, in pixels and '
                         f'at least 32 each, got {text!r}')
    return int(sides[0]), int(sides[-1])


def _classes(text: str, data_root: str, classes_from: str | None) -> list[str]:
    if text != UNSET:
        names = [name.strip() for name in text.split(',')]
        if '' in names or len(set(names)) < len(names):
            raise ValueError('FLATTEN_CLASSES (--classes) must be different, non-empty names '
                             f'separated by commas, got {text!r}')
        return names
    if classes_from is None:
        raise ValueError('no class names: give --classes (or FLATTEN_CLASSES) the names in the '
                         'order of their pixel values, as in "background,road,car"')
    return _categories(os.path.join(data_root, classes_from))


def _categories(ann_file: str) -> list[str]:
    if not os.path.isfile(ann_file):
        raise FileNotFoundError(
            f'no annotation file {ann_file}: give --data-root (or FLATTEN_DATA_ROOT) the folder '
            'that holds it, or --classes (or FLATTEN_CLASSES) the class names')
    try:
        with open(ann_file, encoding='utf-8') as file:
            content = json.load(file)
    except ValueError as error:  # of JSON or of the encoding
        raise ValueError(f'{ann_file} is not JSON ({error}); expected a COCO annotation file'
                         ) from error
    categories = content.get('categories') if isinstance(content, dict) else None
    if not isinstance(categories, list) or not categories:
        raise ValueError(f'{ann_file} has no "categories"; expected a COCO annotation file')
    names = [category.get('name') if isinstance(category, dict) else None
             for category in categories]
    if not all(isinstance(name, str) and name for name in names):
        raise ValueError(f'{ann_file} has categories without a "name"; expected a COCO annotation '
                         'file')
    return list(dict.fromkeys(names))
