"""Loading a checkpoint into a backbone: prefix, position tables, attention kinds, the report."""
from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from logging import Logger
from pathlib import Path

import torch
from mmengine.logging import MMLogger
from torch import Tensor, nn

from ..attention.grid import Size, resize_grid_table
from .identify import identify, stage_and_block
from .read import Checkpoint, CheckpointError, printable, read_checkpoint

# Buffers that a model computes by itself.
RECOMPUTED = re.compile(r'(^|\.)(attn_mask|relative_position_index)$')
# Position tables by name: how each is interpolated, and the attribute beside it that holds its
# grid in the model (none for a bias table, which lies on a square of window offsets).
_TABLES = (
    (re.compile(r'(?:^|\.)positional_encoding$'), 'bicubic', 'key_grid'),
    (re.compile(r'(?:^|\.)relative_position_bias_table$'), 'bicubic', None),
    (re.compile(r'(?:^|\.)(?:absolute_)?pos_embed$'), 'bicubic', 'pos_grid'),
    (re.compile(r'(?:^|\.)pos_embed(\d+)$'), 'bilinear', r'pos_grid\1'),
)
# Parameters that come with one kind of attention, inside a block.
_FOCUSED_ONLY = re.compile(r'.*\battns?(\.\d+)?\.(dwc\.\w+|scale|positional_encoding)$')
_DWC, _FEATURES = {'dwc.weight', 'dwc.bias'}, {'scale', 'positional_encoding'}
# What of them a block may have: other attentions have none or the convolution, an ablation of
# focused attention has none. Any other part of them is a damaged file.
_WHOLE = (set(), _DWC, _FEATURES, _DWC | _FEATURES)
_KIND_ONLY = re.compile(_FOCUSED_ONLY.pattern
                        + r'|.*\battn\.(relative_position_bias_table|sr\.\w+|norm\.\w+)$')
_LEPE = re.compile(r'(.*\battns)\.(\d+)\.(get_v\.\w+)$')
_EXTRA_TOKENS = ('cls_token', 'dist_token')  # each takes a first row of a position table
_NAMES_SHOWN = 4
_LONGEST_NAME = 120
# For a user whose config names a file that is not there; where it stands is added.
NO_FILE_HINT = ('released files are linked on https://github.com/LeapLabTHU/FLatten-Transformer; '
                'download one and give its path, or start from scratch with')


@dataclass
class LoadReport:
    """What became of every name of a file and of a backbone.

    Attributes:
        source: the file, and the entry of it that was read.
        prefix: stripped from the names of the file.
        model: what the weights went into.
        file_is: what the file seems to be.
        loaded: names whose weights came from the file (the resized ones included).
        resized: position tables -> (grid in the file, grid in the model).
        merged: names made of several of the file's (CSwin's LePE of two branches, or of one).
        fresh: names that only the model's kind of attention has, which keep their start.
        missing: other names in the model and not in the file, which keep their start.
        left_over: names in the file the model has no place for.
        recomputed: buffers in the file that the model computes itself.
        cast: dtypes in the file other than the model's -> number of tensors converted.
        notes: anything else worth knowing.
    """

    source: str
    prefix: str
    model: str
    file_is: str
    loaded: list[str] = field(default_factory=list)
    resized: dict[str, tuple[Size, Size]] = field(default_factory=dict)
    merged: list[str] = field(default_factory=list)
    fresh: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    left_over: list[str] = field(default_factory=list)
    recomputed: list[str] = field(default_factory=list)
    cast: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def summary(self) -> str:
        """The report as text, a line a heading, long lists abbreviated."""
        resized = [f'{name} {_grid(src)} -> {_grid(dst)}'
                   for name, (src, dst) in self.resized.items()]
        lines = [f'{self.model} from {self.source}',
                 f'  the file: {self.file_is}'
                 + (f", names under '{printable(self.prefix)}'" if self.prefix else ''),
                 f'  loaded: {len(self.loaded)}']
        for title, names in (
            ('resized (from -> to)', resized),
            ('merged from other branches', self.merged),
            ('fresh (of an attention the file lacks)', self.fresh),
            ('missing (in the model, not in the file)', self.missing),
            ('left over (in the file, not in the model)', self.left_over),
            ('recomputed by the model', self.recomputed),
        ):
            lines.append(f'  {title}: {len(names)}' + (f': {abbreviate(names)}' if names else ''))
        lines += [f'  converted from {dtype}: {count}' for dtype, count in self.cast.items()]
        return '\n'.join(lines + [f'  note: {note}' for note in self.notes])


