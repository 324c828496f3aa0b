"""Damaged images and COCO files, thousands of them: each is used rightly or named, never a crash.

    python tests/fuzz/fuzz_data.py --cases 20000 --seed 1

A short run is in test_fuzz_data.py. A case that breaks a rule is printed with its seed and number,
which make it again.
"""

from __future__ import annotations

import argparse
import copy
import io
import json
import os
import random
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path

import cv2
import numpy as np
from PIL import Image

from flatten_mm.datasets import DEMO_CLASSES, make_demo_dataset
from flatten_mm.datasets.image_file import ImageFileError, decode_image

MAX_SECONDS = 5.0
SIZE = (48, 64)  # height, width of the images


# ---- images


def whole_images() -> list[bytes]:
    """An image in each format and kind of compression."""
    rng = np.random.default_rng(0)
    noise = rng.integers(0, 255, (6, 8, 3)).astype(np.uint8)
    pixels = cv2.resize(noise, SIZE[::-1], interpolation=cv2.INTER_CUBIC)
    picture = Image.fromarray(pixels)
    tags = Image.Exif()
    tags[0x0112] = 6
    files = []
    for kind, options in (
            ('JPEG', {}), ('JPEG', dict(progressive=True)), ('JPEG', dict(exif=tags)), ('PNG', {}),
            ('BMP', {}), ('TIFF', {}), ('TIFF', dict(compression='tiff_lzw')),
            ('TIFF', dict(compression='jpeg')), ('WEBP', {}), ('WEBP', dict(lossless=True)),
            ('PPM', {}), ('GIF', {})):
        file = io.BytesIO()
        picture.save(file, kind, **options)
        files.append(file.getvalue())
    files.append(cv2.imencode('.png', pixels.astype(np.uint16) * 257)[1].tobytes())
    return files


def mutate_bytes(content: bytes, others: list[bytes], rng: random.Random) -> bytes:
    """One to three changes: cut, flip, fill, splice, insert, repeat."""
    data = bytearray(content)
    for _ in range(rng.randint(1, 3)):
        place = rng.randrange(max(1, len(data)))
        length = rng.choice((1, 2, 4, 16, 64, 300))
        change = rng.randrange(7)
        if change == 0:
            del data[place:]
        elif change == 1:
            for _ in range(rng.randint(1, 20)):
                if data:
                    data[rng.randrange(len(data))] = rng.randrange(256)
        elif change == 2:  # in the header, where sizes and kinds are
            for _ in range(rng.randint(1, 4)):
                if data:
                    data[rng.randrange(min(len(data), 60))] = rng.choice((0, 1, 0x7F, 0x80, 0xFF))
        elif change == 3:
            data[place:place + length] = bytes(len(data[place:place + length]))
        elif change == 4:
            other = rng.choice(others)
            data[place:] = other[rng.randrange(len(other)):]
        elif change == 5:
            data[place:place] = rng.randbytes(length)
        else:
            data[place:place] = data[place:place + length]
    return bytes(data)


def try_image(number: int, rng: random.Random, files: list[bytes]) -> str:
    """One case; returns what came of it. Raises where a rule is broken."""
    content = mutate_bytes(files[number % len(files)], files, rng)
    size = rng.choice((None, SIZE, SIZE[::-1]))
    try:
        image = decode_image(content, size=size)
    except ImageFileError as error:
        assert str(error) and '\n' not in str(error), 'an error is one line'
        return 'image refused'
    assert image.dtype == np.uint8 and image.ndim == 3 and image.shape[2] == 3
    assert size is None or image.shape[:2] == size
    return 'image used'


# ---- COCO files

_VALUES = (None, True, -1, 0, 1, 2, 5, 10**9, 10**30, 0.5, float('nan'), float('inf'), '', 'x', '1',
           [], {}, [[]], [1, 2], [[1, 2, 3, 4]], [1, 2, 3, 4], ['a'] * 4, [[1, 2], [3, 4]],
           dict(size=[1, 1], counts=[1]), dict(size=[48, 64], counts='o' * 40), '../../etc/passwd')


def whole_coco(root: Path) -> dict:
    """The demo's content with run lengths, compressed ones and polygons."""
    from pycocotools import mask as coco_mask
    content = json.loads((root / 'annotations/train.json').read_text())
    for number, annotation in enumerate(content['annotations']):
        rle = annotation['segmentation']
        x, y, width, height = annotation['bbox']
        if number % 3 == 0:
            packed = coco_mask.frPyObjects(rle, *rle['size'])
            annotation['segmentation'] = dict(packed, counts=packed['counts'].decode())
        elif number % 3 == 1:
            annotation['segmentation'] = [
                [x, y, x + width, y, x + width, y + height, x, y + height]]
    return content


