"""Contact sheets: image, truth and prediction side by side, for many images at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

_ALPHA = 0.55
_TILE = 2.1  # inches
_COLUMNS = 6
_LEGEND = 48  # classes at most
_TITLES = ('image', 'truth', 'prediction')


@dataclass(frozen=True)
class SegmentedImage:
    """``image`` (H, W, 3) uint8 RGB; ``truth`` and ``prediction`` (H, W) class numbers."""

    image: np.ndarray
    truth: np.ndarray
    prediction: np.ndarray


@dataclass(frozen=True)
class Instances:
    """``labels`` (N,), ``boxes`` (N, 4) as x1, y1, x2, y2 in pixels, ``masks`` (N, H, W) bool or
    None, ``scores`` (N,) or None for a truth."""

    labels: np.ndarray
    boxes: np.ndarray
    masks: np.ndarray | None = None
    scores: np.ndarray | None = None


@dataclass(frozen=True)
class DetectedImage:
    """``image`` (H, W, 3) uint8 RGB with its instances."""

    image: np.ndarray
    truth: Instances
    prediction: Instances


@dataclass(frozen=True)
class LabelledImage:
    """``image`` (H, W, 3) uint8 RGB with a title, and a ``label_map`` (H, W) or ``instances`` where
    it has such labels."""

    image: np.ndarray
    title: str
    label_map: np.ndarray | None = None
    instances: Instances | None = None


def labelled_sheet(samples: Sequence[LabelledImage], classes: Sequence[str],
                   palette: Sequence[Sequence[int]]) -> Figure:
    """Images with their labels drawn over them, six a row; pixels of no class are darkened."""
    rows = -(-len(samples) // _COLUMNS)
    figure = Figure(figsize=(_COLUMNS * _TILE, (rows + 0.5) * _TILE * 1.1), layout='constrained')
    axes = list(figure.subplots(rows, _COLUMNS, squeeze=False).flat)
    colours = np.array(palette, dtype=float).reshape(-1, 3)
    shown: set[int] = set()
    for axis in axes:
        axis.set_axis_off()
    for axis, sample in zip(axes, samples):
        axis.set_title(_ascii(sample.title), fontsize=6)
        if sample.label_map is not None:
            labels = sample.label_map
            known = (labels < len(colours))[..., None]
            blend = (1 - _ALPHA) * sample.image + _ALPHA * colours[np.minimum(labels,
                                                                              len(colours) - 1)]
            _show(axis, np.where(known, blend, 0.3 * sample.image).astype(np.uint8))
            shown |= set(np.unique(labels[labels < len(colours)]).tolist())
        elif sample.instances is not None:
            _show_instances(axis, sample.image, sample.instances, palette, 0)
            shown |= set(sample.instances.labels.tolist())
        else:
            _show(axis, sample.image)
    named = sorted(shown)[:_LEGEND]
    if named:
        _legend(figure, [_ascii(classes[label]) for label in named],
                [palette[label] for label in named], ncols=min(len(named), 8))
    return figure


def segmentation_sheet(samples: Sequence[SegmentedImage], classes: Sequence[str],
                       palette: Sequence[Sequence[int]]) -> Figure:
    """Label maps over their images, two samples a row; class 0 is left clear as background."""
    figure, axes = _grid(len(samples))
    colours = np.array(palette, dtype=float)
    for row, sample in zip(axes, samples):
        _show(row[0], sample.image)
        for axis, labels in zip(row[1:], (sample.truth, sample.prediction)):
            blend = (1 - _ALPHA) * sample.image + _ALPHA * colours[np.minimum(labels,
                                                                              len(colours) - 1)]
            drawn = ((labels > 0) & (labels < len(colours)))[..., None]  # 255: no class known
            _show(axis, np.where(drawn, blend, 0.45 * sample.image).astype(np.uint8))
    _legend(figure, classes[1:], palette[1:])
    return figure


def detection_sheet(samples: Sequence[DetectedImage], classes: Sequence[str],
                    palette: Sequence[Sequence[int]], score_thr: float = 0.5) -> Figure:
    """Boxes (with scores) and masks over their images, two samples a row.

    Args:
        samples: The images.
        classes: Class names.
        palette: (R, G, B) of each class, 0 to 255.
        score_thr: Predictions with a lower score are left out.
    """
    figure, axes = _grid(len(samples))
    for row, sample in zip(axes, samples):
        _show(row[0], sample.image)
        for axis, instances in zip(row[1:], (sample.truth, sample.prediction)):
            _show_instances(axis, sample.image, instances, palette, score_thr)
    _legend(figure, classes, palette)
    return figure


def _show_instances(axis: Axes, image: np.ndarray, instances: Instances,
                    palette: Sequence[Sequence[int]], score_thr: float) -> None:
    blend = 0.6 * image
    kept = [i for i in range(len(instances.labels))
            if instances.scores is None or instances.scores[i] >= score_thr]
    for i in kept:
        if instances.masks is not None:
            mask, colour = instances.masks[i], np.array(palette[instances.labels[i]])
            blend[mask] = (1 - _ALPHA) * image[mask] + _ALPHA * colour
    _show(axis, blend.astype(np.uint8))
    for i in kept:
        x1, y1, x2, y2 = instances.boxes[i]
        colour = [value / 255 for value in palette[instances.labels[i]]]
        axis.add_patch(Rectangle((x1 - 0.5, y1 - 0.5), x2 - x1, y2 - y1, fill=False,
                                 edgecolor=colour, linewidth=1.4))
        if instances.scores is not None:
            axis.text(x1, max(y1 - 1, 5), f'{100 * instances.scores[i]:.0f}', fontsize=6,
                      color='white', va='bottom', clip_on=True,
                      bbox=dict(facecolor='black', alpha=0.6, pad=0.6, linewidth=0))


def _grid(count: int) -> tuple[Figure, list[list[Axes]]]:
    """Three axes a sample, two samples a row of the figure."""
    rows = (count + 1) // 2
    figure = Figure(figsize=(6.3 * _TILE, (rows + 0.35) * _TILE), layout='constrained')
    axes = figure.subplots(rows, 6, squeeze=False)
    for axis in axes.flat:
        axis.set_axis_off()
    for column, axis in enumerate(axes[0]):
        axis.set_title(_TITLES[column % 3], fontsize=11)
    return figure, [list(row[start:start + 3]) for row in axes for start in (0, 3)]


def _show(axis: Axes, image: np.ndarray) -> None:
    axis.imshow(image, interpolation='nearest')


def _legend(figure: Figure, classes: Sequence[str], palette: Sequence[Sequence[int]],
            ncols: int | None = None) -> None:
    handles = [Patch(color=[value / 255 for value in colour[:3]], label=name)
               for name, colour in zip(classes, palette)]
    figure.legend(handles=handles, loc='outside lower center', ncols=ncols or len(handles),
                  fontsize=10 if ncols is None else 7)


def _ascii(text: str, longest: int = 28) -> str:
    """A name the font has the letters of, and none that matplotlib takes for a formula."""
    lines = [line if len(line) <= longest else f'...{line[-longest + 3:]}'
             for line in text.split('\n')]
    return '\n'.join(lines).encode('ascii', 'replace').decode().replace('$', r'\$')
