"""Pictures of attention; each function returns a matplotlib figure and knows no model."""
from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from matplotlib import colormaps, rc_context
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from torch import Tensor

from ..attention.focused import focused_map
from .rank import RankReport

# Okabe and Ito's colours, told apart by colour-blind readers, each with a line style and a marker
# of its own for print without colour.
STYLES: dict[str, dict[str, str]] = {
    'focused + DWC': dict(color='#0072B2', linestyle='-', marker='o'),
    'focused': dict(color='#56B4E9', linestyle='--', marker='s'),
    'linear': dict(color='#E69F00', linestyle='-.', marker='^'),
    'softmax': dict(color='#000000', linestyle=':', marker='D'),
}
# A map with a DWC is coloured on the scale of the same attention without: its few local weights are
# so much larger that nothing else would show.
SCALED_LIKE = {'focused + DWC': 'focused'}
HEAT = 'viridis'
_TEXT = {'font.size': 13, 'axes.titlesize': 13, 'figure.titlesize': 13}  # readable at half size


@rc_context(_TEXT)
def attention_figure(image: np.ndarray, points: Sequence[tuple[float, float]],
                     maps: dict[str, Tensor], cell: tuple[float, float], title: str = '') -> Figure:
    """Attention of query points over an image: a row a point, a column an attention.

    Each panel is scaled to its own largest weight, which stands above it (see also
    :data:`SCALED_LIKE`); negative weights, which only a convolution has, show as none.

    Args:
        image: (H, W, 3) uint8, RGB.
        points: (x, y) of the queries in pixels, in the order of the maps.
        maps: name of the attention -> (Q, h, w) weights of every position of a map.
        cell: (height, width) of a position of the map in pixels of the image.
        title: above everything.
    """
    rows, columns = len(points), len(maps) + 1
    height = 2.3 * image.shape[0] / image.shape[1]
    figure = Figure(figsize=(2.3 * columns + 0.7, (height + 0.55) * rows + 0.5),
                    layout='constrained')
    axes = figure.subplots(rows, columns, squeeze=False)
    grey = np.round(image.mean(axis=2) / 255 * 15) / 15  # few shades are enough
    for row, (x, y) in zip(range(rows), points):
        _show(axes[row, 0], image)
        axes[row, 0].set_title(f'query at ({x:g}, {y:g})')
        for axis, (name, weights) in zip(axes[row, 1:], maps.items()):
            limit = float(maps.get(SCALED_LIKE.get(name, name), weights)[row].max())
            _show_heat(axis, grey, weights[row].detach().cpu().float().numpy(), limit, cell)
            axis.set_title(f'{name}\nlargest {float(weights[row].max()):.2g}')
        for axis in axes[row]:
            for size, colour in ((11, 'black'), (9, 'white')):
                axis.plot([x], [y], marker='o', markersize=size, markerfacecolor='none',
                          markeredgecolor=colour, markeredgewidth=1.6, linestyle='')
    bar = figure.colorbar(ScalarMappable(Normalize(0, 1), HEAT), ax=axes, shrink=0.8, aspect=30)
    bar.set_label('weight / largest of the panel' + (
        '\n(+ DWC: of the same without)' if set(SCALED_LIKE) & set(maps) else ''))
    figure.suptitle(title)
    return figure


def _show(axis: Axes, image: np.ndarray) -> None:
    height, width = image.shape[:2]
    axis.imshow(image, extent=(0, width, height, 0), interpolation='nearest')
    axis.set(xlim=(0, width), ylim=(height, 0), xticks=[], yticks=[])


def _show_heat(axis: Axes, grey: np.ndarray, weights: np.ndarray, limit: float,
               cell: tuple[float, float]) -> None:
    """Draw (h, w) weights as colours on an image, (H, W) from 0 to 1, that shades them."""
    height, width = grey.shape
    # Pixels beyond the last whole cell belong to none; they show its colour.
    rows = np.minimum(np.arange(height) / cell[0], weights.shape[0] - 1).astype(int)
    columns = np.minimum(np.arange(width) / cell[1], weights.shape[1] - 1).astype(int)
    share = np.clip(weights / max(limit, 1e-30), 0, 1)[np.ix_(rows, columns)]
    colours = colormaps[HEAT](share)[..., :3]
    _show(axis, colours * (0.45 + 0.55 * grey[..., None]))


