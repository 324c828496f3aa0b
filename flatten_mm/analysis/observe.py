"""Watching a model attend, without touching its source and at no cost when nobody looks.

Every family's attention module calls its own ``attend(q, k, v, …)``. While a model is observed,
that method of the chosen modules is wrapped so that a function of ours sees each call; afterwards
the modules are as they were.
"""
from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from ..attention.focused import FocusedAttention
from ..attention.grid import Size, Windows
from ..attention.softmax import SoftmaxAttention
from ..attention.variants import VariantAttention
from ..backbones.base import FOCUSED, SOFTMAX, Block, FLattenBackbone


@dataclass(frozen=True)
class AttentionSite:
    """One attention module and where in its backbone it sits.

    Attributes:
        name: of the module in the backbone, such as ``'layers.0.blocks.1.attn'``.
        stage: from 0.
        block: in the stage, from 0.
        branch: of the block; 1 only in CSwin blocks with two kinds of stripes.
        module: the attention module.
        holder: the block it belongs to.
    """

    name: str
    stage: int
    block: int
    branch: int
    module: FocusedAttention | SoftmaxAttention
    holder: Block

    @property
    def kind(self) -> str:
        """``'focused'`` or ``'softmax'``."""
        return FOCUSED if isinstance(self.module, FocusedAttention) else SOFTMAX

    @property
    def has_dwc(self) -> bool:
        """Whether a depthwise convolution of V restores the rank."""
        return getattr(self.module, 'dwc', None) is not None

    @property
    def num_heads(self) -> int:
        return self.module.num_heads

    @property
    def label(self) -> str:
        """Where it is in few words, counted from 0: ``'stage 0 block 1'``."""
        twins = sum(isinstance(m, type(self.module)) for m in self.holder.modules())
        return f'stage {self.stage} block {self.block}' + (
            f' branch {self.branch}' if twins > 1 else '')


def find_backbone(model: nn.Module) -> FLattenBackbone:
    """The first FLatten backbone in a model (a backbone finds itself).

    Raises:
        ValueError: there is none.
    """
    for module in model.modules():
        if isinstance(module, FLattenBackbone):
            return module
    raise ValueError(f'{type(model).__name__} holds no FLatten backbone; expected a model of one '
                     'of FLattenPVT, FLattenPVTv2, FLattenSwin, FLattenCSwin, FLattenDeiT')


def attention_sites(model: nn.Module, stage: int | None = None,
                    block: int | None = None) -> list[AttentionSite]:
    """Attention modules of a model's FLatten backbone in the order they run.

    Args:
        model: a backbone or anything that holds one.
        stage: only this stage, from 0.
        block: only this block of a stage, from 0.

    Blocks with one of the other linear attentions (``attention='hydra'``, ...) are left out: it
    is focused and softmax attention that the analysis restates as a matrix.

    Raises:
        ValueError: no FLatten backbone, no such stage or block (what there is, is named), or
            blocks of other linear attentions only.
    """
    backbone = find_backbone(model)
    blocks = [(name, m) for name, m in backbone.named_modules() if isinstance(m, Block)]
    places = [(i, j) for i in range(backbone.num_stages) for j in range(backbone.depths[i])]
    sites = []
    for (block_name, holder), (i, j) in zip(blocks, places):
        cores = [(name, m) for name, m in holder.named_modules(prefix=block_name)
                 if isinstance(m, (FocusedAttention, SoftmaxAttention))]
        sites += [AttentionSite(name, i, j, branch, m, holder)
                  for branch, (name, m) in enumerate(cores)]
    chosen = [site for site in sites
              if stage in (None, site.stage) and block in (None, site.block)]
    others = any(isinstance(m, VariantAttention)
                 for (_, holder), (i, j) in zip(blocks, places)
                 if stage in (None, i) and block in (None, j) for m in holder.modules())
    if not chosen and others:
        raise ValueError(f'{backbone.FAMILY} with attention={backbone.attention!r} has nothing to '
                         'observe there; expected blocks of focused or softmax attention')
    if not chosen:
        wanted = [f'{what} {number}' for what, number in (('stage', stage), ('block', block))
                  if number is not None]
        depths = [f'{i} ({backbone.depths[i]} blocks)' for i in range(backbone.num_stages)]
        raise ValueError(f'{backbone.FAMILY} has no {" ".join(wanted)}; its stages, counted from '
                         f'0, are {", ".join(depths)}')
    return chosen


