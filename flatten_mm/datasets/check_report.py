"""The report on data sets as text, JSON and contact sheets."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import cv2
import numpy as np
from pycocotools import mask as coco_mask

from ..analysis.contact_sheet import Instances, LabelledImage, labelled_sheet
from ..engine.images import to_rgb
from ..engine.overlays import class_colours
from .check import ClassCount, DataReport, SplitReport, group
from .check_sources import Sample, Source
from .image_file import decode_image
from .label_map import read_label_map

SHEET_SIZE = 24
_LONGEST_TABLE = 60
_EXAMPLES = 5
_LARGEST_SIDE = 480  # pixels of a picture on the sheet


def as_text(report: DataReport) -> str:
    """The report for reading: a section a split, then problems by kind with examples."""
    lines: list[str] = []
    for split in report.splits:
        lines += [*_split_lines(split), '']
    for (level, kind), problems in group(report.problems).items():
        lines.append(f'{level} {kind}: {len(problems)}')
        lines += [f'  {problem}' for problem in problems[:_EXAMPLES]]
        if len(problems) > _EXAMPLES:
            lines.append(f'  and {len(problems) - _EXAMPLES} more (--json lists all)')
    lines.append(f'{len(report.errors)} errors, {len(report.warnings)} warnings')
    return '\n'.join(lines)


def as_dict(report: DataReport) -> dict:
    """The report for JSON; every problem is in it."""
    return dict(
        config=report.config,
        splits=[dict(split=split.split, images=split.images, read=split.read,
                     unlabelled=split.unlabelled, sizes=_sizes(split), unit=split.unit,
                     classes=[vars(entry) for entry in split.classes])
                for split in report.splits],
        problems=[problem.to_dict() for problem in report.problems],
        errors=len(report.errors), warnings=len(report.warnings))


def save_sheets(report: DataReport, folder: Path) -> list[Path]:
    """Write ``contact_sheet_SPLIT.png`` of each split with labelled images; returns the paths.

    The images are chosen so that as many classes as possible are on the sheet.
    """
    written = []
    for split in report.splits:
        chosen = _choose(split, SHEET_SIZE)
        if chosen:
            names = [entry.name for entry in split.classes]
            colours = class_colours(len(names), split.palette)
            figure = labelled_sheet([_draw(source, sample) for source, sample in chosen], names,
                                    colours)
            path = folder / f'contact_sheet_{split.split}.png'
            figure.savefig(path, dpi=110)
            written.append(path)
    return written


def _split_lines(split: SplitReport) -> list[str]:
    read = '' if split.read == split.images else f' ({split.read} read)'
    lines = [f'{split.split}: {split.images} images{read}, {len(split.classes)} classes']
    sizes = _sizes(split)
    if sizes:
        lines.append('  height x width: ' + ', '.join(
            f'{name} {height:g}x{width:g}' for name, (height, width) in
            ((name, sizes[name]) for name in ('min', 'median', 'max')))
            + f'; width / height {sizes["aspect"][0]:.2f} to {sizes["aspect"][1]:.2f}')
    if split.unlabelled:
        lines.append(f'  images without a label: {split.unlabelled}')
    return lines + _class_lines(split.classes, split.unit)


def _class_lines(classes: Sequence[ClassCount], unit: str) -> list[str]:
    """A line a class, of many the most and the least frequent."""
    total = sum(entry.count for entry in classes)
    if not total:
        return []
    shown, title = list(classes), f'  {unit} by class:'
    if len(shown) > _LONGEST_TABLE:
        by_count = sorted(shown, key=lambda entry: -entry.count)
        shown = by_count[:10] + by_count[-10:]
        title = f'  {unit} by class, the 10 most and the 10 least frequent:'
    width = max(len(entry.name) for entry in shown)
    return [title] + [
        f'    {entry.name:<{width}}  {entry.count:>12}  {100 * entry.count / total:6.2f} %'
        + (f'  in {entry.images} images' if unit != 'images' else '')
        for entry in shown]


def _sizes(split: SplitReport) -> dict:
    """(height, width) of the smallest, the middle and the largest; sides are ranked apart."""
    if not split.sizes:
        return {}
    sizes = np.array(split.sizes)
    aspect = sizes[:, 1] / sizes[:, 0]
    return dict(min=sizes.min(0).tolist(), median=np.median(sizes, axis=0).tolist(),
                max=sizes.max(0).tolist(), aspect=[float(aspect.min()), float(aspect.max())])


def _choose(split: SplitReport, count: int) -> list[tuple[Source, Sample]]:
    """Samples that show each class where they can, then others evenly spread."""
    labelled = [entry for entry in split.samples if entry[2]] or split.samples
    seen: set[str] = set()
    chosen: list[int] = []
    for place, (source, _, labels) in enumerate(labelled):
        names = {source.classes[label] for label in labels}
        if len(chosen) < count and names - seen:
            seen |= names
            chosen.append(place)
    spread = [i * len(labelled) // count for i in range(count)]
    for place in [*spread, *range(min(count, len(labelled)))]:
        if len(chosen) < count and place not in chosen and place < len(labelled):
            chosen.append(place)
    return [labelled[place][:2] for place in sorted(chosen)]


def _draw(source: Source, sample: Sample) -> LabelledImage:
    """An image of the sheet, made smaller where it is large."""
    image = to_rgb(decode_image(Path(sample.image).read_bytes(), size=sample.size))
    height, width = image.shape[:2]
    factor = min(1.0, _LARGEST_SIDE / max(height, width))
    small = (max(1, round(width * factor)), max(1, round(height * factor)))
    label_map = instances = None
    if sample.label_map is not None:
        labels = source.to_classes(read_label_map(sample.label_map))
        label_map = cv2.resize(labels, small, interpolation=cv2.INTER_NEAREST)
    if sample.instances is not None:
        instances = _instances(sample, (height, width), small)
    title = Path(sample.image).name
    if sample.label is not None:
        title = f'{source.classes[sample.label]}\n{title}'
    return LabelledImage(cv2.resize(image, small, interpolation=cv2.INTER_AREA), title, label_map,
                         instances)


def _instances(sample: Sample, size: tuple[int, int], small: tuple[int, int]) -> Instances:
    found = sample.instances
    boxes = np.array([instance.box for instance in found], float).reshape(-1, 4)
    boxes *= [small[0] / size[1], small[1] / size[0]] * 2
    masks = None
    if found and all(instance.mask for instance in found):
        masks = np.stack([
            cv2.resize(_mask(instance.mask, size), small, interpolation=cv2.INTER_NEAREST)
            for instance in found]).astype(bool)
    return Instances(np.array([instance.label for instance in found], int), boxes, masks)


def _mask(mask: list | dict, size: tuple[int, int]) -> np.ndarray:
    """(H, W) uint8 of a COCO segmentation."""
    if isinstance(mask, list):
        mask = coco_mask.merge(coco_mask.frPyObjects(mask, *size))
    elif isinstance(mask['counts'], list):
        mask = coco_mask.frPyObjects(mask, *size)
    return coco_mask.decode(mask)
