"""Loss and metric curves from mmengine's own logs (``vis_data/scalars.json``)."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

# Okabe and Ito's colours, told apart by colour-blind readers; marker and line style say it again.
_STYLES = (
    dict(color='#000000', linestyle='-', marker='o'),
    dict(color='#0072B2', linestyle='--', marker='s'),
    dict(color='#D55E00', linestyle='-.', marker='^'),
    dict(color='#009E73', linestyle=':', marker='D'),
    dict(color='#CC79A7', linestyle=(0, (5, 1, 1, 1, 1, 1)), marker='v'),
    dict(color='#E69F00', linestyle=(0, (1, 1)), marker='P'),
)
# Main scores of the three mm libraries: their names in the log, what to call them, what makes a
# percentage of them.
_SCORES = {
    'mIoU': ('mIoU', 1),
    'coco/bbox_mAP': ('box AP', 100),
    'coco/segm_mAP': ('mask AP', 100),
    'accuracy/top1': ('top-1 accuracy', 1),
}


@dataclass
class TrainingLog:
    """What one training logged: values by step, by name.

    Attributes:
        losses: ``loss`` (the sum) and its parts, such as ``loss_mask`` or ``decode.loss_ce``.
        scores: Every metric of the validations, as logged.
    """

    losses: dict[str, dict[int, float]] = field(default_factory=dict)
    scores: dict[str, dict[int, float]] = field(default_factory=dict)


def read_log(work_dir: str | os.PathLike) -> TrainingLog:
    """Read the logs of a work folder; what was logged after a resume counts for its steps.

    Raises:
        FileNotFoundError: The folder holds no ``*/vis_data/scalars.json``.
        ValueError: They hold no training.
    """
    files = sorted(Path(work_dir).glob('*/vis_data/scalars.json'))
    if not files:
        raise FileNotFoundError(f'{work_dir} holds no */vis_data/scalars.json; give the work '
                                'folder of a training whose visualizer has a LocalVisBackend')
    log = TrainingLog()
    for file in files:
        entries = [json.loads(line) for line in file.read_text().splitlines() if line.strip()]
        if any('loss' in entry for entry in entries):  # others are of a test
            _add(log, entries)
    if not log.losses:
        raise ValueError(f'the logs of {work_dir} hold no loss; has the training started?')
    return log


def curves_figure(logs: Mapping[str, TrainingLog]) -> Figure:
    """A row a training: its losses on the left, its scores on held-out images on the right.

    Args:
        logs: Title of each row -> its log.
    """
    figure = Figure(figsize=(11, 3.9 * len(logs)), layout='constrained')
    axes = figure.subplots(len(logs), 2, squeeze=False)
    for (left, right), (title, log) in zip(axes, logs.items()):
        _draw_losses(left, log)
        _draw_scores(right, log)
        left.set_title(f'{title}: loss in training')
        right.set_title(f'{title}: scores on held-out images')
        last = max(step for values in log.losses.values() for step in values)
        for axis in (left, right):
            axis.set_xlabel('iteration')
            axis.set_xlim(0, last * 1.02)
            axis.grid(alpha=0.3)
            axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    return figure


def _add(log: TrainingLog, entries: Iterable[dict]) -> None:
    for entry in entries:
        step = entry.get('step')
        kind = log.losses if 'loss' in entry else log.scores
        for name, value in entry.items():
            is_loss = name.split('.')[-1].startswith('loss')
            is_score = not is_loss and name not in ('step', 'iter', 'epoch', 'time', 'data_time')
            if is_loss if kind is log.losses else is_score:
                kind.setdefault(name, {})[step] = value


def _draw_losses(axis: Axes, log: TrainingLog) -> None:
    parts = {name: values for name, values in log.losses.items() if name != 'loss'}
    shown = {'sum': log.losses['loss']}
    if len(parts) > 1:  # a single part is the sum
        shown.update(parts)
    for (name, values), style in zip(shown.items(), _STYLES):
        axis.plot(*_sorted(values), label=name.split('.')[-1], linewidth=1.5,
                  **dict(style, marker=''))
    axis.set_ylabel('loss')
    axis.set_ylim(0, 1.05 * max(max(values.values()) for values in shown.values()))
    axis.legend(fontsize=9)


def _draw_scores(axis: Axes, log: TrainingLog) -> None:
    known = {name: _SCORES[name] for name in _SCORES if name in log.scores}
    for (name, (label, factor)), style in zip(known.items(), _STYLES[1:]):
        steps, values = _sorted(log.scores[name])
        axis.plot(steps, [value * factor for value in values],
                  label=f'{label}: {values[-1] * factor:.1f} at the end', **style)
    axis.set_ylabel('score (%)')
    axis.set_ylim(0, 100)
    if known:
        axis.legend(loc='lower right')
    else:
        axis.text(0.5, 0.5, 'no validation logged', ha='center', transform=axis.transAxes)


def _sorted(values: dict[int, float]) -> tuple[list[int], list[float]]:
    steps = sorted(values)
    return steps, [values[step] for step in steps]
