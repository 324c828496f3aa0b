"""What a model says about an image: an entry for results.json, and its picture."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from mmengine.structures import BaseDataElement
from PIL import Image
from pycocotools import mask as coco_mask

from .errors import UserError
from .overlays import (
    Colour,
    class_colours,
    draw_classification,
    draw_detection,
    draw_segmentation,
)

_TOP = 5


@dataclass
class Result:
    """One image's result.

    Attributes:
        entry: Its part of ``results.json``.
        overlay: The picture.
        label_map: (H, W) class numbers for semantic segmentation, else None.
    """

    entry: dict
    overlay: Image.Image
    label_map: np.ndarray | None = None


class Describer:
    """Turns the data sample of a model into a :class:`Result`.

    Args:
        scope: ``'mmseg'``, ``'mmdet'`` or ``'mmpretrain'``.
        classes: Class names.
        palette: A colour a class, or None.
        score_thr: Detections below it are left out.
    """

    def __init__(self, scope: str, classes: Sequence[str],
                 palette: Sequence[Sequence[int]] | None = None, score_thr: float = 0.3) -> None:
        self.classes = list(classes)
        self.colours = class_colours(len(self.classes), palette)
        self.score_thr = score_thr
        self._describe: Callable = {
            'mmseg': self._segmentation,
            'mmdet': self._detection,
            'mmpretrain': self._classification,
        }[scope]

    def __call__(self, image: np.ndarray, sample: BaseDataElement) -> Result:
        """Describe what ``sample`` holds for ``image``, (H, W, 3) uint8, RGB."""
        return self._describe(image, sample)

    def _name(self, label: int) -> str:
        return self.classes[label] if label < len(self.classes) else f'class {label}'

    def _segmentation(self, image: np.ndarray, sample: BaseDataElement) -> Result:
        label_map = _need(sample, 'pred_sem_seg').data[0].cpu().numpy()
        labels, pixels = np.unique(label_map, return_counts=True)
        shares = [dict(name=self._name(label), label=int(label),
                       share=round(float(count) / label_map.size, 6))
                  for label, count in zip(labels, pixels)]
        entry = dict(classes=sorted(shares, key=lambda item: -item['share']))
        names = [self._name(i) for i in range(int(labels.max()) + 1)]
        overlay = draw_segmentation(image, label_map, names, self._colours_of(len(names)))
        return Result(entry, overlay, label_map)

    def _detection(self, image: np.ndarray, sample: BaseDataElement) -> Result:
        found = _need(sample, 'pred_instances').cpu().numpy()
        found = found[found.scores >= self.score_thr]
        masks = found.masks.astype(bool) if 'masks' in found else None
        detections = []
        for i in range(len(found.scores)):
            detection = dict(box=[round(float(value), 2) for value in found.bboxes[i]],
                             name=self._name(int(found.labels[i])), label=int(found.labels[i]),
                             score=round(float(found.scores[i]), 4))
            if masks is not None:
                detection['mask'] = _rle(masks[i])
            detections.append(detection)
        texts = [f'{item["name"]} {item["score"]:.2f}' for item in detections]
        overlay = draw_detection(image, found.bboxes, texts, self._instance_colours(found.labels),
                                 masks)
        return Result(dict(detections=detections), overlay)

    def _instance_colours(self, labels: np.ndarray) -> list[Colour]:
        """The colour of the class; with a single class, a colour an instance tells more."""
        if len(self.classes) == 1:
            return class_colours(len(labels), None)
        colours = self._colours_of(int(max(labels, default=0)) + 1)
        return [colours[label] for label in labels]

    def _colours_of(self, count: int) -> list[Colour]:
        """Colours of the first ``count`` classes, which may be more than have a name."""
        return self.colours if count <= len(self.colours) else class_colours(count, None)

    def _classification(self, image: np.ndarray, sample: BaseDataElement) -> Result:
        scores = _need(sample, 'pred_score').cpu().numpy()
        ranking = [(int(i), float(scores[i])) for i in np.argsort(-scores)[:_TOP]]
        entry = dict(top=[dict(name=self._name(label), label=label, score=round(score, 6))
                          for label, score in ranking])
        texts = [(self._name(label), score) for label, score in ranking]
        return Result(entry, draw_classification(image, texts))


def _need(sample: BaseDataElement, field: str) -> BaseDataElement:
    value = sample.get(field)
    if value is None:
        raise UserError(f'the model gives {", ".join(sample.keys()) or "nothing"} for an image; '
                        f'expected {field}, which is what can be drawn')
    return value


def _rle(mask: np.ndarray) -> dict:
    """COCO run lengths of an (H, W) mask, ready for JSON."""
    encoded = coco_mask.encode(np.asfortranarray(mask.astype(np.uint8)))
    return dict(size=[int(side) for side in encoded['size']], counts=encoded['counts'].decode())