@rc_context(_TEXT)
def rank_figure(matrices: dict[str, Tensor], reports: dict[str, RankReport],
                title: str = '') -> Figure:
    """Equivalent attention matrices, and their singular values below.

    Args:
        matrices: name of the attention -> (N, M); colours span its middle 98 %.
        reports: name -> its :func:`flatten_mm.analysis.rank_report`.
        title: above everything.
    """
    figure = Figure(figsize=(2.8 * len(matrices) + 0.4, 7.2), layout='constrained')
    grid = figure.add_gridspec(2, len(matrices), height_ratios=[1, 1.05])
    for column, (name, matrix) in enumerate(matrices.items()):
        axis = figure.add_subplot(grid[0, column])
        values = matrix.detach().cpu().double().numpy()
        low, high = np.quantile(values, [0.01, 0.99])
        axis.imshow(values, cmap=HEAT, vmin=low, vmax=max(high, low + 1e-12), aspect='auto',
                    interpolation='nearest' if values.size < 10**6 else 'antialiased')
        report = reports[name]
        axis.set_title(f'{name}\nrank {report.numerical_rank} of {min(values.shape)}\n'
                       f'effective rank {report.effective_rank:.1f}')
        axis.set_xlabel('key')
        axis.set_ylabel('query' if column == 0 else '')
    axis = figure.add_subplot(grid[1, :])
    for name, report in reports.items():
        values = report.singular_values.cpu().numpy()
        floor = report.tolerance / values[0]
        style = {**_style(name), 'marker': ''}
        axis.semilogy(np.arange(1, len(values) + 1), np.clip(values / values[0], floor / 30, None),
                      label=name, linewidth=2, **style)
    axis.axhline(floor, color='#CC79A7', linewidth=1)
    axis.text(len(values) / 2, floor * 0.8, 'counts as zero', ha='center', va='top',
              color='#A0527C')
    axis.set(xlabel='number of the singular value', ylabel='singular value / largest',
             xlim=(0, 1.02 * len(values)), ylim=(floor / 20, 2))
    axis.grid(alpha=0.3)
    axis.legend(fontsize=12)
    figure.suptitle(title)
    return figure


@rc_context(_TEXT)
def focus_figure(labels: Sequence[str], own: Sequence[str], entropy: dict[str, Sequence[float]],
                 top_mass: dict[str, Sequence[float]], top: float, title: str = '') -> Figure:
    """How focused every block is: relative entropy, and mass in the top keys.

    Args:
        labels: of the blocks, in order.
        own: name of the attention that each block really has; drawn filled.
        entropy: name of the attention -> relative entropy of every block.
        top_mass: name -> mass in the top keys of every block.
        top: share of the keys that counts as top.
        title: above everything.
    """
    figure = Figure(figsize=(max(8., 0.45 * len(labels) + 2.5), 7), layout='constrained')
    upper, lower = figure.subplots(2, 1, sharex=True)
    places = np.arange(len(labels))
    for axis, values in ((upper, entropy), (lower, top_mass)):
        for name, line in values.items():
            style = _style(name)
            axis.plot(places, line, label=name, linewidth=1.6, markersize=7,
                      markerfacecolor='white', **style)
            real = [i for i in places if own[i] == name]
            axis.plot(real, [line[i] for i in real], marker=style['marker'], markersize=7,
                      color=style['color'], linestyle='')
        axis.grid(alpha=0.3)
        axis.set_ylim(0, 1.05)
    upper.axhline(1, color='#888888', linewidth=1)
    lower.axhline(top, color='#888888', linewidth=1)
    upper.set_ylabel('entropy / log(keys)\n(1 = uniform)')
    lower.set_ylabel(f'mass in the top {100 * top:g} % of keys\n({top:g} = uniform)')
    lower.set_xticks(places, labels, rotation=45 if len(labels) > 12 else 0,
                     ha='right' if len(labels) > 12 else 'center')
    lower.set_xlabel('block (stage.block); filled markers: the attention the block has')
    upper.legend(ncols=len(entropy), fontsize=12, loc='lower left')
    figure.suptitle(title)
    return figure


@rc_context(_TEXT)
def focused_map_figure(powers: Sequence[float] = (1, 2, 3, 4, 8)) -> Figure:
    """The focused map in two dimensions: vectors go to the nearest axis, norms stay (figure 4).

    Args:
        powers: a panel each.
    """
    angles = torch.linspace(4, 86, 11, dtype=torch.float64).deg2rad()
    norms = torch.tensor([1., 0.72], dtype=torch.float64).repeat(6)[:11]
    vectors = norms[:, None] * torch.stack([angles.cos(), angles.sin()], dim=1)
    figure = Figure(figsize=(2.7 * len(powers), 3.7), layout='constrained')
    axes = figure.subplots(1, len(powers), sharey=True, squeeze=False)[0]
    below = angles < angles.new_tensor(45.).deg2rad() - 1e-9
    above = angles > angles.new_tensor(45.).deg2rad() + 1e-9
    arc = np.linspace(0, np.pi / 2, 100)
    for axis, power in zip(axes, powers):
        for norm in (1., 0.72):
            axis.plot(norm * np.cos(arc), norm * np.sin(arc), color='#999999', linewidth=0.8)
        axis.plot([0, 1.1], [0, 1.1], color='#999999', linewidth=0.8, linestyle=':')
        mapped = focused_map(vectors, power)
        for side, colour in ((below, '#0072B2'), (above, '#E69F00'), (~(below | above), 'black')):
            for before, after in zip(vectors[side], mapped[side]):
                axis.plot(*before.tolist(), marker='o', markersize=4, markerfacecolor='white',
                          color=colour, linestyle='')
                axis.annotate('', xy=after.tolist(), xytext=(0, 0), arrowprops=dict(
                    arrowstyle='-|>', color=colour, shrinkA=0, shrinkB=0, linewidth=1.4))
        axis.set(title=f'p = {power:g}', xlim=(-0.03, 1.12), ylim=(-0.03, 1.12),
                 xlabel='channel 1', aspect='equal', xticks=[0, 0.5, 1], yticks=[0, 0.5, 1])
    axes[0].set_ylabel('channel 2')
    figure.suptitle('Focused map f_p: circles are vectors before it, arrows after; arcs are equal '
                    'norms')
    return figure


def _style(name: str) -> dict[str, str]:
    return STYLES.get(name, dict(color='#009E73', linestyle='-', marker='v'))
