"""Pictures of predictions, large enough to read."""

from __future__ import annotations

import colorsys
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from matplotlib import font_manager
from PIL import Image, ImageDraw, ImageFont

Colour = tuple[int, int, int]

# Smaller images are enlarged: beside them text would outgrow them, on them hide what it names.
_MIN_SIDE = 512
_MIN_SIDE_UNDER_TEXT = 1024
_ALPHA = 0.5


def class_colours(count: int, palette: Sequence[Sequence[int]] | None) -> list[Colour]:
    """A colour a class: the palette's, or hues as far apart as ``count`` allows.

    A palette of another length is that of other classes (mmdet keeps COCO's when classes change).
    """
    if palette is not None and len(palette) == count:
        return [tuple(int(value) for value in colour[:3]) for colour in palette]
    colours = []
    for i in range(count):
        # neighbours in number get far hues, and two rings of brightness
        hue = (i * 0.618034) % 1
        colours.append(tuple(round(255 * value) for value in
                             colorsys.hsv_to_rgb(hue, 0.85, 1.0 if i % 2 == 0 else 0.7)))
    return colours


def draw_segmentation(image: np.ndarray, label_map: np.ndarray, classes: Sequence[str],
                      colours: Sequence[Colour]) -> Image.Image:
    """Blend a label map over an image, with a legend of the classes present.

    Args:
        image: (H, W, 3) uint8, RGB.
        label_map: (H, W) class numbers.
        classes: Name of each class.
        colours: Colour of each class.
    """
    table = np.zeros((max(len(colours), int(label_map.max()) + 1), 3), dtype=np.uint8)
    table[:len(colours)] = colours
    blended = ((1 - _ALPHA) * image + _ALPHA * table[label_map]).astype(np.uint8)
    present, pixels = np.unique(label_map, return_counts=True)
    order = np.argsort(-pixels)
    rows = [(tuple(int(value) for value in table[present[i]]),
             f'{classes[present[i]]}  {100 * pixels[i] / label_map.size:.1f} %') for i in order]
    return _with_panel(_enlarged(blended), rows)


def draw_classification(image: np.ndarray, ranking: Sequence[tuple[str, float]]) -> Image.Image:
    """Write the best classes and their scores beside an image ((H, W, 3) uint8, RGB)."""
    rows = [(None, f'{i}. {name}  {100 * score:.1f} %')
            for i, (name, score) in enumerate(ranking, start=1)]
    return _with_panel(_enlarged(image), rows)


def draw_detection(image: np.ndarray, boxes: np.ndarray, labels: Sequence[str],
                   colours: Sequence[Colour], masks: np.ndarray | None = None) -> Image.Image:
    """Draw boxes with their labels, and instance masks.

    Args:
        image: (H, W, 3) uint8, RGB.
        boxes: (N, 4) corners x1, y1, x2, y2 in pixels of ``image``.
        labels: What to write at each box.
        colours: Colour of each box.
        masks: (N, H, W) bool, or None.
    """
    blended = image.astype(np.float32)
    if masks is not None:
        for mask, colour in zip(masks, colours):
            blended[mask] = (1 - _ALPHA) * blended[mask] + _ALPHA * np.array(colour)
            blended[_outline(mask)] = colour
    picture = _enlarged(blended.astype(np.uint8), _MIN_SIDE_UNDER_TEXT)
    scale = picture.width / image.shape[1]
    draw = ImageDraw.Draw(picture)
    sides = (boxes[:, 2:] - boxes[:, :2]) * scale
    font = _font(round(np.clip(np.median(sides) / 4, 11, _text_size(picture) * 3 / 4))
                 if len(boxes) else 11)
    line = max(2, round(max(picture.size) / 400))
    for box, colour in zip(boxes * scale, colours):
        draw.rectangle([float(value) for value in box], outline=colour, width=line)
    # names last, so that no box crosses them
    for box, text, colour in zip(boxes * scale, labels, colours):
        _draw_tag(draw, float(box[0]), float(box[1]), text, colour, font, picture.size)
    return picture


def _draw_tag(draw: ImageDraw.ImageDraw, x: float, y: float, text: str, colour: Colour,
              font: ImageFont.FreeTypeFont, size: tuple[int, int]) -> None:
    """Text on its colour, above (x, y) where there is room, and inside the picture."""
    left, top, right, bottom = draw.textbbox((0, 0), text, font=font)
    width, height = right - left + 4, bottom - top + 4
    x = max(0, min(x, size[0] - width))
    y = y - height if y >= height else min(y, size[1] - height)
    draw.rectangle([x, y, x + width, y + height], fill=colour)
    draw.text((x + 2 - left, y + 2 - top), text, font=font, fill=_ink_on(colour))


def _outline(mask: np.ndarray) -> np.ndarray:
    """Pixels of a mask with a neighbour outside it."""
    inner = np.pad(mask, 1)
    inner = inner[:-2, 1:-1] & inner[2:, 1:-1] & inner[1:-1, :-2] & inner[1:-1, 2:]
    return mask & ~inner


def _enlarged(image: np.ndarray, min_side: int = _MIN_SIDE) -> Image.Image:
    picture = Image.fromarray(image)
    factor = -(-min_side // max(picture.size))  # rounded up
    if factor > 1:
        picture = picture.resize((picture.width * factor, picture.height * factor), Image.NEAREST)
    return picture


def _with_panel(picture: Image.Image, rows: Sequence[tuple[Colour | None, str]]) -> Image.Image:
    """A white panel to the right: a swatch (where a colour is given) and a text a row."""
    font = _font(_text_size(picture))
    pad = font.size // 2
    step = round(font.size * 1.5)
    swatch = font.size + pad if any(colour for colour, _ in rows) else 0
    width = round(max(font.getlength(text) for _, text in rows)) + swatch + 2 * pad
    height = max(picture.height, step * len(rows) + pad)
    result = Image.new('RGB', (picture.width + width, height), 'white')
    result.paste(picture, (0, 0))
    draw = ImageDraw.Draw(result)
    for i, (colour, text) in enumerate(rows):
        x, y = picture.width + pad, pad + i * step
        if colour is not None:
            draw.rectangle([x, y, x + font.size, y + font.size], fill=colour, outline='black')
        draw.text((x + swatch, y), text, font=font, fill='black')
    return result


def _ink_on(colour: Colour) -> str:
    red, green, blue = colour
    return 'black' if 0.299 * red + 0.587 * green + 0.114 * blue > 140 else 'white'


def _text_size(picture: Image.Image) -> int:
    return max(16, round(max(picture.size) / 45))


@lru_cache
def _font(size: int) -> ImageFont.FreeTypeFont:
    # matplotlib brings this font along, so it is there on every machine
    return ImageFont.truetype(font_manager.findfont('DejaVu Sans'), size)