def mutate_json(content: dict, rng: random.Random) -> str:
    """The text of the content after one to three changes of random nodes, or of its text."""
    content = copy.deepcopy(content)
    for _ in range(rng.randint(1, 3)):
        parent, key = _random_place(content, rng)
        change = rng.randrange(5)
        if change == 0:
            del parent[key]
        elif change == 1 and isinstance(parent, list):
            parent.append(copy.deepcopy(parent[key]))
        elif change == 2 and isinstance(parent[key], (int, float)):
            parent[key] = parent[key] * rng.choice((-1, 0, 2, 1000)) + rng.choice((0, 1, 0.25))
        else:
            parent[key] = copy.deepcopy(rng.choice(_VALUES))
    text = json.dumps(content)
    return text[:rng.randrange(len(text))] if rng.random() < 0.05 else text


def _random_place(content: dict, rng: random.Random) -> tuple[dict | list, str | int]:
    """A container and a key of it, found by a walk that may stop anywhere below the top."""
    parent, key = content, rng.choice(sorted(content))
    while isinstance(parent[key], (dict, list)) and parent[key] and rng.random() < 0.85:
        parent = parent[key]
        key = rng.choice(sorted(parent)) if isinstance(parent, dict) else rng.randrange(len(parent))
    return parent, key


def try_coco(number: int, rng: random.Random, content: dict, root: Path) -> str:
    """One case; returns what came of it. Raises where a rule is broken."""
    from flatten_mm.datasets.folder_coco import FolderCocoDataset, FolderCocoMetric
    path = root / 'annotations/fuzz.json'
    path.write_text(mutate_json(content, rng))
    with_mask = rng.random() < 0.7
    mode = rng.choice(('refuse', 'drop'))
    try:
        dataset = FolderCocoDataset(
            data_root=str(root), ann_file='annotations/fuzz.json', with_mask=with_mask,
            data_prefix=dict(img='images/train'), metainfo=dict(classes=DEMO_CLASSES),
            bad_instances=mode, pipeline=[
                dict(type='LoadImageFromFile'),
                dict(type='LoadAnnotations', with_bbox=True, with_mask=with_mask)])
    except (ValueError, FileNotFoundError) as error:
        assert 'fuzz.json' in str(error) and '\n' not in str(error), f'names no file: {error}'
        return 'file refused'
    metric = FolderCocoMetric(ann_file=str(path), metric=['segm' if with_mask else 'bbox'])
    if with_mask:
        for annotation in metric._coco_api.anns.values():
            metric._coco_api.annToMask(annotation)
    for index in range(len(dataset)):
        try:
            result = dataset[index]
        except (ValueError, FileNotFoundError) as error:
            assert str(root / 'images/train') in str(error), f'names no image: {error}'
            continue
        labels, boxes = result['gt_bboxes_labels'], result['gt_bboxes'].tensor.numpy()
        assert len(labels) == len(boxes) and np.isfinite(boxes).all()
        assert all(0 <= label < len(DEMO_CLASSES) for label in labels)
        if with_mask:
            assert result['gt_masks'].masks.shape == (len(labels), *result['img'].shape[:2])
    return 'file used'


# ---- running


def run(cases: int, seed: int) -> tuple[Counter, list[str]]:
    """Run half the cases on images and half on COCO files.

    Returns:
        What came of them, and the reports of broken rules.
    """
    from mmengine.registry import init_default_scope
    init_default_scope('mmdet')
    outcomes: Counter = Counter()
    failures: list[str] = []
    files = whole_images()
    with tempfile.TemporaryDirectory() as folder:
        root = make_demo_dataset(Path(folder) / 'data', 3, 1).root
        content = whole_coco(root)
        for number in range(cases):
            rng = random.Random(f'{seed} {number}')
            case: Callable = ((lambda n, r: try_image(n // 2, r, files)) if number % 2 else
                              (lambda n, r: try_coco(n, r, content, root)))
            start = time.process_time()
            try:
                with redirect_stdout(io.StringIO()):  # pycocotools prints as it indexes
                    outcomes[case(number, rng)] += 1
                assert time.process_time() - start < MAX_SECONDS, 'takes too long'
            except Exception:
                outcomes['rule broken'] += 1
                failures.append(f'seed {seed} case {number}:\n{traceback.format_exc()}')
    return outcomes, failures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--cases', type=int, default=20_000)
    parser.add_argument('--seed', type=int, default=0)
    args = parser.parse_args()
    os.environ['OPENCV_LOG_LEVEL'] = 'SILENT'
    start = time.process_time()
    outcomes, failures = run(args.cases, args.seed)
    for failure in failures[:10]:
        print(failure)
    print(f'{args.cases} cases, {time.process_time() - start:.0f} s of CPU: '
          + ', '.join(f'{count} {name}' for name, count in outcomes.most_common()))
    return 1 if failures else 0


if __name__ == '__main__':
    sys.exit(main())
