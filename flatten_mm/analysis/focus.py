"""How focused attention is: entropy, mass in the top keys, and tokens that died in the ReLU."""
from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ..backbones.base import FOCUSED
from .attention import window_rows
from .observe import AttendCall

_CHUNK = 1 << 24  # entries of a block of rows computed at a time (64 MiB in float32)


@dataclass(frozen=True)
class FocusStats:
    """How focused one attention is, a value a head, averaged over queries.

    Attributes:
        entropy: (h,) of a row, in nats.
        relative_entropy: (h,) entropy divided by log(keys): 1 is uniform.
        top_mass: (h,) share of a row's mass in the largest ``top`` of the keys; ``top`` is uniform.
        keys: keys of a query's window (map, where there are no windows), averaged.
        queries: how many were looked at.
    """

    entropy: Tensor
    relative_entropy: Tensor
    top_mass: Tensor
    keys: float
    queries: int


def focus_stats(call: AttendCall, attention: str | None = None, *, queries: int = 256,
                top: float = 0.1, image: int = 0) -> FocusStats:
    """Entropy and top mass of the attention of queries spread evenly over the map.

    The convolutions of V are left out: they are no distribution over keys.

    Args:
        call: an observed call.
        attention: see :func:`flatten_mm.analysis.attention_rows`; None: the module's own.
        queries: look at no more than this many; rows are made in blocks of bounded memory.
        top: share of the keys that counts as top, rounded to whole keys, at least one.
        image: in the batch.
    """
    tokens = call.map_hw[0] * call.map_hw[1]
    count = min(queries, tokens)
    # Middles of `count` equal runs of tokens, so neither border is favoured.
    spread = torch.arange(count, device=call.q.device)
    window_of, token_of = call.locate((2 * spread + 1) * tokens // (2 * count))
    step = max(1, _CHUNK // (call.site.num_heads * call.k.shape[1]))
    totals = torch.zeros(4, call.site.num_heads, dtype=torch.float64, device=call.q.device)
    for window in window_of.unique().tolist():
        for part in token_of[window_of == window].split(step):
            rows = window_rows(call, window, part, attention, image=image)
            totals += _sums(rows, int((call.key_positions(window) >= 0).sum()), top)
    entropy, relative, mass, keys = (totals / count).cpu()
    return FocusStats(entropy, relative, mass, float(keys[0]), count)


def _sums(rows: Tensor, keys: int, top: float) -> Tensor:
    """(Q, h, M) rows -> (4, h): entropy, relative entropy, top mass, keys, summed over queries."""
    rows = rows / rows.sum(dim=-1, keepdim=True)  # off by the 1e-6 in the normaliser
    entropy = torch.special.entr(rows).sum(dim=-1)  # (Q, h)
    relative = entropy / math.log(keys) if keys > 1 else torch.ones_like(entropy)
    largest = rows.topk(max(1, round(top * keys)), dim=-1).values.sum(dim=-1)
    return torch.stack([entropy, relative, largest, torch.full_like(entropy, keys)]).double().sum(1)


def dead_shares(call: AttendCall, image: int = 0) -> tuple[float, float]:
    """Shares of queries and of keys of which nothing is left after the ReLU.

    A token counts in each head by itself, as heads attend by themselves: a dead query gives every
    key the same weight there, a dead key is never attended to. Padding does not count.

    Args:
        call: a call of a focused module.
        image: in the batch.

    Raises:
        ValueError: the module is not focused.
    """
    if call.site.kind != FOCUSED:
        raise ValueError(f'{call.site.label} is softmax attention, which has no ReLU')
    module, count = call.site.module, call.windows.count
    chosen = slice(image * count, (image + 1) * count)
    encoding = module.resize_encoding(module.positional_encoding, module.key_grid, call.key_hw)
    valid = None if call.mask is None else call.mask[chosen]
    return (_dead_share(call.q[chosen], call.site.num_heads, valid),
            _dead_share(call.k[chosen] + encoding, call.site.num_heads, valid))


def _dead_share(x: Tensor, num_heads: int, valid: Tensor | None) -> float:
    dead = (F.relu(x).unflatten(-1, (num_heads, -1)).amax(dim=-1) == 0).float()  # (nW, N, h)
    if valid is None:
        return float(dead.mean())
    return float((dead * valid).sum() / (valid.sum() * num_heads))
