"""Label maps of semantic segmentation: one channel of class numbers, whatever the file says."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

import numpy as np
from mmengine.registry import TRANSFORMS
from PIL import Image

# Pillow's modes of one 8-bit channel; the numbers of a palette PNG are its class numbers.
_MODES = ('L', 'P', '1')


def read_label_map(path: str) -> np.ndarray:
    """Read a label map as (H, W) uint8 of the numbers in the file.

    Raises:
        FileNotFoundError: There is none.
        ValueError: It cannot be decoded whole, or is a picture and no label map.
    """
    try:
        with Image.open(path) as picture:
            check_header(path, picture)
            return np.asarray(picture).astype(np.uint8)
    except FileNotFoundError:
        raise
    except ValueError:
        raise
    except Exception as error:  # each decoder has its own
        raise unreadable(path, error) from error


def check_header(path: str, picture: Image.Image) -> None:
    """Refuse pictures that are no label maps.

    Raises:
        ValueError: More than one channel, more than 8 bits, or JPEG, which changes values.
    """
    if picture.mode not in _MODES:
        raise ValueError(f'{path} is a picture of mode {picture.mode}; a label map must be 8-bit '
                         'with one channel, each pixel a class index')
    if picture.format == 'JPEG':
        raise ValueError(f'{path} is a JPEG, whose compression changes the class indices; save '
                         'label maps as PNG')


def unreadable(path: str, error: Exception) -> ValueError:
    """What to raise where decoding a label map raised ``error``."""
    reason = ' '.join(str(error).split())
    return ValueError(f'{path} cannot be read as a label map ({reason}); copy or save it again')


def check_values(path: str, labels: np.ndarray, num_values: int, classes: Sequence[str] | int,
                 ignore_index: int = 255) -> None:
    """Check that a label map holds the values 0 to ``num_values`` - 1 and ``ignore_index`` alone.

    Args:
        path: The file, for the message.
        labels: (H, W) values.
        num_values: Values that may occur.
        classes: Names of the classes, or their number.
        ignore_index: The value of pixels that do not count.

    Raises:
        ValueError: Other values occur; the message lists them.
    """
    strange = labels[(labels >= num_values) & (labels != ignore_index)]
    if strange.size:
        named = (f'{classes} classes' if isinstance(classes, int)
                 else f'{len(classes)} classes {list(classes)}')
        raise ValueError(f'{path} holds the label values {_few(np.unique(strange).tolist())}, but '
                         f'the {named} are the values 0 to {num_values - 1} ({ignore_index} = '
                         'ignored)')


@TRANSFORMS.register_module()
class CheckLabelMap:
    """Checks the label map that LoadAnnotations has read; stands right behind it.

    mmseg trains on maps of any kind: values beyond the classes end in a CUDA assert or, in
    validation, are left out of the score without a word.

    Args:
        num_classes: Classes of the head; the map's values are 0 to ``num_classes`` - 1.
        classes: Their names, for messages.
        ignore_index: The value of pixels that do not count.

    Raises:
        ValueError: The map has other values, another size than its image, or is a picture of
            several channels or in JPEG; the message begins with its path.
    """

    def __init__(self, num_classes: int, classes: Sequence[str] | None = None,
                 ignore_index: int = 255) -> None:
        self.num_classes = num_classes
        self.classes = classes
        self.ignore_index = ignore_index

    def __call__(self, results: dict) -> dict:
        """Check ``gt_seg_map`` (H, W) of ``results``, which are returned as they are."""
        path, labels = results['seg_map_path'], results['gt_seg_map']
        if os.path.isfile(path):
            with Image.open(path) as picture:  # reads the header alone
                check_header(path, picture)
        check_values(path, labels, self.num_classes, self.classes or self.num_classes,
                     self.ignore_index)
        if 'ori_shape' in results and labels.shape[:2] != tuple(results['ori_shape'][:2]):
            raise ValueError(f'{path} has (height, width) {labels.shape[:2]}, but its image '
                             f'{results.get("img_path")} has {tuple(results["ori_shape"][:2])}')
        return results


class _Named:
    """A LoadAnnotations whose errors name the label map."""

    def __init__(self, load: Callable) -> None:
        self.load = load

    def __call__(self, results: dict) -> dict:
        try:
            return self.load(results)
        except FileNotFoundError:
            raise
        except Exception as error:  # each decoder has its own
            raise unreadable(results.get('seg_map_path'), error) from error

    def __getattr__(self, name: str) -> object:
        if name == 'load':  # while it is being unpickled in a worker
            raise AttributeError(name)
        return getattr(self.load, name)


def add_label_map_check(transforms: list, classes: Sequence[str], ignore_index: int = 255) -> None:
    """Put a CheckLabelMap behind the LoadAnnotations of a pipeline, and names into its errors."""
    kinds = [type(step).__name__ for step in transforms]
    if 'LoadAnnotations' not in kinds or CheckLabelMap.__name__ in kinds:
        return
    place = kinds.index('LoadAnnotations')
    transforms[place:place + 1] = [
        _Named(transforms[place]), CheckLabelMap(len(classes), classes, ignore_index)]


def _few(values: list[int], count: int = 8) -> str:
    return str(values) if len(values) <= count else f'{str(values[:count])[:-1]}, ...]'
