"""The files that ``tools/analyze_attention.py`` writes: each analysis of a model on one image."""
from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from torch import Tensor, nn

from ..backbones.base import FOCUSED, SOFTMAX
from .attention import (
    DWC,
    LINEAR,
    MAX_TOKENS,
    attention_rows,
    check_size,
    equivalent_matrix,
)
from .figures import attention_figure, focus_figure, rank_figure
from .focus import focus_stats
from .models import LoadedImage, stride_of
from .observe import AttendCall, attention_sites, collect, find_backbone
from .rank import rank_report

TOP = 0.1  # share of the keys that counts as top
DPI = 100  # of the pictures

# What stands side by side: name -> (attention, convolutions of V).
VARIANTS: dict[str, tuple[str, tuple[str, ...]]] = {
    'focused + DWC': (FOCUSED, (DWC,)),
    'focused': (FOCUSED, ()),
    'linear': (LINEAR, ()),
    'softmax': (SOFTMAX, ()),
}


@dataclass(frozen=True)
class Choice:
    """What of a model to look at.

    Attributes:
        stage, block: from 0.
        head: from 0; None: maps show the mean of the heads, the rank is head 0's.
        channel: of a head, whose DWC kernel to use; None: maps show the mean kernel, the rank is
            channel 0's.
        max_tokens: see :func:`flatten_mm.analysis.equivalent_matrix`.
    """

    stage: int
    block: int
    head: int | None = None
    channel: int | None = None
    max_tokens: int = MAX_TOKENS


@dataclass(frozen=True)
class FocusRow:
    """A line of the focus table: one attention of one block, averaged over heads and queries."""

    module: str
    stage: int
    block: int
    branch: int
    kind: str
    attention: str
    keys: int
    entropy: float
    relative_entropy: float
    top_mass: float


def variants_of(call: AttendCall) -> dict[str, tuple[str, tuple[str, ...]]]:
    """Those of :data:`VARIANTS` that a module has: only focused attention has a DWC."""
    return {name: (attention, local) for name, (attention, local) in VARIANTS.items()
            if call.site.has_dwc or not local}


def choose(model: nn.Module, image: LoadedImage, stage: int | None = None,
           block: int | None = None, head: int | None = None, channel: int | None = None,
           max_tokens: int = MAX_TOKENS) -> Choice:
    """A choice with what is left open filled in.

    The stage is the first focused one whose matrices are within ``max_tokens`` on this image (the
    last focused one where none is; of all stages where none is focused), the block its last.

    Raises:
        ValueError: no such stage or block.
    """
    if stage is None:
        sizes = collect(model, image.batch, lambda call: (
            call.site, max(call.q.shape[1], call.k.shape[1])))
        sites = [(site, size) for site, size in sizes.values() if site.kind == FOCUSED]
        sites = sites or list(sizes.values())
        fitting = [site for site, size in sites if size <= max_tokens]
        stage = fitting[0].stage if fitting else sites[-1][0].stage
    block = attention_sites(model, stage, block)[-1].block
    return Choice(stage, block, head, channel, max_tokens)


def grid_points(width: int, height: int, count: int) -> list[tuple[float, float]]:
    """(x, y) of ``count`` x ``count`` points spread over an image, row-major."""
    return [((2 * i + 1) * width / (2 * count), (2 * j + 1) * height / (2 * count))
            for j in range(count) for i in range(count)]


# ---- attention maps


@dataclass(frozen=True)
class AttentionMaps:
    """Attention of points of an image by one module.

    Attributes:
        weights: name of the attention -> (Q, h, w) on the grid of its rows.
        cell: (height, width) of a position of that grid in pixels.
    """

    weights: dict[str, Tensor]
    cell: tuple[float, float]


