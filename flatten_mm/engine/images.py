"""The images that inference is asked for: finding them and reading them."""

from __future__ import annotations

import glob
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from mmengine.config import Config
from mmengine.dataset import Compose

from ..datasets.image_file import ImageFileError
from ..datasets.load_image import use_checked_loading
from .errors import UserError, one_line

SUFFIXES = ('.jpg', '.jpeg', '.png', '.bmp', '.tif', '.tiff', '.webp', '.ppm', '.pgm')


class UnreadableImage(Exception):
    """A file is no image, or a damaged one; the message says why."""


def find_images(inputs: Sequence[str | os.PathLike]) -> dict[Path, Path]:
    """Image files named by paths, folders (searched in depth) and glob patterns.

    In folders and by patterns only files with one of ``SUFFIXES`` are taken, in any case; a file
    named by itself is taken whatever its suffix, even one that does not exist: reading it says so,
    and it holds up no others.

    Args:
        inputs: Paths, folders and patterns.

    Returns:
        File -> the path to name its results by, relative to its folder and without suffix;
        different for each file.

    Raises:
        UserError: None of ``inputs`` exists, or a folder or pattern brings no image.
    """
    found: dict[Path, Path] = {}
    for item in map(os.path.expanduser, inputs):
        path = Path(item)
        if path.is_dir():
            images = {file: file.relative_to(path) for file in _images_among(path.rglob('*'))}
        elif path.exists() or not glob.has_magic(item):
            images = {path: Path(path.name)}
        else:
            matches = sorted(map(Path, glob.glob(item, recursive=True)))
            root = Path(os.path.commonpath([file.parent for file in matches])) if matches else path
            images = {file: file.relative_to(root) for file in _images_among(matches)}
        if not images:
            raise UserError(f'no image found by {item}; expected files ending in '
                            f'{", ".join(SUFFIXES)}')
        found.update(images)
    if not any(file.exists() for file in found):
        raise UserError(f'input {next(iter(found), "")} does not exist; give an image, a folder or '
                        'a pattern such as "images/*.jpg"')
    return _unique_names(found)


class ImageReader:
    """Reads images as the test pipeline of a config does, and prepares them for its model.

    Args:
        cfg: The config, whose default scope is set.

    Raises:
        UserError: The config has no test pipeline that starts by loading an image file.
    """

    def __init__(self, cfg: Config) -> None:
        dataset = (cfg.get('test_dataloader') or {}).get('dataset') or {}
        while 'pipeline' not in dataset and dataset.get('dataset'):
            dataset = dataset['dataset']
        transforms = list(dataset.get('pipeline') or [])
        kinds = [str(transform.get('type')).split('.')[-1] for transform in transforms]
        if 'LoadImageFromFile' not in kinds:
            raise UserError(f'config {cfg.filename} has no test_dataloader whose pipeline loads an '
                            f'image file (LoadImageFromFile); found: {", ".join(kinds) or "none"}')
        start = kinds.index('LoadImageFromFile')
        self._load = Compose([transforms[start]])
        use_checked_loading(self._load.transforms)
        self._prepare = Compose([
            transform for transform, kind in zip(transforms[start + 1:], kinds[start + 1:])
            if 'Annotations' not in kind])

    def read(self, path: Path) -> dict:
        """Read a file: ``img`` is (H, W, C) in BGR.

        Raises:
            UnreadableImage: The file cannot be used, see :mod:`..datasets.image_file`.
        """
        try:
            return self._load(dict(img_path=str(path), img_id=0))
        except ImageFileError as error:
            raise UnreadableImage(f'it {one_line(error).removeprefix(f"{path} ")}') from error
        except FileNotFoundError as error:
            raise UnreadableImage('it does not exist') from error
        except Exception as error:  # of the file system, or a loader of the config's own
            raise UnreadableImage(one_line(error)) from error

    def prepare(self, loaded: dict) -> dict:
        """A batch of one for ``model.test_step``; ``loaded`` is left as it is."""
        packed = self._prepare(dict(loaded))
        return {key: [value] for key, value in packed.items()}


def to_rgb(image: np.ndarray) -> np.ndarray:
    """(H, W, 3) uint8 RGB of an image as mm loads it: BGR or grey, uint8 or float of 0 to 255."""
    if image.ndim == 2 or image.shape[2] == 1:
        image = np.repeat(image.reshape(*image.shape[:2], 1), 3, axis=2)
    image = image[:, :, 2::-1]
    return np.ascontiguousarray(np.clip(image, 0, 255).astype(np.uint8))


def _images_among(paths: Sequence[Path]) -> list[Path]:
    return sorted(path for path in paths if path.suffix.lower() in SUFFIXES and path.is_file())


def _unique_names(images: dict[Path, Path]) -> dict[Path, Path]:
    """Drop files found twice; where names without suffix coincide, add the suffix or a number."""
    names: dict[Path, Path] = {}
    seen, used = set(), set()
    for file, relative in images.items():
        if file.resolve() in seen:
            continue
        seen.add(file.resolve())
        stem = relative.with_suffix('')
        with_kind = stem.with_name(f'{stem.name}_{relative.suffix[1:]}')
        numbered = (stem.with_name(f'{stem.name}_{i}') for i in range(2, len(images) + 2))
        name = next(name for name in (stem, with_kind, *numbered) if name not in used)
        used.add(name)
        names[file] = name
    return names