@dataclass(frozen=True)
class AttendCall:
    """What one attention module was called with; B' is images x windows, images outermost.

    Attributes:
        site: the module.
        q: (B', N, C) queries on the grid ``query_hw``.
        k, v: (B', M, C) keys and values on the grid ``key_hw``.
        query_hw: grid of one window (of the map, where there are no windows).
        key_hw: grid of the keys; smaller than ``query_hw`` with spatial reduction.
        mask: as the module got it: (B', M, 1) bool of keys that count (focused), or a mask that
            broadcasts to (B', h, N, M) (softmax); None where every key counts.
        map_hw: (H, W) of the stage's map.
    """

    site: AttentionSite
    q: Tensor
    k: Tensor
    v: Tensor
    query_hw: Size
    key_hw: Size
    mask: Tensor | None
    map_hw: Size

    @cached_property
    def windows(self) -> Windows:
        return self.site.module.windows(self.map_hw)

    @property
    def is_reduced(self) -> bool:
        """Whether keys and values lie on a grid of their own."""
        return self.key_hw != self.query_hw

    @property
    def row_hw(self) -> Size:
        """Grid that rows of the attention lie on: the map, or the reduced map of the keys."""
        return self.key_hw if self.is_reduced else self.map_hw

    @cached_property
    def positions(self) -> Tensor:
        """(nW, N) position on the map (row-major) of each token of each window; -1 on padding."""
        tokens = self.map_hw[0] * self.map_hw[1]
        # Windows pad with zeros, hence the numbers from 1.
        numbers = torch.arange(1, tokens + 1, device=self.q.device).view(1, tokens, 1)
        return self.windows.split(numbers).squeeze(2) - 1

    def key_positions(self, window: int) -> Tensor:
        """(M,) position on :attr:`row_hw` of each key of a window; -1 on padding."""
        if self.is_reduced:
            return torch.arange(self.k.shape[1], device=self.k.device)
        return self.positions[window]

    def locate(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """(Q,) positions on the map -> (Q,) window of each, (Q,) token in that window."""
        flat = self.positions.flatten()
        place = torch.empty(self.map_hw[0] * self.map_hw[1], dtype=torch.long, device=flat.device)
        real = (flat >= 0).nonzero().squeeze(1)
        place[flat[real]] = real
        place = place[positions.to(flat.device)]
        return place // self.positions.shape[1], place % self.positions.shape[1]


@contextmanager
def observe(model: nn.Module, look: Callable[[AttendCall], None], stage: int | None = None,
            block: int | None = None) -> Iterator[list[AttentionSite]]:
    """Show every ``attend`` call of a model's forward passes to ``look`` inside the block.

    ``look`` runs without gradients and without autocast, before the module attends; nothing of
    the call is kept that ``look`` does not keep. With ``with_cp`` the backward pass attends, and
    shows, again.

    Args:
        model: a backbone or anything that holds one.
        look: takes an :class:`AttendCall`.
        stage, block: only these; see :func:`attention_sites`.

    Yields:
        The observed sites.

    Raises:
        ValueError: see :func:`attention_sites`.
    """
    sites = attention_sites(model, stage, block)
    with ExitStack() as stack:
        for site in sites:
            stack.enter_context(_watched(site, look))
        yield sites


def collect(model: nn.Module, image: Tensor, look: Callable[[AttendCall], Any],
            stage: int | None = None, block: int | None = None) -> dict[str, Any]:
    """Run a model's backbone on an image and gather what ``look`` says of each attention module.

    Args:
        model: a backbone or anything that holds one; the mode it is in is kept.
        image: (B, 3, H, W), normalised, on the model's device.
        look: takes an :class:`AttendCall`; its result is kept.
        stage, block: only these; see :func:`attention_sites`.

    Returns:
        Name of the site -> result, in the order of the modules.
    """
    found: dict[str, Any] = {}

    def keep(call: AttendCall) -> None:
        found[call.site.name] = look(call)

    with observe(model, keep, stage, block), torch.no_grad():
        find_backbone(model)(image)
    return found


@contextmanager
def _watched(site: AttentionSite, look: Callable[[AttendCall], None]) -> Iterator[None]:
    module, map_hw = site.module, None
    attend, own = module.attend, vars(module).get('attend')  # own: set by an outer observer

    def remember_map(block: nn.Module, args: tuple) -> None:
        nonlocal map_hw
        map_hw = tuple(args[1])

    def watched(q: Tensor, k: Tensor, v: Tensor, query_hw: Size, key_hw: Size,
                mask: Tensor | None = None) -> Tensor:
        with torch.no_grad(), torch.autocast(q.device.type, enabled=False):
            look(AttendCall(site, q.detach(), k.detach(), v.detach(), tuple(query_hw),
                            tuple(key_hw), mask, map_hw))
        return attend(q, k, v, query_hw, key_hw, mask)

    hook = site.holder.register_forward_pre_hook(remember_map)
    module.attend = watched
    try:
        yield
    finally:
        hook.remove()
        del module.attend
        if own is not None:
            module.attend = own
