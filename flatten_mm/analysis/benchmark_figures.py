"""Pictures of benchmarks: against pixels, and accuracy against time."""
from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator

from .benchmark import Measurement
from .curves import _STYLES

MiB = 2**20


def pixels_figure(found: Sequence[Measurement]) -> Figure:
    """Time against the pixels of an image, memory below if any was measured; a column a kind."""
    kinds = list(dict.fromkeys(_kind(m) for m in found))
    names = list(dict.fromkeys(m.model for m in found))
    panels = 1 + any(m.saved_bytes or m.peak_bytes for m in found)
    figure = Figure(figsize=(max(5.2 * len(kinds), 7.5), 1 + 3.5 * panels), layout='constrained')
    axes = figure.subplots(panels, len(kinds), squeeze=False)
    for column, kind in enumerate(kinds):
        axes[0, column].set_title(kind)
        rows = [m for m in found if _kind(m) == kind]
        sizes = sorted({(_pixels(m), f'{m.case.height}x{m.case.width}') for m in rows})
        # What autograd keeps is the memory that a training step is limited by.
        memory = (('saved_bytes', MiB, 'saved for backward (MiB)') if kind.startswith('train')
                  else ('peak_bytes', MiB, 'peak added by a run (MiB)'))
        shown = (('median', 1e-3, 'median time (ms)'), memory)
        for axis, (field, unit, label) in zip(axes[:, column], shown):
            axis.set_ylabel(label)
            for name, style in zip(names, _cycle(len(names))):
                own = sorted((m for m in rows if m.model == name), key=_pixels)
                values = [getattr(m, field) for m in own]
                _draw(axis, name, [(_pixels(m), value and value / unit)
                                   for m, value in zip(own, values)], style)
            _finish(axis, sizes)
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc='outside lower center', ncols=min(len(names), 2))
    return figure


def accuracy_figure(found: Sequence[Measurement], accuracies: Mapping[str, float]) -> Figure:
    """Top-1 accuracy against time, as the paper's Figure 7; a line a family.

    Args:
        found: of one case.
        accuracies: model -> top-1 in percent, as the paper reports it.
    """
    figure = Figure(figsize=(7, 5), layout='constrained')
    axis = figure.subplots()
    shown = [m for m in found if m.median and m.model in accuracies]
    families = list(dict.fromkeys(_family(m.model) for m in shown))
    for family, style in zip(families, _cycle(len(families))):
        own = sorted((m for m in shown if _family(m.model) == family), key=lambda m: m.median)
        axis.plot([m.median * 1e3 for m in own], [accuracies[m.model] for m in own],
                  label=family, **style)
        for m in own:
            text = f'{_size(m.model)} {accuracies[m.model]:.1f}'
            axis.annotate(text, (m.median * 1e3, accuracies[m.model]), fontsize=8,
                          textcoords='offset points', xytext=(5, -12))
    case = shown[0].case
    axis.set_xlabel(f'median time of the backbone (ms), {case}, measured')
    axis.set_ylabel('ImageNet top-1 (%), reported by the paper, not measured')
    axis.set_title('accuracy against time, as Figure 7 of the paper')
    axis.margins(x=0.15)
    axis.grid(alpha=0.3)
    axis.legend()
    return figure


def _kind(m: Measurement) -> str:
    return f'{m.case.mode} {m.case.dtype}, batch {m.case.batch}, {m.case.device}'


def _pixels(m: Measurement) -> int:
    return m.case.height * m.case.width


def _family(name: str) -> str:
    """A model's name without its size: ``FLattenPVT:tiny:SSSS`` -> ``FLattenPVT SSSS``."""
    return _split_name(name)[0]


def _size(name: str) -> str:
    return _split_name(name)[1]


def _split_name(name: str) -> tuple[str, str]:
    """Family and size of a name or of a config called as mm calls its own."""
    if name.endswith('.py'):
        stem = name.rsplit('/', 1)[-1].split('_')[0]
        softmax = '-softmax' if stem.endswith('-softmax') else ''
        family, _, size = stem.removesuffix('-softmax').rpartition('-')
        return family + softmax, size
    words = name.split(':')
    kind = next(i for i, word in enumerate(words) if word not in ('released', 'compiled'))
    return ' '.join(words[:kind + 1] + words[kind + 2:]), ''.join(words[kind + 1:kind + 2])


def _cycle(count: int) -> list[dict]:
    """``count`` styles, all different: each round pairs the lines with the colours otherwise."""
    rounds = len(_STYLES)
    return [dict(_STYLES[i % rounds], color=_STYLES[(i + i // rounds) % rounds]['color'])
            for i in range(count)]


def _draw(axis: Axes, name: str, points: Sequence[tuple[int, float | None]], style: dict) -> None:
    points = [point for point in points if point[1]]
    axis.plot([x for x, _ in points], [y for _, y in points], label=name, **style)


def _finish(axis: Axes, sizes: Sequence[tuple[int, str]]) -> None:
    if not any(len(line.get_xdata()) for line in axis.lines):
        axis.text(0.5, 0.5, 'not measured', ha='center', transform=axis.transAxes)
        axis.set_axis_off()
        return
    axis.set_xscale('log')
    axis.set_yscale('log')
    axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f'{value:g}'))
    axis.set_xticks([x for x, _ in sizes], [text for _, text in sizes])
    axis.minorticks_off()
    axis.set_xlabel('image, pixels on a log scale')
    axis.grid(alpha=0.3, which='both')
