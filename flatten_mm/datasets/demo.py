"""The embedded demo data set: coloured, patterned shapes on textured backgrounds.

The package makes it, so nothing is downloaded or shipped. The same images serve instance
segmentation (COCO JSON) and semantic segmentation (PNG label maps)::

    root/
      demo_dataset.json            what made this folder; its "complete" turns true last
      images/{train,val}/*.png     RGB, sides 96..160
      annotations/{train,val}/*.png  uint8, 0 = background, i + 1 = DEMO_CLASSES[i]
      annotations/{train,val}.json COCO instances, masks as uncompressed RLE

Every pixel follows from raw 64-bit words of numpy's PCG64 (whose stream numpy guarantees, unlike
that of ``Generator`` methods) and integer arithmetic, so the set is the same on every machine.
"""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np

DEMO_CLASSES = ('disc', 'square', 'triangle', 'cross', 'ring')
SPLITS = ('train', 'val')

_MARKER = 'demo_dataset.json'
_MADE_BY = 'flatten_mm.datasets.demo'
# Raise when a change of this file changes the pixels, so that an old folder is not reused.
_VERSION = 1

_MIN_SIDE, _MAX_SIDE = 96, 160
_MIN_RADIUS, _MAX_RADIUS = 9, 26
_MIN_VISIBLE_PIXELS = 20
_MIN_VISIBLE_PERCENT = 35
# (a, b, c) with a^2 + b^2 = c^2: rotations by atan2(b, a), exact in integers.
_ROTATIONS = ((1, 0, 1), (63, 16, 65), (12, 5, 13), (15, 8, 17), (4, 3, 5), (3, 4, 5), (5, 12, 13))
# RGB centre of each class's colour family.
_COLOURS = ((205, 60, 45), (50, 90, 205), (45, 165, 70), (225, 190, 50), (175, 60, 185))


@dataclass(frozen=True)
class DemoInstance:
    """One visible shape: ``label`` indexes DEMO_CLASSES, ``mask`` is (H, W) bool."""

    label: int
    mask: np.ndarray


@dataclass(frozen=True)
class DemoSample:
    """One image: ``image`` (H, W, 3) uint8 RGB and its instances, whose masks never overlap."""

    image: np.ndarray
    instances: tuple[DemoInstance, ...]

    @property
    def label_map(self) -> np.ndarray:
        """(H, W) uint8: 0 where nothing is, else 1 + the label of the visible instance."""
        labels = np.zeros(self.image.shape[:2], np.uint8)
        for instance in self.instances:
            labels[instance.mask] = instance.label + 1
        return labels


@dataclass(frozen=True)
class DemoDataset:
    """Where the parts of a demo set lie; ``split`` is 'train' or 'val'."""

    root: Path

    def ann_file(self, split: str) -> Path:
        return self.root / 'annotations' / f'{split}.json'

    def image_dir(self, split: str) -> Path:
        return self.root / 'images' / split

    def label_dir(self, split: str) -> Path:
        return self.root / 'annotations' / split


def make_demo_dataset(root: str | os.PathLike, num_train: int = 600, num_val: int = 100,
                      seed: int = 0) -> DemoDataset:
    """Write the demo set under ``root``, or reuse the one that is there.

    A finished set with the same parameters is left as it is; one whose writing was interrupted is
    written anew. Image ``i`` of a split depends on the seed, the split and ``i`` alone.

    Args:
        root: Folder to write in; created when missing.
        num_train: Training images, at least 1.
        num_val: Held-out images, at least 1.
        seed: Any integer >= 0.

    Raises:
        ValueError: A count below 1 or a negative seed.
        FileExistsError: ``root`` holds something this function did not make, or a finished demo
            set with other parameters.
    """
    for name, value, least in (('num_train', num_train, 1), ('num_val', num_val, 1),
                               ('seed', seed, 0)):
        if value < least:
            raise ValueError(f'{name} must be at least {least}, got {value}')
    root = Path(root)
    made = dict(made_by=_MADE_BY, version=_VERSION, num_train=num_train, num_val=num_val, seed=seed)
    dataset = DemoDataset(root)
    if _is_complete(root, made):
        return dataset
    for folder in ('images', 'annotations'):
        shutil.rmtree(root / folder, ignore_errors=True)
    root.mkdir(parents=True, exist_ok=True)
    _write_json(root / _MARKER, made | dict(complete=False))
    for split, count in zip(SPLITS, (num_train, num_val)):
        _write_split(dataset, split, count, seed)
    _write_json(root / _MARKER, made | dict(complete=True))
    return dataset