def abbreviate(names: Iterable[str]) -> str:
    """The first few names and how many more there are."""
    names = list(names)
    more = f', ... (+{len(names) - _NAMES_SHOWN})' if len(names) > _NAMES_SHOWN else ''
    return ', '.join(printable(name[:_LONGEST_NAME]) for name in names[:_NAMES_SHOWN]) + more


def load_backbone(module: nn.Module, path: str | Path, *, logger: Logger | None = None
                  ) -> LoadReport:
    """Load a released, mm, plain or safetensors checkpoint into a backbone and log the report.

    Position tables on another grid are resized: a table in a file is taken to lie on a square
    grid, one in the model on the grid that the module it belongs to keeps beside it (``key_grid``,
    ``pos_grid``), else on a square one. A file of the same family whose
    blocks have another kind of attention (Swin into FLattenSwin) is a warm start: what both kinds
    share is loaded, the rest starts fresh.

    Args:
        module: the backbone; its own weights are only written to when all checks have passed.
        path: file or http(s) URL, see :func:`read_checkpoint`.
        logger: takes the report; mmengine's current one by default.

    Raises:
        FileNotFoundError: there is no such file.
        CheckpointError: the file cannot be read, is of another family or size, or holds NaN,
            infinite or integer weights. The model is unchanged then.
    """
    try:
        checkpoint = read_checkpoint(path)
    except FileNotFoundError as error:
        raise FileNotFoundError(f'{error}; {NO_FILE_HINT} init_cfg=None') from error
    weights, report = fit_state_dict(module, checkpoint)
    module.load_state_dict(weights, strict=False)
    logger = logger or MMLogger.get_current_instance()
    # Output norms start fresh by design, as in mmdet's backbones; anything else is worth a look.
    unusual = any(not re.match(r'norm\d*\.', name) for name in report.missing)
    (logger.warning if unusual else logger.info)(report.summary())
    return report


def fit_state_dict(module: nn.Module, checkpoint: Checkpoint
                   ) -> tuple[dict[str, Tensor], LoadReport]:
    """Weights of a checkpoint under the names, shapes and dtypes of ``module``, and the report.

    Raises:
        CheckpointError: see :func:`load_backbone`.
    """
    target = {name: t for name, t in module.state_dict().items() if not RECOMPUTED.search(name)}
    prefix = find_prefix(checkpoint.state_dict, target)
    source = {name[len(prefix):]: tensor for name, tensor in checkpoint.state_dict.items()
              if name.startswith(prefix)}
    outside = [name for name in checkpoint.state_dict if not name.startswith(prefix)]
    report = LoadReport(str(checkpoint), prefix, type(module).__name__,
                        str(identify(checkpoint.state_dict) or 'not of a family known here'))
    report.recomputed = [name for name in source if RECOMPUTED.search(name)]
    source = {name: t for name, t in source.items() if not RECOMPUTED.search(name)}

    source, report.merged = _match_lepe_branches(source, target)
    _drop_extra_tokens(source, target, report)
    _cast(source, target, checkpoint, report)
    _resize_tables(module, source, target, report)
    report.fresh, left_by_kind = _split_by_attention(source, target)

    problems = _family_problems(source, target, report.fresh) or _conflicts(
        source, target, {*report.fresh, *left_by_kind}, getattr(module, 'depths', ()))
    if problems:
        expected = identify(target)
        raise CheckpointError(
            f'{checkpoint} does not fit {report.model}'
            + (f', here {expected}' if expected else '')
            + f': the file seems to be {report.file_is}. {problems}')

    weights = {name: source[name] for name in target if name in source}
    check_finite(weights, checkpoint)
    report.loaded = list(weights)
    report.missing = [n for n in target if n not in source and n not in report.fresh]
    report.left_over = [n for n in source if n not in target] + outside
    if checkpoint.skipped:
        report.notes.append(f'entries that are no tensors: {abbreviate(checkpoint.skipped)}')
    return weights, report


def find_prefix(source: Mapping[str, Tensor], target: Mapping[str, Tensor]) -> str:
    """The prefix (``''`` or ending in ``'.'``) under which most names and shapes match."""
    matches: dict[str, list[int]] = {'': [0, 0]}  # prefix -> [shapes alike, names alike]
    for name, tensor in source.items():
        starts = [0] + [m.end() for m in re.finditer(r'\.', name)]
        for start in starts:
            like = target.get(name[start:])
            if like is not None:
                count = matches.setdefault(name[:start], [0, 0])
                count[0] += tensor.shape == like.shape
                count[1] += 1
    return max(matches, key=lambda prefix: (*matches[prefix], -len(prefix)))


# ---- position tables


