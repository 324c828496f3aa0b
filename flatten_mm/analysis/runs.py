"""Several trainings side by side, from the logs mmengine writes into their work folders."""
from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ..engine.config import load_config
from ..engine.errors import UserError, one_line
from ..engine.runner import warn
from .complexity import measure

# Name in the log -> (name here, factor to per cent), in the order of the table.
METRICS: dict[str, tuple[str, float]] = {
    'mIoU': ('mIoU', 1),
    'mAcc': ('mAcc', 1),
    'coco/bbox_mAP': ('box AP', 100),
    'coco/segm_mAP': ('mask AP', 100),
    'accuracy/top1': ('top-1', 1),
}
# Okabe and Ito's colours; line styles tell runs apart without colour.
_COLOURS = ('#0072B2', '#E69F00', '#000000', '#009E73', '#D55E00', '#56B4E9', '#CC79A7')
_LINES = ('-', '--', '-.', ':')

Curve = dict[int, float]  # iteration -> value


@dataclass
class Run:
    """What the logs of one training say.

    Attributes:
        name: to show.
        loss: the sum of its losses.
        metrics: name (of :data:`METRICS`' values) -> per cent on the validation set.
        step_time: seconds an iteration, the median of the logged ones.
        memory: peak GPU memory in MiB; None where it was not logged (on a CPU).
        config: its config file, or None.
    """

    name: str
    loss: Curve = field(default_factory=dict)
    metrics: dict[str, Curve] = field(default_factory=dict)
    step_time: float | None = None
    memory: float | None = None
    config: Path | None = None

    @property
    def last(self) -> int:
        """The last iteration that was logged, of a loss or a validation."""
        return max(step for curve in (self.loss, *self.metrics.values()) for step in curve)


def read_run(work_dir: str | os.PathLike, name: str | None = None) -> Run:
    """Read the logs of a work folder, resumed trainings as one.

    What was logged before a resume counts up to the iteration where the later log begins.

    Args:
        work_dir: of one training.
        name: to show; the folder's own by default.

    Raises:
        UserError: the folder does not exist or holds no log of a training.
    """
    work_dir = Path(work_dir)
    if not work_dir.is_dir():
        raise UserError(f'work dir {work_dir} does not exist')
    run = Run(name or work_dir.name)
    times: Curve = {}
    memory: Curve = {}
    for file in sorted(work_dir.glob('*/vis_data/scalars.json')):
        entries = _entries(file)
        start = next((e['iter'] for e in entries if 'loss' in e and 'iter' in e), None)
        if start is None:  # of a test
            continue
        for curve in (run.loss, times, memory, *run.metrics.values()):
            for step in [step for step in curve if step >= start]:
                del curve[step]
        _add(run, times, memory, entries)
        config = file.with_name('config.py')
        run.config = config if config.is_file() else run.config
    if not run.loss:
        raise UserError(f'work dir {work_dir} holds no log of a training (*/vis_data/scalars.json '
                        'with a loss); give the folder that --work-dir named, of a run that has '
                        'reached its first logged step (default_hooks.logger.interval) and whose '
                        'visualizer has a LocalVisBackend')
    run.metrics = {name: curve for name, curve in run.metrics.items() if curve}
    run.step_time = median(times.values()) if times else None
    run.memory = max(memory.values(), default=None)
    return run


def read_runs(work_dirs: Sequence[str | os.PathLike]) -> list[Run]:
    """:func:`read_run` of each folder, named by its path where folder names coincide."""
    paths = [Path(folder) for folder in work_dirs]
    names = [path.resolve().name for path in paths]
    return [read_run(path, name if names.count(name) == 1 else str(path))
            for path, name in zip(paths, names)]


def _entries(file: Path) -> list[dict[str, Any]]:
    lines = file.read_text(encoding='utf-8').splitlines()
    entries = []
    for number, line in enumerate(lines, start=1):
        try:
            entries.append(json.loads(line))
        except json.JSONDecodeError as error:
            if number == len(lines):  # a run that was killed leaves half a line
                break
            raise UserError(f'line {number} of log {file} is no JSON ({error.msg}); remove the '
                            'line to use the others') from error
    return entries


