"""COCO annotation files: what in them would be dropped, mislabelled or crash, by annotation id."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from .problems import ERROR, WARNING, Problem

_LISTS = ('images', 'annotations', 'categories')
_LAYOUT = ('a COCO file has "images" (id, file_name, height, width), "annotations" (id, image_id, '
           'category_id, bbox, area, iscrowd) and "categories" (id, name)')
# A box may reach this far over the border, as rounding takes it.
_BORDER = 1.0
_LARGEST_SIDE = 1 << 20


def read_json(ann_file: str) -> dict:
    """The content of a COCO file.

    Raises:
        FileNotFoundError: There is none.
        ValueError: It is no JSON, or none of COCO's layout.
    """
    try:
        with open(ann_file, encoding='utf-8') as file:
            content = json.load(file)
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f'{ann_file} is not JSON ({error}); {_LAYOUT}') from error
    if not isinstance(content, dict):
        raise ValueError(f'{ann_file} holds a {type(content).__name__}; {_LAYOUT}')
    for key in _LISTS:
        if key not in content:
            raise ValueError(f'{ann_file} lacks {key!r}; {_LAYOUT}')
        if not isinstance(content[key], list):
            raise ValueError(f'{ann_file}: {key!r} is a {type(content[key]).__name__}, not a list; '
                             f'{_LAYOUT}')
    return content


def structure_problems(content: dict, ann_file: str) -> Iterator[Problem]:
    """Entries that lack what every reader needs, and ids and files that are there twice."""
    needed = dict(images=dict(id=_is_id, file_name=_is_name, height=_is_side, width=_is_side),
                  annotations=dict(id=_is_id, image_id=_is_id, category_id=_is_id),
                  categories=dict(id=_is_id, name=_is_name))
    for key in _LISTS:
        sound = []
        for number, entry in enumerate(content[key]):
            bad = _lacking(entry, needed[key])
            if bad:
                yield Problem(ERROR, f'{key}-entry', ann_file, bad, f'entry {number} of "{key}"')
            else:
                sound.append(entry)
        for value, count in Counter(entry['id'] for entry in sound).items():
            if count > 1:
                yield Problem(ERROR, 'duplicate-id', ann_file,
                              f'is the id of {count} entries; each must have its own',
                              f'id {value!r} of "{key}"')
        if key == 'images':
            for name, count in Counter(entry['file_name'] for entry in sound).items():
                if count > 1:
                    ids = [entry['id'] for entry in sound if entry['file_name'] == name]
                    yield Problem(ERROR, 'image-listed-twice', ann_file,
                                  f'is listed {count} times (ids {ids[:5]}), each with a part of '
                                  'its annotations; merge them', f'image {name}')


def check_instances(content: dict, ann_file: str, with_mask: bool
                    ) -> tuple[list[Problem], list[dict]]:
    """Find annotations that cannot be used or are likely wrong; the entries themselves are sound.

    Errors are labels that mmdet would lose or learn wrongly. Boxes under a pixel, which it leaves
    out too, are warnings.

    Returns:
        The problems, and the annotations that can be used; parts of their polygons that are none
        are taken out.
    """
    images = {image['id']: image for image in content['images']}
    categories = {category['id'] for category in content['categories']}
    problems: list[Problem] = []
    usable: list[dict] = []
    seen: set[tuple] = set()
    for annotation in content['annotations']:
        image = images.get(annotation['image_id'])
        found = _instance_problem(annotation, image, categories, with_mask)
        if found is None:
            key = (annotation['image_id'], annotation['category_id'], *annotation['bbox'])
            if key in seen:
                found = WARNING, 'annotation-repeated', ('has the class and box of another '
                                                         'annotation of its image')
            seen.add(key)
        if found is not None:
            level, kind, text = found
            where = f'annotation {annotation["id"]}'
            if image is not None:
                where += f' (image {image["file_name"]})'
            problems.append(Problem(level, kind, ann_file, text, where))
            if level == ERROR or image is None:
                continue
            if kind == 'polygon-part':
                annotation = dict(annotation, segmentation=[
                    part for part in annotation['segmentation'] if _is_polygon(part)])
        usable.append(annotation)
    return problems, usable


def category_problems(content: dict, ann_file: str, classes: Sequence[str]) -> Iterator[Problem]:
    """Differences between the names of the config's classes and of the file's categories.

    A file of fewer categories is a part of the data, as a small validation set is. Where each side
    has names the other lacks, one is likely misspelt, and that is an error.
    """
    in_file = list(dict.fromkeys(category['name'] for category in content['categories']))
    absent = [name for name in classes if name not in in_file]
    unused = [name for name in in_file if name not in classes]
    if absent and (unused or len(absent) == len(classes)):
        yield Problem(ERROR, 'class-unknown', ann_file,
                      f'does not name the classes {absent} of {list(classes)} among its categories '
                      f'{in_file}; give the classes those names, capitals too')
    elif absent:
        yield Problem(WARNING, 'class-absent', ann_file,
                      f'has no category {_few(absent)}: none of its images is labelled with it')
    if unused:
        yield Problem(WARNING, 'category-unused', ann_file,
                      f'has categories that are not among the classes, and their annotations are '
                      f'left out: {_few(unused)}')
    for name in in_file:
        ids = _ids_of(content, name)
        used = [i for i in ids if any(a['category_id'] == i for a in content['annotations'])]
        if len(used) > 1 and name in classes:
            yield Problem(ERROR, 'category-named-twice', ann_file,
                          f'are both called {name!r} and both have annotations; make them one',
                          f'categories {used}')


def category_ids(content: dict, classes: Sequence[str]) -> list[int]:
    """The id in the file of each class, by name; one that the file lacks gets an unused id.

    mmdet takes the ids in the order of the file and closes the gaps of absent ones, which gives
    classes each other's labels.
    """
    annotated = {annotation['category_id'] for annotation in content['annotations']}
    free = _unused_ids(category['id'] for category in content['categories'])
    ids = []
    for name in classes:
        own = _ids_of(content, name)
        ids.append(next((i for i in own if i in annotated), own[0]) if own else next(free))
    return ids


def _lacking(entry: object, needed: dict) -> str:
    """What an entry lacks; '' for a sound one."""
    if not isinstance(entry, dict):
        return f'is a {type(entry).__name__}; {_LAYOUT}'
    for key, is_sound in needed.items():
        if key not in entry:
            return f'lacks {key!r}; {_LAYOUT}'
        if not is_sound(entry[key]):
            return f'has {key} {_shown(entry[key])}; {_LAYOUT}'
    return ''


def _instance_problem(annotation: dict, image: dict | None, categories: set, with_mask: bool
                      ) -> tuple[str, str, str] | None:
    """(level, kind, text) of the gravest problem of an annotation."""
    if image is None:
        return WARNING, 'image-unknown', (f'has image_id {annotation["image_id"]!r}, which is not '
                                          'among the images, and is not used')
    if annotation['category_id'] not in categories:
        return ERROR, 'category-unknown', (f'has category_id {annotation["category_id"]!r}, which '
                                           'is not among the categories; mmdet would leave it out')
    found = _box_problem(annotation, image)
    if with_mask and (found is None or found[1] == 'box-beyond'):
        found = _mask_problem(annotation, image) or found
    return found


def _box_problem(annotation: dict, image: dict) -> tuple[str, str, str] | None:
    box = annotation.get('bbox')
    if not isinstance(box, list) or len(box) != 4 or not all(map(_is_number, box)):
        return ERROR, 'box-malformed', (f'has bbox {_shown(box)}; expected [x, y, width, height] '
                                        'in pixels')
    x, y, width, height = box
    if width < 0 or height < 0:
        return ERROR, 'box-negative', (f'has bbox {_shown(box)}, of negative width or height; '
                                       'expected [x, y, width, height], not two corners')
    if not _is_number(annotation.get('area')):
        return ERROR, 'area', (f'has area {_shown(annotation.get("area"))}' if 'area' in annotation
                               else "lacks 'area'") + '; expected its pixels'
    if width < 1 or height < 1:
        return WARNING, 'box-degenerate', (f'has bbox {_shown(box)}, under a pixel, and is left '
                                           'out')
    if (min(x + width, image['width']) <= max(x, 0)
            or min(y + height, image['height']) <= max(y, 0)):
        return ERROR, 'box-outside', (f'has bbox {_shown(box)}, wholly outside its image of width '
                                      f'{image["width"]} and height {image["height"]}; mmdet would '
                                      'leave it out')
    if annotation['area'] <= 0:
        return ERROR, 'area', (f'has area {annotation["area"]} although its bbox is {_shown(box)}; '
                               'mmdet would leave it out')
    if annotation.get('iscrowd', 0) not in (0, 1):
        return ERROR, 'iscrowd', f'has iscrowd {_shown(annotation["iscrowd"])}; expected 0 or 1'
    if (min(x, y) < -_BORDER or x + width > image['width'] + _BORDER
            or y + height > image['height'] + _BORDER):
        return WARNING, 'box-beyond', (f'has bbox {_shown(box)} [x, y, width, height], which '
                                       f'reaches beyond its image of width {image["width"]} and '
                                       f'height {image["height"]}')
    return None


def _mask_problem(annotation: dict, image: dict) -> tuple[str, str, str] | None:
    mask = annotation.get('segmentation')
    if not mask:
        return ERROR, 'mask-missing', ('has no "segmentation"; add one, or train a boxes-only '
                                       'config')
    if isinstance(mask, dict):
        return _rle_problem(mask, image)
    if not isinstance(mask, list) or not all(isinstance(part, list) for part in mask):
        return ERROR, 'polygon-malformed', ('has a segmentation that is neither an RLE nor a list '
                                            'of polygons [[x1, y1, x2, y2, ...]]')
    if not all(_is_number(value) for part in mask for value in part):
        return ERROR, 'polygon-malformed', 'has a polygon with a coordinate that is no number'
    whole = [part for part in mask if _is_polygon(part)]
    if not whole:
        return ERROR, 'polygon-short', (f'has a polygon of {len(mask[0]) / 2:g} points; expected 3 '
                                        'or more, [x1, y1, x2, y2, x3, y3, ...]')
    points = np.array([value for part in whole for value in part], float).reshape(-1, 2)
    low, high = points.min(0), points.max(0)
    if (high <= 0).any() or low[0] >= image['width'] or low[1] >= image['height']:
        return ERROR, 'mask-outside', (f'has a polygon wholly outside its image of width '
                                       f'{image["width"]} and height {image["height"]}')
    if len(whole) < len(mask):
        return WARNING, 'polygon-part', ('has a part of under 3 points or an odd number of '
                                         'coordinates, which is left out')
    # polygons go through the middle of pixels or around them
    if max(_overlap(annotation['bbox'], low, high + more) for more in (0, 1)) < 0.5:
        return WARNING, 'box-and-mask', (f'has bbox {_shown(annotation["bbox"])} [x, y, width, '
                                         f'height], but its polygons span {_shown(low.tolist())} '
                                         f'to {_shown(high.tolist())}')
    return None


def _is_polygon(part: list) -> bool:
    return len(part) >= 6 and len(part) % 2 == 0


def _rle_problem(rle: dict, image: dict) -> tuple[str, str, str] | None:
    size, counts = rle.get('size'), rle.get('counts')
    wanted = [image['height'], image['width']]
    if size != wanted:
        return ERROR, 'rle-size', (f'has an RLE of size {_shown(size)}, but its image is {wanted} '
                                   '[height, width]')
    if isinstance(counts, str):
        total = compressed_total(counts)
    elif isinstance(counts, list) and all(type(n) is int and n >= 0 for n in counts):
        total = sum(counts)
    else:
        total = None
    if total != wanted[0] * wanted[1]:
        return ERROR, 'rle-counts', (
            f'has an RLE whose runs {"cannot be read" if total is None else f"cover {total}"}, not '
            f'the {wanted[0] * wanted[1]} pixels of its image')
    return None


def compressed_total(counts: str) -> int | None:
    """Sum of the runs of a compressed RLE, None where it is damaged (pycocotools would crash).

    Six bits a character from '0': five of the number, lowest first, and whether more follow; from
    the fourth run on the difference to the run two before.
    """
    codes = np.frombuffer(counts.encode('latin1', 'replace'), np.uint8).astype(np.int64) - 48
    if not codes.size or codes.min() < 0 or codes.max() > 63 or codes[-1] & 0x20:
        return None
    ends = np.flatnonzero((codes & 0x20) == 0)
    starts = np.concatenate(([0], ends[:-1] + 1))
    lengths = ends - starts + 1
    if lengths.max() > 7:
        return None
    places = np.arange(codes.size) - np.repeat(starts, lengths)
    runs = np.add.reduceat((codes & 0x1F) << (5 * places), starts)
    runs -= np.where(codes[ends] & 0x10, np.int64(1) << (5 * lengths), 0)
    runs[1::2] = np.cumsum(runs[1::2])
    runs[2::2] = np.cumsum(runs[2::2])
    return None if runs.min() < 0 else int(runs.sum())


def _overlap(box: list, low: np.ndarray, high: np.ndarray) -> float:
    """IoU of [x, y, width, height] and the corners of another box."""
    start = np.array(box[:2], float)
    end = start + box[2:]
    sides = np.maximum(0, np.minimum(end, high) - np.maximum(start, low))
    inner = sides.prod()
    union = (end - start).prod() + (high - low).prod() - inner
    return inner / union if union > 0 else 0.0


def _ids_of(content: dict, name: str) -> list:
    return [category['id'] for category in content['categories'] if category['name'] == name]


def _unused_ids(used: Iterator) -> Iterator[int]:
    used = set(used)
    number = -1
    while True:
        if number not in used:
            yield number
        number -= 1


def _is_id(value: object) -> bool:
    return isinstance(value, (int, str)) and not isinstance(value, bool)


def _is_name(value: object) -> bool:
    return isinstance(value, str) and bool(value)


def _is_side(value: object) -> bool:
    return type(value) is int and 0 < value <= _LARGEST_SIDE


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _shown(value: object) -> str:
    if isinstance(value, list):
        value = [round(item, 2) if isinstance(item, float) else item for item in value[:8]]
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + '...'


def _few(names: list[str], count: int = 10) -> str:
    return ', '.join(names[:count]) + (f' and {len(names) - count} more'
                                       if len(names) > count else '')