def make_demo_sample(seed: int, split: str, index: int) -> DemoSample:
    """Draw image ``index`` of a split.

    Shapes are painted one over another; a shape that would leave an earlier one (or itself)
    mostly hidden is not painted, so every painted pixel belongs to an annotated instance.

    Raises:
        ValueError: ``split`` is neither 'train' nor 'val'.
    """
    if split not in SPLITS:
        raise ValueError(f'split must be one of {SPLITS}, got {split!r}')
    words = _Words(seed, SPLITS.index(split), index)
    height, width = (words.between(_MIN_SIDE, _MAX_SIDE) for _ in range(2))
    image = _background(words, height, width)
    wanted = words.between(2, 6)
    shapes: list[tuple[int, np.ndarray, int]] = []  # label, visible mask, pixels before occlusion
    for _ in range(4 * wanted):
        if len(shapes) == wanted:
            break
        label = words.between(0, len(DEMO_CLASSES) - 1)
        shape = _Shape.draw(words, height, width)
        mask = shape.mask(label)
        kept = [(old, visible & ~mask, full) for old, visible, full in shapes]
        candidates = [*kept, (label, mask, int(mask.sum()))]
        if all(_is_visible(visible, full) for _, visible, full in candidates):
            shapes = candidates
            image[mask] = shape.paint(words, label)[mask]
    image += words.noise((height, width, 3), 9)
    return DemoSample(np.clip(image, 0, 255).astype(np.uint8),
                      tuple(DemoInstance(label, visible) for label, visible, _ in shapes))


def mask_to_rle(mask: np.ndarray) -> dict:
    """COCO's uncompressed RLE of an (H, W) bool mask: ``dict(size=[H, W], counts=[...])``.

    Exact where polygons are not: rings have holes, occluded shapes fall into pieces, and
    pycocotools moves a polygon's border by up to a pixel.
    """
    flat = np.asarray(mask, bool).ravel(order='F')
    changes = np.flatnonzero(flat[1:] != flat[:-1]) + 1
    counts = np.diff(np.concatenate(([0], changes, [flat.size]))).tolist()
    if flat[0]:  # the first run counts zeros
        counts.insert(0, 0)
    return dict(size=list(mask.shape), counts=counts)


def _is_complete(root: Path, made: dict) -> bool:
    """Whether ``root`` holds the finished set ``made``; raise if it is not ours to write in."""
    if not root.exists():
        return False
    if not root.is_dir():
        raise FileExistsError(f'{root} is a file; give a folder for the demo data set')
    marker = root / _MARKER
    if not marker.is_file():
        if any(root.iterdir()):
            raise FileExistsError(f'{root} is not empty and holds no demo data set; '
                                  'give an empty or a new folder')
        return False
    found = json.loads(marker.read_text())
    if found.get('made_by') != _MADE_BY:
        raise FileExistsError(f'{marker} was not written by {_MADE_BY}; give a new folder')
    if not found.pop('complete', False):
        return False
    if found != made:
        shown = {key: found.get(key) for key in made if found.get(key) != made[key]}
        raise FileExistsError(f'{root} holds a demo data set made with {shown}, wanted '
                              f'{ {key: made[key] for key in shown} }; '
                              'delete it or give another folder')
    return True


def _write_split(dataset: DemoDataset, split: str, count: int, seed: int) -> None:
    for folder in (dataset.image_dir(split), dataset.label_dir(split)):
        folder.mkdir(parents=True)
    images, annotations = [], []
    for index in range(count):
        sample = make_demo_sample(seed, split, index)
        name = f'{index:06d}.png'
        _write_png(dataset.image_dir(split) / name, sample.image[..., ::-1])
        _write_png(dataset.label_dir(split) / name, sample.label_map)
        height, width = sample.image.shape[:2]
        images.append(dict(id=index, file_name=name, height=height, width=width))
        for instance in sample.instances:
            annotations.append(_annotation(len(annotations) + 1, index, instance))
    categories = [dict(id=i + 1, name=name) for i, name in enumerate(DEMO_CLASSES)]
    _write_json(dataset.ann_file(split),
                dict(info=dict(description=f'{split} split of the flatten_mm demo data set'),
                     images=images, annotations=annotations, categories=categories))


def _annotation(annotation_id: int, image_id: int, instance: DemoInstance) -> dict:
    rows = np.flatnonzero(instance.mask.any(axis=1))
    columns = np.flatnonzero(instance.mask.any(axis=0))
    x, y = int(columns[0]), int(rows[0])
    return dict(
        id=annotation_id,
        image_id=image_id,
        category_id=instance.label + 1,
        iscrowd=0,
        area=int(instance.mask.sum()),
        bbox=[x, y, int(columns[-1]) - x + 1, int(rows[-1]) - y + 1],
        segmentation=mask_to_rle(instance.mask))


def _write_png(path: Path, image: np.ndarray) -> None:
    if not cv2.imwrite(str(path), image):
        raise OSError(f'could not write {path}; is the disk full?')


def _write_json(path: Path, content: dict) -> None:
    """Write so that a reader sees the old file or the new one, never half of it."""
    part = path.with_name(path.name + '.part')
    part.write_text(json.dumps(content))
    os.replace(part, path)