def _drop_extra_tokens(source: dict[str, Tensor], target: Mapping[str, Tensor],
                       report: LoadReport) -> None:
    """Drop the rows of class tokens from position tables where the model has no such token."""
    extra = [token for token in _EXTRA_TOKENS if token in source and token not in target]
    if not extra:
        return
    for name in source:
        if re.fullmatch(r'pos_embed\d*', name) and not _is_square(source[name].shape[1]):
            rows = source[name].shape[1] - len(extra)
            if _is_square(rows):
                source[name] = source[name][:, len(extra):]
                report.notes.append(f'dropped the row{"s" * (len(extra) > 1)} of '
                                    f'{" and ".join(extra)} from {name}')


def _resize_tables(module: nn.Module, source: dict[str, Tensor], target: Mapping[str, Tensor],
                   report: LoadReport) -> None:
    """Bring the position tables in ``source`` to the model's grids, in place of the old ones."""
    for name, like in target.items():
        for pattern, mode, grid_name in _TABLES:
            match = pattern.search(name)
            if match and name in source:
                grid = _grid_beside(module, name, grid_name and match.expand(grid_name))
                source[name] = _resized(name, source[name], like, grid, mode, report)


def _resized(name: str, table: Tensor, like: Tensor, grid: Size | None, mode: str,
             report: LoadReport) -> Tensor:
    """One table, (1, n, C) or Swin's bias (n, heads), with as many rows as ``like``."""
    if table.dim() != like.dim() or table.shape[-1] != like.shape[-1]:
        return table  # of another width, told among the conflicts of shapes
    rows, wanted = table.shape[-2], like.shape[-2]
    if rows == wanted:
        if grid is not None and grid[0] != grid[1] and _is_square(rows):
            report.notes.append(f"{name} has as many rows as the model's {_grid(grid)} grid has "
                                'cells and is taken to lie on it')
        return table
    src_hw = _square_grid(name, rows, 'the file')
    dst_hw = grid or _square_grid(name, wanted, 'the model')
    report.resized[name] = (src_hw, dst_hw)
    return resize_grid_table(table.reshape(1, rows, -1), src_hw, dst_hw, mode).view(like.shape)


def _grid_beside(module: nn.Module, table: str, grid_name: str | None) -> Size | None:
    """The model's grid of a table, where the table's owner keeps it."""
    owner = module.get_submodule(table.rpartition('.')[0])
    return getattr(owner, grid_name, None) if grid_name else None


def _square_grid(name: str, rows: int, place: str) -> Size:
    if not _is_square(rows):
        raise CheckpointError(
            f'position table {name} has {rows} rows in {place}, which lie on no square grid, so '
            'it cannot be resized; expected a square number of rows')
    return (math.isqrt(rows),) * 2


def _is_square(number: int) -> bool:
    return math.isqrt(number)**2 == number


def _grid(hw: Size) -> str:
    return f'{hw[0]}x{hw[1]}'


# ---- kinds of attention


def _split_by_attention(source: Iterable[str], target: Iterable[str]
                        ) -> tuple[list[str], list[str]]:
    """Names that differ only because a block has another attention on the one side.

    Returns:
        Those the model alone has (fresh) and those the file alone has (left over).
    """
    source, target = dict.fromkeys(source), dict.fromkeys(target)
    there, here = _parts_of_attention(source), _parts_of_attention(target)
    changed = {block for block in there.keys() | here.keys()
               if _is_other_attention(there.get(block, set()), here.get(block, set()))}

    def only_in(names: dict[str, None], others: dict[str, None]) -> list[str]:
        return [name for name in names if name not in others and _KIND_ONLY.match(name)
                and stage_and_block(name) in changed]

    return only_in(target, source), only_in(source, target)


def _is_other_attention(there: set[str], here: set[str]) -> bool:
    if not (there and here):
        return bool(there or here)
    return there != here and there in _WHOLE and here in _WHOLE


def _parts_of_attention(names: Iterable[str]) -> dict[tuple[int, int] | None, set[str]]:
    """(stage, block) -> which parameters of focused attention it has, if any."""
    parts: dict[tuple[int, int] | None, set[str]] = {}
    for name in names:
        match = _FOCUSED_ONLY.match(name)
        if match:
            parts.setdefault(stage_and_block(name), set()).add(match[2])
    return parts


def _match_lepe_branches(source: dict[str, Tensor], target: Mapping[str, Tensor]
                         ) -> tuple[dict[str, Tensor], list[str]]:
    """Cut CSwin's ``get_v`` of a block anew where the model has another number of branches.

    A block over the whole map has one branch of all channels, one with stripes two of half the
    channels; the convolution is depthwise, so joining (or parting) the channels keeps it.
    """
    there, here = _lepe_groups(source), _lepe_groups(target)
    result, merged = dict(source), []
    for block, names in here.items():
        old = there.get(block, [])
        if not old or len(old) == len(names):
            continue
        joined = torch.cat([source[name] for name in old])
        sizes = [target[name].shape[0] for name in names]
        if joined.shape[0] != sum(sizes):
            continue  # another width, told among the conflicts of shapes
        for name in old:
            del result[name]
        for name, part in zip(names, joined.split(sizes)):
            result[name] = part
        merged += names
    return result, merged