def _add(run: Run, times: Curve, memory: Curve, entries: list[dict[str, Any]]) -> None:
    by_epoch = any('epoch' in entry for entry in entries)
    iteration = 0
    for entry in entries:
        if 'loss' in entry:
            iteration = entry['iter']
            run.loss[iteration] = entry['loss']
            for key, curve in (('time', times), ('memory', memory)):
                if key in entry:
                    curve[iteration] = entry[key]
            continue
        # By epoch, and with mmengine's default logger hook by iteration as well, a validation is
        # logged at the number of the epoch; its place in the file says more.
        step = iteration if by_epoch or not entry.get('step') else entry['step']
        for key, (name, factor) in METRICS.items():
            if key in entry:
                run.metrics.setdefault(name, {})[step] = entry[key] * factor


# ---- table


@dataclass(frozen=True)
class Cost:
    """Size of a run's model, see :func:`flatten_mm.analysis.complexity.measure`."""

    params: int
    flops: int
    shape: tuple[int, int]


def cost_of(run: Run, shape: tuple[int, int] | None = None) -> Cost | None:
    """Parameters and FLOPs from the config in the work folder; None where that does not work."""
    if run.config is None:
        return None
    try:
        found = measure(load_config(run.config), shape)
    except Exception as error:  # a table without a column is better than none
        warn(f'{run.name}: no FLOPs, since its config {run.config} cannot be built here: '
             f'{one_line(error)}')
        return None
    return Cost(found.params, found.flops, tuple(found.shape))


def markdown_table(runs: Sequence[Run], costs: Sequence[Cost | None]) -> str:
    """One row a run; columns that no run has are left out.

    A metric is the last one logged, and in brackets the best where that is another.
    """
    columns: dict[str, list[str | None]] = {'iterations': [str(run.last) for run in runs]}
    for name, _ in METRICS.values():
        columns[name] = [_score(run.metrics.get(name)) for run in runs]
    columns['params (M)'] = [cost and f'{cost.params / 1e6:.2f}' for cost in costs]
    columns['FLOPs (G)'] = [
        cost and f'{cost.flops / 1e9:.2f} at {cost.shape[0]}x{cost.shape[1]}' for cost in costs]
    columns['s a step'] = [run.step_time and f'{run.step_time:.3f}' for run in runs]
    columns['memory (GiB)'] = [run.memory and f'{run.memory / 1024:.2f}' for run in runs]
    columns = {name: cells for name, cells in columns.items() if any(cells)}
    lines = [['run', *columns], ['---', *('---:' for _ in columns)]]
    lines += [[run.name, *(cells[i] or '–' for cells in columns.values())]
              for i, run in enumerate(runs)]
    return '\n'.join(f'| {" | ".join(line)} |' for line in lines) + '\n'


def _score(curve: Curve | None) -> str | None:
    if not curve:
        return None
    last, best = curve[max(curve)], max(curve.values())
    return f'{last:.1f}' + (f' ({best:.1f})' if round(best, 1) > round(last, 1) else '')


# ---- picture


@rc_context({'font.size': 12, 'axes.titlesize': 13})
def runs_figure(runs: Sequence[Run]) -> Figure:
    """The loss, and each metric that a run has, against the iteration; a line a run."""
    names = [name for name, _ in METRICS.values() if any(name in run.metrics for run in runs)]
    panels = 1 + len(names)
    columns = min(panels, 3)
    rows = -(-panels // columns)
    figure = Figure(figsize=(4.4 * columns, 3.4 * rows + 0.3 * len(runs) + 0.2),
                    layout='constrained')
    axes = figure.subplots(rows, columns, squeeze=False).flatten()
    for i, run in enumerate(runs):
        style = dict(color=_COLOURS[i % len(_COLOURS)], linestyle=_LINES[i % len(_LINES)],
                     linewidth=1.8)
        axes[0].plot(*_sorted(run.loss), label=run.name, **style,
                     marker='o' if len(run.loss) == 1 else None)
        for axis, name in zip(axes[1:], names):
            if name in run.metrics:
                axis.plot(*_sorted(run.metrics[name]), marker='o', markersize=4, **style)
    last = max(run.last for run in runs)
    for axis, title in zip(axes, ['training loss', *(f'{name} (%)' for name in names)]):
        axis.set_title(title)
        axis.set(xlabel='iteration', xlim=(0, 1.03 * last))
        axis.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        axis.grid(alpha=0.3)
    for axis in axes[1:panels]:
        low, high = axis.get_ylim()
        axis.set_ylim(low - 1, high + 1)  # differences far below a point are no differences
    for axis in axes[panels:]:
        axis.set_visible(False)
    figure.legend(*axes[0].get_legend_handles_labels(), loc='outside lower center')
    return figure


def _sorted(curve: Curve) -> tuple[list[int], list[float]]:
    steps = sorted(curve)
    return steps, [curve[step] for step in steps]