def _is_visible(visible: np.ndarray, full: int) -> bool:
    pixels = int(visible.sum())
    return pixels >= _MIN_VISIBLE_PIXELS and 100 * pixels >= _MIN_VISIBLE_PERCENT * full


class _Words:
    """Integers from PCG64's raw words; their order is part of the data set."""

    def __init__(self, *entropy: int) -> None:
        self._bits = np.random.PCG64(entropy)

    def between(self, low: int, high: int) -> int:
        """An integer in [low, high]."""
        return low + int(self._bits.random_raw()) % (high - low + 1)

    def noise(self, shape: tuple[int, ...], spread: int) -> np.ndarray:
        """Integers in [-spread, spread], one a place of ``shape``."""
        raw = self._bits.random_raw(int(np.prod(shape))) >> np.uint64(11)
        return (raw % np.uint64(2 * spread + 1)).astype(np.int64).reshape(shape) - spread


def _background(words: _Words, height: int, width: int) -> np.ndarray:
    """(H, W, 3) int64: a muted colour under value noise, stripes or checks, and a slope."""
    grey = words.between(70, 180)
    colour = np.array([grey + words.between(-28, 28) for _ in range(3)])
    y, x = np.mgrid[:height, :width]
    texture = words.between(0, 2)
    if texture == 0:
        tone = _value_noise(words, height, width, cell=words.between(10, 24))
    else:
        period, strength = words.between(5, 14), words.between(8, 22)
        step_x, step_y = words.between(-2, 2), words.between(1, 3)
        cells = (x * step_x + y * step_y) // period
        if texture == 2:
            cells = x // period + y // period
        tone = strength * (2 * (cells % 2) - 1)
    slope = words.between(-30, 30) * x // width + words.between(-30, 30) * y // height
    return colour + (tone + slope)[..., None]


def _value_noise(words: _Words, height: int, width: int, cell: int) -> np.ndarray:
    """(H, W): random heights on a lattice of ``cell`` pixels, bilinear between, in integers."""
    y, x = np.mgrid[:height, :width]
    lattice = words.noise((height // cell + 2, width // cell + 2), 34)
    (row, dy), (column, dx) = divmod(y, cell), divmod(x, cell)
    upper = lattice[row, column] * (cell - dx) + lattice[row, column + 1] * dx
    lower = lattice[row + 1, column] * (cell - dx) + lattice[row + 1, column + 1] * dx
    return (upper * (cell - dy) + lower * dy) // (cell * cell)


@dataclass(frozen=True)
class _Shape:
    """A place, size and turn. ``u`` and ``v`` are pixel offsets in the turned frame, times c."""

    radius: int
    u: np.ndarray
    v: np.ndarray
    c: int

    @classmethod
    def draw(cls, words: _Words, height: int, width: int) -> _Shape:
        radius = words.between(_MIN_RADIUS, _MAX_RADIUS)
        # Centres keep half a radius from the border: some shapes are cut by it.
        centre_x = words.between(radius // 2, width - 1 - radius // 2)
        centre_y = words.between(radius // 2, height - 1 - radius // 2)
        a, b, c = _ROTATIONS[words.between(0, len(_ROTATIONS) - 1)]
        y, x = np.mgrid[:height, :width]
        dx, dy = x - centre_x, y - centre_y
        return cls(radius, a * dx + b * dy, a * dy - b * dx, c)

    def mask(self, label: int) -> np.ndarray:
        """(H, W) bool: the whole shape of class ``label`` within the image."""
        u, v, r = np.abs(self.u), self.v, self.radius * self.c
        squared = u * u + v * v
        name = DEMO_CLASSES[label]
        if name == 'disc':
            return squared <= r * r
        if name == 'square':
            return (5 * u <= 4 * r) & (5 * np.abs(v) <= 4 * r)
        if name == 'triangle':  # equilateral, corner up: sqrt(3) as 1732 / 1000
            return (2 * v <= r) & (1732 * u <= 1000 * (v + r))
        if name == 'cross':
            return ((u <= r) & (3 * np.abs(v) <= r)) | ((3 * u <= r) & (np.abs(v) <= r))
        return (squared <= r * r) & (4 * squared >= r * r)  # ring

    def paint(self, words: _Words, label: int) -> np.ndarray:
        """(H, W, 3) int64: the class's colour, varied, under the class's pattern."""
        brightness = words.between(75, 112)
        colour = np.array([(value + words.between(-26, 26)) * brightness // 100
                           for value in _COLOURS[label]])
        period = self.c * words.between(3, 5)
        stripe = self.u // period
        dark = {
            'square': stripe % 2 == 0,
            'cross': (stripe + self.v // period) % 2 == 0,
            'ring': (stripe % 2 == 0) & (self.v // period % 2 == 0),
        }.get(DEMO_CLASSES[label], np.zeros(stripe.shape, bool))
        return np.where(dark[..., None], colour * 11 // 20, colour)