def attention_maps(model: nn.Module, image: LoadedImage, points: Sequence[tuple[float, float]],
                   choice: Choice) -> dict[str, AttentionMaps]:
    """Attention of points of an image, under every attention side by side.

    Args:
        points: (x, y) in pixels.

    Returns:
        Name of the attention module -> its maps.

    Raises:
        ValueError: a point outside the image, or no such stage, block, head or channel.
    """
    height, width = image.rgb.shape[:2]
    for x, y in points:
        if not (0 <= x < width and 0 <= y < height):
            raise ValueError(f'query {x:g},{y:g} is outside the image of {width}x{height} pixels '
                             f'(x from 0 to {width - 1}, y from 0 to {height - 1})')
    stride = stride_of(find_backbone(model), choice.stage)

    def look(call: AttendCall) -> AttentionMaps:
        _check_head(call, choice.head)
        H, W = call.map_hw
        queries = [min(int(y) // stride, H - 1) * W + min(int(x) // stride, W - 1)
                   for x, y in points]
        found = {}
        for name, (attention, local) in variants_of(call).items():
            rows = attention_rows(call, queries, attention, local=local, channel=choice.channel)
            rows = rows.mean(dim=1) if choice.head is None else rows[:, choice.head]
            found[name] = rows.unflatten(1, call.row_hw).cpu()
        return AttentionMaps(found, _cell(call, stride))

    return collect(model, image.batch, look, choice.stage, choice.block)


def write_maps(model: nn.Module, image: LoadedImage, points: Sequence[tuple[float, float]],
               choice: Choice, stem: Path, dpi: int = DPI) -> list[Path]:
    """Draw :func:`attention_maps`; returns the files, ``STEM_stageI_blockJ_maps.png``."""
    found = attention_maps(model, image, points, choice)
    files = []
    for branch, (name, maps) in enumerate(found.items()):
        head = 'mean of the heads' if choice.head is None else f'head {choice.head}'
        figure = attention_figure(image.rgb, points, maps.weights, maps.cell, f'{name}, {head}')
        files.append(save(figure, _path(stem, choice, branch, len(found), 'maps.png'), dpi))
    return files


def _cell(call: AttendCall, stride: int) -> tuple[float, float]:
    """(height, width) of a position of a row in pixels of the image."""
    if not call.is_reduced:
        return stride, stride
    if call.site.module.pooled:  # to a fixed grid over the whole map
        return tuple(stride * m / k for m, k in zip(call.map_hw, call.key_hw))
    return tuple(stride * r for r in call.site.module.sr.stride)


# ---- rank


def write_rank(model: nn.Module, image: LoadedImage, choice: Choice, stem: Path,
               dpi: int = DPI) -> tuple[list[Path], list[dict[str, Any]]]:
    """Draw equivalent matrices with their ranks.

    Returns:
        The files, ``STEM_stageI_blockJ_rank.{png,json}``, and the records in the JSON.

    Raises:
        ValueError: the matrix has more than ``choice.max_tokens`` rows, or no such head or channel.
    """
    def look(call: AttendCall) -> dict[str, Tensor]:
        return {name: equivalent_matrix(
            call, choice.head or 0, attention, local=local, channel=choice.channel or 0,
            max_tokens=choice.max_tokens).cpu()
            for name, (attention, local) in variants_of(call).items()}

    matrices = collect(model, image.batch, look, choice.stage, choice.block)
    files, records = [], []
    for branch, (module, group) in enumerate(matrices.items()):
        reports = {name: rank_report(matrix) for name, matrix in group.items()}
        figure = rank_figure(group, reports, f'{module}, head {choice.head or 0}, channel '
                                             f'{choice.channel or 0} of the DWC')
        own = [dict(module=module, stage=choice.stage, block=choice.block, branch=branch,
                    head=choice.head or 0, channel=choice.channel or 0, attention=name,
                    queries=group[name].shape[0], keys=group[name].shape[1],
                    numerical_rank=report.numerical_rank, effective_rank=report.effective_rank,
                    tolerance=report.tolerance, singular_values=report.singular_values.tolist())
               for name, report in reports.items()]
        files.append(save(figure, _path(stem, choice, branch, len(matrices), 'rank.png'), dpi))
        files.append(_dump(own, _path(stem, choice, branch, len(matrices), 'rank.json')))
        records += own
    return files, records


def rank_text(records: Sequence[dict[str, Any]]) -> str:
    """Records of :func:`write_rank` as lines of text."""
    first = records[0]
    lines = [f'rank of the matrix that head {first["head"]} of stage {first["stage"]} block '
             f'{first["block"]} applies to V']
    lines += [f'  {record["attention"]:>14}: {record["numerical_rank"]:4d} of '
              f'{min(record["queries"], record["keys"])}, effective {record["effective_rank"]:.1f}'
              for record in records]
    return '\n'.join(lines)


def check_rank_size(model: nn.Module, image: LoadedImage, choice: Choice) -> None:
    """Raise ValueError where :func:`write_rank` would, before anything is computed."""
    collect(model, image.batch, lambda call: check_size(call, choice.max_tokens), choice.stage,
            choice.block)


# ---- how focused


def focus_table(model: nn.Module, image: LoadedImage) -> list[FocusRow]:
    """Entropy and top mass of every block under each attention, from the same queries and keys."""
    def look(call: AttendCall) -> list[FocusRow]:
        rows = []
        for attention in dict.fromkeys(attention for attention, _ in variants_of(call).values()):
            stats = focus_stats(call, attention, top=TOP)
            site = call.site
            rows.append(FocusRow(
                site.name, site.stage, site.block, site.branch, site.kind, attention,
                round(stats.keys), *(round(float(value.mean()), 6) for value in (
                    stats.entropy, stats.relative_entropy, stats.top_mass))))
        return rows

    return [row for rows in collect(model, image.batch, look).values() for row in rows]


def write_focus(rows: Sequence[FocusRow], stem: Path, dpi: int = DPI) -> list[Path]:
    """Write a focus table as ``STEM_focus.{csv,json,png}``."""
    table = stem.with_name(f'{stem.name}_focus.csv')
    with table.open('w', newline='', encoding='utf-8') as file:
        writer = csv.DictWriter(file, list(asdict(rows[0])))
        writer.writeheader()
        writer.writerows(asdict(row) for row in rows)
    content = [asdict(row) for row in rows]
    blocks = {row.module: row for row in rows}  # a row each, in order
    values: dict[str, dict[str, list[float]]] = dict(relative_entropy={}, top_mass={})
    for field, lines in values.items():
        for row in rows:
            lines.setdefault(row.attention, []).append(getattr(row, field))
    twins = any(row.branch for row in rows)
    labels = [f'{row.stage}.{row.block}' + 'ab'[row.branch] * twins for row in blocks.values()]
    figure = focus_figure(labels, [row.kind for row in blocks.values()],
                          values['relative_entropy'], values['top_mass'], TOP,
                          'How focused each block attends, from the same queries and keys')
    return [table, _dump(content, stem.with_name(f'{stem.name}_focus.json')),
            save(figure, stem.with_name(f'{stem.name}_focus.png'), dpi)]


def focus_text(rows: Sequence[FocusRow]) -> str:
    """A focus table as aligned text, a line a block: relative entropy and top mass."""
    names = list(dict.fromkeys(row.attention for row in rows))
    heads = ['stage', 'block', 'kind', 'keys', *(f'H {name}' for name in names),
             *(f'top {name}' for name in names)]
    lines = [heads]
    for module in dict.fromkeys(row.module for row in rows):
        own = {row.attention: row for row in rows if row.module == module}
        first = own[names[0]]
        block = f'{first.block}' + f'/{first.branch}' * (first.branch > 0)
        lines.append([str(first.stage), block, first.kind, str(first.keys),
                      *(f'{own[name].relative_entropy:.3f}' for name in names),
                      *(f'{own[name].top_mass:.3f}' for name in names)])
    widths = [max(len(line[i]) for line in lines) for i in range(len(heads))]
    text = '\n'.join('  '.join(cell.rjust(width) for cell, width in zip(line, widths))
                     for line in lines)
    return (f'{text}\nH: entropy / log(keys), 1 = uniform; top: mass in the top {100 * TOP:g} % '
            f'of the keys, {TOP:g} = uniform')


# ---- files


def _check_head(call: AttendCall, head: int | None) -> None:
    if head is not None and not 0 <= head < call.site.num_heads:
        raise ValueError(f'{call.site.label} has no head {head}; expected 0 to '
                         f'{call.site.num_heads - 1}')


def _path(stem: Path, choice: Choice, branch: int, branches: int, name: str) -> Path:
    part = f'_branch{branch}' if branches > 1 else ''
    return stem.with_name(f'{stem.name}_stage{choice.stage}_block{choice.block}{part}_{name}')


def save(figure: Figure, path: Path, dpi: int = DPI) -> Path:
    """Write a figure; returns ``path``."""
    figure.savefig(path, dpi=dpi, pil_kwargs=dict(optimize=True))
    return path


def _dump(content: Any, path: Path) -> Path:
    path.write_text(json.dumps(content, indent=1), encoding='utf-8')
    return path
