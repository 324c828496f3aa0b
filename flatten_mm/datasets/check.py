"""Checking the data sets of a config before days are spent on them."""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from mmengine.config import Config
from mmengine.registry import init_default_scope

from ..engine.config import scope_of
from ..engine.errors import UserError
from ..engine.preflight import OTHER_CLASSES, dataset_cfgs, walk
from .check_sources import Sample, Source, read_source
from .image_file import ImageFileError, decode_image, describe_pixels, orientation_of
from .label_map import check_values, read_label_map
from .problems import ERROR, WARNING, Problem

SPLITS = ('train', 'val', 'test')
_SMALL = 32  # pixels; backbones here halve a side five times


@dataclass
class ClassCount:
    """How often a class occurs.

    Attributes:
        name: The class.
        count: Its pixels, boxes or images, by what the model learns.
        images: Images it occurs in.
    """

    name: str
    count: int = 0
    images: int = 0


@dataclass
class SplitReport:
    """What a split of the data holds.

    Attributes:
        split: ``'train'``, ``'val'`` or ``'test'``.
        unit: What ``classes`` count: ``'pixels'``, ``'boxes'`` or ``'images'``.
        images: Images listed.
        read: Images whose pixels were read.
        unlabelled: Of the read ones, images without any label that counts.
        sizes: (height, width) of each image read.
        classes: One a class, in order.
        palette: A colour a class, or None.
        samples: What was read, for pictures.
    """

    split: str
    unit: str = 'images'
    images: int = 0
    read: int = 0
    unlabelled: int = 0
    sizes: list[tuple[int, int]] = field(default_factory=list)
    classes: list[ClassCount] = field(default_factory=list)
    palette: list | None = None
    samples: list[tuple[Source, Sample, set]] = field(default_factory=list)


@dataclass
class DataReport:
    """What :func:`check_data` found."""

    config: str
    splits: list[SplitReport] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)

    @property
    def errors(self) -> list[Problem]:
        """Problems that training would refuse or go wrong by."""
        return [problem for problem in self.problems if problem.level == ERROR]

    @property
    def warnings(self) -> list[Problem]:
        """Problems worth a look."""
        return [problem for problem in self.problems if problem.level == WARNING]