def _lepe_groups(names: Iterable[str]) -> dict[tuple[str, str], list[str]]:
    """(attention of a block, parameter) -> names of its branches in order."""
    groups: dict[tuple[str, str], list[str]] = {}
    for name in sorted(names):
        match = _LEPE.match(name)
        if match:
            groups.setdefault((match[1], match[3]), []).append(name)
    return groups


# ---- does the file belong to the model


def _family_problems(source: Mapping[str, Tensor], target: Mapping[str, Tensor],
                     fresh: Iterable[str]) -> str:
    """A sentence where under half of the model's parameters are in the file, else ''."""
    wanted = [name for name in target if name not in set(fresh)]
    fitting = [n for n in wanted if n in source and source[n].shape == target[n].shape]
    if 2 * len(fitting) >= len(wanted):
        return ''
    return (f'Only {len(fitting)} of {len(wanted)} parameters match by name and shape; its first '
            f'names are {abbreviate(source) or "none"}.')


def _conflicts(source: Mapping[str, Tensor], target: Mapping[str, Tensor], expected: set[str],
               depths: Sequence[int]) -> str:
    """Sentences on what makes the file another size's or variant's; '' where it fits.

    Args:
        source, target: weights of the file and of the model.
        expected: names that may be on one side only.
        depths: of the model, all stages, those it stops before included.
    """
    stage = {name: _stage(name, depths) for name in (*source, *target)}
    last_stage = max((stage[name] for name in target), default=-1)
    shapes = [f'{name} {tuple(source[name].shape)} in the file, {tuple(like.shape)} in the model'
              for name, like in target.items()
              if name in source and source[name].shape != like.shape]
    surplus = [n for n in source if n not in target and n not in expected
               and 0 <= stage[n] <= last_stage]
    lacking = [n for n in target if n not in source and n not in expected and stage[n] >= 0]
    sentences = [f'{title}: {abbreviate(names)}.' for title, names in (
        ('Shapes differ', shapes),
        ('Of the stages the model has, the file alone has', surplus),
        ('The file lacks', lacking),
    ) if names]
    return ' '.join(sentences)


def _stage(name: str, depths: Sequence[int]) -> int:
    """Stage from 0 that a parameter of a block, stem or merging layer belongs to, else -1.

    A merging layer belongs to the stage after it: a model that stops early has none. DeiT counts
    its blocks through, so the model's depths tell where they part.
    """
    place = stage_and_block(name)
    if place is not None and name.startswith('blocks.'):
        ends = list(itertools.accumulate(depths))
        return next((i for i, end in enumerate(ends) if place[1] < end), 0)
    if place is not None:
        return place[0]
    match = re.match(r'layers\.(\d+)\.downsample\.|merge(\d+)\.|patch_embed(\d+)\.', name)
    if match:
        layer, merge, embed = match.groups()
        return int(layer) + 1 if layer else int(merge) if merge else int(embed) - 1
    return 0 if name.startswith(('patch_embed.', 'stage1_conv_embed.')) else -1


def _cast(source: dict[str, Tensor], target: Mapping[str, Tensor], checkpoint: Checkpoint,
          report: LoadReport) -> None:
    """Bring floating-point weights to the model's dtypes; any other difference is an error."""
    for name, like in target.items():
        tensor = source.get(name, like)
        if tensor.dtype == like.dtype:
            continue
        if not (tensor.is_floating_point() and like.is_floating_point()):
            raise CheckpointError(f'{checkpoint}: {name} is {tensor.dtype}; expected '
                                  f'{like.dtype} or another floating-point type')
        dtype = str(tensor.dtype).removeprefix('torch.')
        report.cast[dtype] = report.cast.get(dtype, 0) + 1
        source[name] = tensor.to(like.dtype)


def check_finite(weights: Mapping[str, Tensor], checkpoint: Checkpoint) -> None:
    """Refuse weights that are not all finite.

    Raises:
        CheckpointError: one is not; its name, and how many more there are, are told.
    """
    names = [name for name, tensor in weights.items()
             if tensor.is_floating_point() and not torch.isfinite(tensor).all()]
    if names:
        others = f' (and {len(names) - 1} more)' if len(names) > 1 else ''
        raise CheckpointError(f'{checkpoint}: {abbreviate(names[:1])}{others} holds NaN or '
                              'infinite values, so the file comes from a diverged training or is '
                              'damaged')