def check_data(cfg: Config, *, max_images: int | None = None,
               progress: Callable[[str, int, int], None] | None = None) -> DataReport:
    """Read every image and annotation of a config's data sets and say what is in them.

    Args:
        cfg: A config from :func:`flatten_mm.engine.load_config`.
        max_images: Read the pixels of at most so many images a split, evenly spread; annotations
            are checked all. None reads all.
        progress: Called with the split, the images done and their number.

    Returns:
        Counts, sizes, classes and problems; a split whose data set equals an earlier one's is
        left out.

    Raises:
        UserError: The config has no data set.
    """
    scope = scope_of(cfg)
    init_default_scope(scope)
    report = DataReport(str(cfg.filename))
    hashes: dict[str, dict[bytes, str]] = {}
    for split, leaves in _splits(cfg):
        done = SplitReport(split)
        report.splits.append(done)
        sources = [read_source(leaf, scope, _with_mask(leaf)) for leaf in leaves]
        counters: dict[str, ClassCount] = {}
        for source in sources:
            report.problems += source.problems
            for name in source.classes:
                counters.setdefault(str(name), ClassCount(str(name)))
            done.palette = done.palette or source.palette
        done.classes = list(counters.values())
        hashes[split] = {}
        reader = _Reader(done, counters, hashes[split], report.problems)
        chosen = [(source, sample) for source in sources for sample in source.samples]
        done.images = len(chosen)
        if max_images is not None and len(chosen) > max_images:
            chosen = [chosen[i * len(chosen) // max_images] for i in range(max_images)]
        for number, (source, sample) in enumerate(chosen, start=1):
            reader.read(source, sample)
            if progress is not None:
                progress(split, number, len(chosen))
        report.problems += _split_problems(done, sources)
    if not report.splits:
        raise UserError(f'config {cfg.filename} has no train_dataloader, val_dataloader or '
                        'test_dataloader with a data set to check')
    report.problems += _overlaps(hashes)
    report.problems += _model_problems(cfg, report)
    return report


class _Reader:
    """Reads samples into a :class:`SplitReport`."""

    def __init__(self, report: SplitReport, counters: dict[str, ClassCount],
                 hashes: dict[bytes, str], problems: list[Problem]) -> None:
        self.report = report
        self.counters = counters
        self.hashes = hashes
        self.problems = problems
        self.labels: dict[bytes, int | None] = {}

    def read(self, source: Source, sample: Sample) -> None:
        size = self._read_image(sample)
        counts = self._count(source, sample, size)
        if counts is None:
            return
        for label, count in counts.items():
            entry = self.counters[str(source.classes[label])]
            entry.count += count
            entry.images += 1
        self.report.unlabelled += not counts
        if size is not None:
            self.report.samples.append((source, sample, set(counts)))

    def _tell(self, level: str, kind: str, file: str, text: str) -> None:
        self.problems.append(Problem(level, kind, file, text))

    def _read_image(self, sample: Sample) -> tuple[int, int] | None:
        """(height, width) of an image that can be used."""
        path = sample.image
        try:
            content = Path(path).read_bytes()
        except OSError as error:
            kind = 'image-missing' if isinstance(error, FileNotFoundError) else 'image-unreadable'
            self._tell(ERROR, kind, path, 'does not exist' if kind == 'image-missing' else
                       f'cannot be read ({error.strerror})')
            return None
        try:
            image = decode_image(content, size=sample.size)
        except ImageFileError as error:
            self._tell(ERROR, 'image', path, str(error))
            return None
        self._compare(content, sample)
        self._warn_of(content, sample, image)
        self.report.read += 1
        self.report.sizes.append(image.shape[:2])
        return image.shape[:2]

    def _compare(self, content: bytes, sample: Sample) -> None:
        """Tell of an image that is there twice."""
        digest = hashlib.blake2b(content, digest_size=16).digest()
        other = self.hashes.setdefault(digest, sample.image)
        if other != sample.image:
            label = self.labels.get(digest)
            differ = label is not None and label != sample.label
            self._tell(WARNING, 'labels-contradict' if differ else 'image-repeated', sample.image,
                       f'has the same content as {other}' + (
                           ' and another label' if differ else ''))
        else:
            self.labels[digest] = sample.label

    def _warn_of(self, content: bytes, sample: Sample, image: np.ndarray) -> None:
        """Tell of images that are used, but perhaps not as expected."""
        path, (height, width) = sample.image, image.shape[:2]
        pixels = describe_pixels(content)
        if min(height, width) < _SMALL:
            self._tell(WARNING, 'image-small', path, f'is {height} high and {width} wide, under '
                       f'{_SMALL} pixels')
        if pixels.get('frames', 1) > 1:
            self._tell(WARNING, 'image-animated', path, f'has {pixels["frames"]} frames, of which '
                       'the first is used')
        if pixels.get('transparent'):
            self._tell(WARNING, 'image-transparent', path, 'has transparent pixels, of which the '
                       'colours beneath are used')
        if pixels.get('bits') == 16:
            self._tell(WARNING, 'image-16-bit', path, 'has 16 bits a channel, of which the upper 8 '
                       'are used')
        turned = orientation_of(content)
        labelled = sample.label_map is not None or sample.instances is not None
        if labelled and turned > 1 and (turned < 5 or height == width):
            self._tell(WARNING, 'image-orientation', path, f'has EXIF orientation {turned} and '
                       'annotations that fit it either way; it is turned upright, so they must '
                       'have been made on it as viewers show it')

    def _count(self, source: Source, sample: Sample, size: tuple[int, int] | None
               ) -> dict[int, int] | None:
        """Count of each label, None where the labels cannot be read."""
        if sample.label_map is not None:
            self.report.unit = 'pixels'
            return self._count_pixels(source, sample, size)
        if sample.instances is not None:
            self.report.unit = 'boxes'
            return Counter(instance.label for instance in sample.instances)
        return {} if sample.label is None else {sample.label: 1}

    def _count_pixels(self, source: Source, sample: Sample, size: tuple[int, int] | None
                      ) -> dict[int, int] | None:
        path = sample.label_map
        try:
            labels = source.to_classes(read_label_map(path))
            check_values(path, labels, len(source.classes), source.classes, source.ignore_index)
        except FileNotFoundError:
            self._tell(ERROR, 'label-map-missing', path, f'does not exist; it is the label map of '
                       f'{sample.image}')
            return None
        except ValueError as error:
            self._tell(ERROR, 'label-map', path, str(error).removeprefix(f'{path} '))
            return None
        if size is not None and labels.shape != size:
            self._tell(ERROR, 'label-map-size', path, f'is {labels.shape[0]}x{labels.shape[1]} '
                       f'(height x width), but its image {sample.image} is {size[0]}x{size[1]}')
            return None
        pixels = np.bincount(labels.ravel(), minlength=256)
        return {label: int(pixels[label]) for label in range(len(source.classes))
                if label < 256 and pixels[label]}


def _splits(cfg: Config) -> Iterator[tuple[str, list[dict]]]:
    """The data sets of each split, without wrappers; equal ones once."""
    seen: list[list] = []
    for split in SPLITS:
        leaves = list(dataset_cfgs(cfg.get(f'{split}_dataloader')))
        leaves = [leaf for leaf in leaves if 'type' in leaf and 'sampler' not in leaf]
        keys = [[(key, str(leaf.get(key))) for key in ('type', 'data_root', 'ann_file',
                                                       'data_prefix', 'split')] for leaf in leaves]
        if leaves and keys not in seen:
            seen.append(keys)
            yield split, leaves


def _with_mask(dataset: dict) -> bool:
    return any(step.get('with_mask') for step in dataset.get('pipeline') or ())


def _split_problems(report: SplitReport, sources: Sequence[Source]) -> Iterator[Problem]:
    """Classes that do not occur, and splits without a label."""
    name = f'{report.split} data set'
    if not report.images:
        if not any(source.problems for source in sources):
            yield Problem(ERROR, 'data-set', name, 'holds no images')
        return
    absent = [entry.name for entry in report.classes if not entry.images]
    if report.classes and len(absent) == len(report.classes):
        yield Problem(ERROR, 'data-set', name, 'holds no label of any class')
        return
    of = '' if report.read >= report.images else f' in the {report.read} images read'
    for entry in absent:
        yield Problem(WARNING, 'class-unseen', name, f'has no label of the class {entry!r}{of}; is '
                      'it one class too many, or spelt otherwise?')


def _overlaps(hashes: dict[str, dict[bytes, str]]) -> Iterator[Problem]:
    """Images of validation or test that training sees too."""
    train = hashes.get('train', {})
    for split, own in hashes.items():
        if split != 'train':
            for digest in own.keys() & train.keys():
                yield Problem(WARNING, 'overlap', own[digest], f'of the {split} data set has the '
                              f'same content as {train[digest]} of the train data set')


def _model_problems(cfg: Config, report: DataReport) -> Iterator[Problem]:
    """Heads of other numbers of classes than the data."""
    first = report.splits[0]
    for place, value in walk(cfg.get('model') or {}, 'model'):
        if (place.endswith('.num_classes') and isinstance(value, int) and first.classes
                and not any(part in place for part in OTHER_CLASSES)
                and value != len(first.classes)):
            yield Problem(ERROR, 'num-classes', report.config,
                          f'has {value}, but the {first.split} data set has {len(first.classes)} '
                          'classes', place)
    for other in report.splits[1:]:
        names = [entry.name for entry in other.classes]
        if names and first.classes and names != [entry.name for entry in first.classes]:
            yield Problem(ERROR, 'classes-differ', f'{other.split} data set',
                          f'has the classes {names[:10]}, the {first.split} data set '
                          f'{[entry.name for entry in first.classes][:10]}; labels are numbers, so '
                          'both must have the same')


def group(problems: Sequence[Problem]) -> dict[tuple[str, str], list[Problem]]:
    """Problems by (level, kind), errors first."""
    found: dict[tuple[str, str], list[Problem]] = defaultdict(list)
    for problem in sorted(problems, key=lambda problem: problem.level):
        found[problem.level, problem.kind].append(problem)
    return found
