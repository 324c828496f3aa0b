"""Focused linear attention (FLatten Transformer, ICCV 2023, section 3): the core of every family.

The core knows tokens, heads and a grid. Projections, windows, stripes and spatial reduction
belong to the families and happen around it.

How it is made cheap, with the released result:

* f_p(c x) = c f_p(x), so each token is divided by its largest element first and no power can
  overflow or vanish, whatever the precision of the input.
* The query's norm is one number a token; it cancels between numerator and normaliser but for the
  1e-6, which is divided by it instead. No pass over the queries is spent on it.
* Numerator and normaliser come from one product: the mean key is a last column of K^T V.
* On a CPU a share of the tokens at a time passes through, so that the maps stay in the cache.
* Autograd keeps q, k and v only; the element-wise maps are computed again in the backward pass.
"""
from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .grid import Size, TableResizer, WholeMap, depthwise_conv, is_traced
from .linear import heads_product
from .precision import finite_gradient

ELEMENTS_AT_ONCE = 2**17  # a thread: half a MiB of fp32, with what is made of it a core's cache
EPS = 1e-6  # of the released models: added to relu(x) and to the normaliser


class _Focused(NamedTuple):
    """What the focused map makes of tokens; f_p(x) is ``powered * gain``."""

    direction: Tensor | None  # (B, N, C), x over its peak
    powered: Tensor  # (B, N, C), direction to the power p
    norm: Tensor  # (B, N, 1), of direction, at least 1
    powered_norm: Tensor  # (B, N, 1), of powered, at least 1
    peak: Tensor  # (B, N, 1), the largest element of x
    gain: Tensor  # (B, N, 1), what ``powered`` is multiplied with to have the norm of x


def _focus(x: Tensor, p: float, keep_direction: bool = False) -> _Focused:
    """Focus positive tokens (B, N, C). Overwrites ``x``."""
    peak = x.amax(dim=-1, keepdim=True)
    direction = x.div_(peak)
    norm = torch.linalg.vector_norm(direction, dim=-1, keepdim=True)
    powered = direction**p if keep_direction else direction.pow_(p)
    powered_norm = torch.linalg.vector_norm(powered, dim=-1, keepdim=True)
    gain = peak * norm / powered_norm
    return _Focused(direction if keep_direction else None, powered, norm, powered_norm, peak, gain)


def focused_map(x: Tensor, focusing_factor: float = 3) -> Tensor:
    """f_p: sharpen the direction of each token, keep its norm (equation 4 of the paper).

    Args:
        x: (B, N, C), every element positive.
        focusing_factor: the power p; 1 leaves x as it is.

    Returns:
        (B, N, C) with ``|f(x)| = |x|`` along the last axis.
    """
    focused = _focus(x.clone(), focusing_factor)
    return focused.powered * focused.gain


def _wide(x: Tensor) -> Tensor:
    """``x`` in at least fp32, where powers, norms and sums over tokens are taken."""
    # not torch.promote_types, which torch.compile of 2.1 cannot trace
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def _scaled_positive(x: Tensor, inverse_scale: Tensor, encoding: Tensor | None = None) -> Tensor:
    """(relu(x + encoding) + 1e-6) / scale in a new tensor of at least fp32."""
    x = F.relu(_wide(x)) if encoding is None else (_wide(x) + encoding).relu_()
    return torch.addcmul(EPS * inverse_scale, x, inverse_scale, out=None if is_traced() else x)


def tokens_at_once(dims: int) -> int:
    """How many tokens (N, dims) pass at once on a CPU."""
    return max(ELEMENTS_AT_ONCE * torch.get_num_threads() // max(dims, 1), 1)


def _parts(*tensors: Tensor | None) -> Iterator[tuple[Tensor | None, ...]]:
    """(., N, C) tensors, cut along N into the tokens that pass at once; None stays None."""
    batch, length, dims = tensors[0].shape
    step = length
    if tensors[0].device.type == 'cpu' and not is_traced():
        step = min(tokens_at_once(batch * dims), length)
    if step == length:
        yield tensors
        return
    for start in range(0, length, step):
        yield tuple(None if t is None else t[:, start:start + step] for t in tensors)


def _split_heads(x: Tensor, num_heads: int) -> Tensor:
    """(B, N, C) -> (B, h, N, d), a view."""
    return x.unflatten(2, (num_heads, -1)).transpose(1, 2)


def _merge_heads(x: Tensor) -> Tensor:
    """(B, h, N, d) -> (B, N, C)."""
    return x.transpose(1, 2).flatten(2)


def _attend(q: Tensor, k: Tensor, v: Tensor, inverse_scale: Tensor, p: float, num_heads: int,
            valid_keys: Tensor | None, encoding: Tensor | None = None, onto: Tensor | None = None
            ) -> tuple[Tensor, Tensor, Tensor]:
    """Focused linear attention: output (B, N, C), [K^T V | mean k] and the normaliser (B, N, h).

    The output is added to ``onto`` in place, if given.
    """
    kv = sum(_key_values(*part, inverse_scale, p, num_heads)
             for part in _parts(k, v, valid_keys, encoding))
    kv = kv / _count(k, valid_keys)
    if is_traced():  # a graph has no results that are written into a view
        mixed, gain = _mix(q, kv, inverse_scale, p)
        normaliser = mixed[..., -1] + EPS / gain
        out = (mixed[..., :-1] / normaliser.unsqueeze(-1)).flatten(2).to(v.dtype)
        return out if onto is None else out + onto, kv, normaliser
    out = torch.empty(q.shape, dtype=v.dtype, device=v.device) if onto is None else onto
    normaliser = torch.empty(*q.shape[:2], num_heads, dtype=kv.dtype, device=v.device)
    for part in _parts(q, out, normaliser):
        _query(*part, kv, inverse_scale, p, add=onto is not None)
    return out, kv, normaliser


def _key_values(k: Tensor, v: Tensor, valid_keys: Tensor | None, encoding: Tensor | None,
                inverse_scale: Tensor, p: float, num_heads: int) -> Tensor:
    """[K^T V | sum of k] of each head, (B, h, d, d + 1)."""
    focused = _focus(_scaled_positive(k, inverse_scale, encoding), p)
    keys = focused.powered.mul_(focused.gain)
    if valid_keys is not None:
        keys.mul_(valid_keys)
    keys = _split_heads(keys, num_heads)
    kv = keys.transpose(-2, -1) @ _split_heads(_wide(v), num_heads)
    return torch.cat((kv, keys.sum(dim=-2).unsqueeze(-1)), dim=-1)


def _query(q: Tensor, out: Tensor, normaliser: Tensor | None, kv: Tensor, inverse_scale: Tensor,
           p: float, add: bool) -> None:
    """What queries (B, N, C) make of [K^T V | mean k], written into ``normaliser`` and ``out``.

    To ``out`` it is added with ``add``; a ``normaliser`` of None is not wanted.
    """
    mixed, gain = _mix(q, kv, inverse_scale, p)
    normaliser = torch.add(mixed[..., -1], EPS / gain, out=normaliser)  # (B, N, h)
    # Straight into the layout of the heads side by side, in the dtype of v.
    out = out.unflatten(2, (kv.shape[1], -1))
    if add and out.dtype == mixed.dtype:
        out.addcdiv_(mixed[..., :-1], normaliser.unsqueeze(-1))
    elif add:  # addcdiv_ of two dtypes is wrong or an error before torch 2.2
        out.add_(mixed[..., :-1] / normaliser.unsqueeze(-1))
    else:
        torch.div(mixed[..., :-1], normaliser.unsqueeze(-1), out=out)


def _mix(q: Tensor, kv: Tensor, inverse_scale: Tensor, p: float) -> tuple[Tensor, Tensor]:
    """Products (B, N, h, d + 1) of powered queries with [K^T V | mean k], and the queries' gain."""
    focused = _focus(_scaled_positive(q, inverse_scale), p)
    mixed = heads_product(_split_heads(focused.powered, kv.shape[1]), kv)  # (B, h, N, d + 1)
    return mixed.transpose(1, 2), focused.gain


def _count(k: Tensor, valid_keys: Tensor | None) -> Tensor | int:
    """Number of keys that count: an int, or (B, 1, 1, 1)."""
    return k.shape[1] if valid_keys is None else valid_keys.sum(dim=1).view(-1, 1, 1, 1)


class _FocusedLinearAttention(torch.autograd.Function):
    """:func:`_attend` whose backward pass keeps q, k, v and what is as small as K^T V."""

    @staticmethod
    def forward(ctx, q, k, v, inverse_scale, p, num_heads, valid_keys):
        out, kv, normaliser = _attend(q, k, v, inverse_scale, p, num_heads, valid_keys)
        ctx.save_for_backward(q, k, v, inverse_scale, kv, normaliser, valid_keys)
        ctx.p, ctx.num_heads = p, num_heads
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad):
        q, k, v, inverse_scale, kv, normaliser, valid_keys = ctx.saved_tensors
        d_q, d_k, d_v = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
        d_kv, d_scale = torch.zeros_like(kv), torch.zeros_like(inverse_scale)
        for *part, d_part in _parts(q, grad, normaliser, d_q):
            d_part_q, d_part_kv, d_part_scale = _query_backward(*part, kv, inverse_scale, ctx.p)
            d_part.copy_(d_part_q)
            d_kv.add_(d_part_kv)
            d_scale.add_(d_part_scale)
        d_kv = d_kv / _count(k, valid_keys)
        for *part, d_part_k, d_part_v in _parts(k, v, valid_keys, d_k, d_v):
            d_keys, d_values, d_part_scale = _key_backward(*part, d_kv, inverse_scale, ctx.p)
            d_part_k.copy_(d_keys)
            d_part_v.copy_(d_values)
            d_scale.add_(d_part_scale)
        return d_q, d_k, d_v, d_scale, None, None, None


def _query_backward(q: Tensor, grad: Tensor, normaliser: Tensor, kv: Tensor,
                    inverse_scale: Tensor, p: float) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q (B, N, C), of [K^T V | mean k] and of the inverse scale.

    out = numerator / normaliser in each head; the sum of grad * out needs no product of its own,
    as it is the sum of query * (gradient of the query through the numerator).
    """
    heads = kv.shape[1]
    key_values, mean_key = kv[..., :-1], kv[..., -1:]
    normaliser = normaliser.transpose(1, 2).unsqueeze(-1)  # (B, h, N, 1)
    focused = _focus(_scaled_positive(q, inverse_scale), p, keep_direction=True)
    queries = _split_heads(focused.powered, heads)
    d_numerator = _split_heads(_wide(grad), heads) / normaliser
    d_queries = heads_product(d_numerator, key_values.transpose(-2, -1))
    d_normaliser = (queries * d_queries).sum(dim=-1, keepdim=True).div_(-normaliser)
    d_kv = torch.cat((queries.transpose(-2, -1) @ d_numerator,
                      queries.transpose(-2, -1) @ d_normaliser), dim=-1)
    d_queries = d_queries.add_(d_normaliser * mean_key.transpose(-2, -1))
    d_gain = d_normaliser.sum(dim=1) * (-EPS / focused.gain**2)
    d_q, d_scale = _focus_backward(_merge_heads(d_queries), d_gain, focused, p, q, inverse_scale)
    return d_q, d_kv, d_scale


def _key_backward(k: Tensor, v: Tensor, valid_keys: Tensor | None, d_kv: Tensor,
                  inverse_scale: Tensor, p: float) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of k and v (B, M, C) and of the inverse scale, from that of [K^T V | sum of k]."""
    heads = d_kv.shape[1]
    focused = _focus(_scaled_positive(k, inverse_scale), p, keep_direction=True)
    gain = focused.gain if valid_keys is None else focused.gain * valid_keys
    keys = _split_heads(focused.powered * gain, heads)
    d_v = _merge_heads(heads_product(keys, d_kv[..., :-1]))
    d_keys = heads_product(_split_heads(_wide(v), heads), d_kv[..., :-1].transpose(-2, -1))
    d_keys = _merge_heads(d_keys.add_(d_kv[..., -1:].transpose(-2, -1)))
    if valid_keys is not None:
        d_keys.mul_(valid_keys)
    d_gain = (d_keys * focused.powered).sum(dim=-1, keepdim=True)
    d_k, d_scale = _focus_backward(d_keys.mul_(focused.gain), d_gain, focused, p, k, inverse_scale)
    return d_k, d_v, d_scale


def _focus_backward(d_powered: Tensor, d_gain: Tensor, focused: _Focused, p: float, x: Tensor,
                    inverse_scale: Tensor) -> tuple[Tensor, Tensor]:
    """Through the focused map and the scaling to ``x``. Overwrites ``d_powered``.

    ``powered`` and ``gain`` are functions of the direction; its peak is a constant, since f_p
    does not depend on what x is divided by. Returns the gradients of x and of the inverse scale.
    """
    direction, powered, norm, powered_norm, peak, _ = focused
    # gain = peak * norm / powered_norm
    d_norm = d_gain * peak / powered_norm
    d_powered_norm = -d_norm * norm / powered_norm
    d_direction = d_powered.add_(powered * (d_powered_norm / powered_norm))
    d_direction = d_direction.mul_(p * direction**(p - 1))
    d_direction = d_direction.add_(direction * (d_norm / norm))
    d_scale = (d_direction * direction).sum(dim=(0, 1), keepdim=True) / inverse_scale
    d_direction = d_direction.mul_(inverse_scale).div_(peak)
    return torch.ops.aten.threshold_backward(d_direction, _wide(x), 0), d_scale


def focused_linear_attention(q: Tensor, k: Tensor, v: Tensor, scale: Tensor, num_heads: int,
                             focusing_factor: float = 3, valid_keys: Tensor | None = None,
                             encoding: Tensor | None = None, onto: Tensor | None = None
                             ) -> Tensor:
    """Linear attention of focused queries and keys, in O(N) (equations 2 to 5 of the paper).

    ``phi(q) (phi(k)^T v / n) / (phi(q) . mean phi(k) + 1e-6)`` in each head, with
    ``phi(x) = f_p((relu(x) + 1e-6) / scale)`` and f_p over all C channels; k + encoding for k.

    Args:
        q: (B, N, C).
        k: (B, M, C).
        v: (B, M, C).
        scale: (1, 1, C), positive.
        num_heads: h, a divisor of C.
        focusing_factor: p.
        valid_keys: (B, M, 1) bool, False for tokens that are no keys; None: all are.
        encoding: (1, M, C), added to k.
        onto: (B, N, C) in the dtype of v, added to the result; may be overwritten by it.

    Returns:
        (B, N, C), heads concatenated, in the dtype of v. Inside, at least fp32.
    """
    with torch.autocast(q.device.type, enabled=False):
        inverse_scale = _wide(scale).reciprocal()
        inputs = (q, k, v, inverse_scale, encoding, onto)
        if not torch.is_grad_enabled() or not any(t is not None and t.requires_grad
                                                  for t in inputs):
            return _attend(q, k, v, inverse_scale, focusing_factor, num_heads, valid_keys,
                           encoding, onto)[0]
        q, k = finite_gradient(q), finite_gradient(k)
        if encoding is not None:
            k = finite_gradient(k + finite_gradient(encoding))
        out = _FocusedLinearAttention.apply(q, k, v, inverse_scale, focusing_factor, num_heads,
                                            valid_keys)
        return out if onto is None else add_in_place(out, onto)


def add_in_place(out: Tensor, local: Tensor) -> Tensor:
    """``out + local``, in place of ``out`` where that may be."""
    # Traced, the result of an autograd function is a view, which may not be changed in place.
    return out + local if is_traced() else out.add_(local)


class RankRestoration(WholeMap):
    """The depthwise convolution ``dwc`` of V that linear attentions have, or None; mixed into them.

    ``dwc`` is (d, 1, ks, ks): one kernel of a head's channels, shared by all heads.
    """

    def build_dwc(self, embed_dims: int, num_heads: int, kernel_size: int) -> nn.Conv2d:
        head_dims = embed_dims // num_heads
        return nn.Conv2d(head_dims, head_dims, kernel_size, padding=kernel_size // 2,
                         groups=head_dims)

    def restore_rank(self, v: Tensor, hw: Size) -> Tensor | None:
        """Depthwise convolution of V on its grid (section 3.3.2 of the paper); None without.

        (B, M, C) -> (B, H * W, C). Where V has fewer tokens than the grid (spatial reduction) it
        is brought to H * W tokens by linear interpolation along the flattened token axis, as the
        released PVT models do.
        """
        if self.dwc is None:
            return None
        if hw[0] * hw[1] != v.shape[1]:
            v = F.interpolate(v.transpose(1, 2), size=hw[0] * hw[1], mode='linear').transpose(1, 2)
        weight = self.dwc.weight.repeat(self.num_heads, 1, 1, 1)
        return depthwise_conv(v, hw, weight, self.dwc.bias.repeat(self.num_heads))


class FocusedAttention(RankRestoration, nn.Module):
    """What focused linear attention learns, and how it attends; families subclass it.

    A subclass projects x to q, k, v, calls :meth:`attend` and projects the result. Parameters
    carry the released names: ``scale`` (1, 1, C), ``positional_encoding`` (1, n, C) on the key
    grid of the training size, ``dwc`` (d, 1, ks, ks), one kernel shared by all heads.

    Args:
        embed_dims: C.
        num_heads: h; each head is d = C / h wide.
        key_grid: (H, W) of the keys at the training size.
        focusing_factor: p of the focused map.
        kernel_size: ks of the depthwise convolution, odd.
        rank_restoration: add the depthwise convolution; False has no ``dwc`` (ablation).
    """

    def __init__(self, embed_dims: int, num_heads: int, key_grid: Size,
                 focusing_factor: float = 3, kernel_size: int = 5,
                 rank_restoration: bool = True) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.key_grid = tuple(key_grid)
        self.focusing_factor = focusing_factor
        self.scale = nn.Parameter(torch.zeros(1, 1, embed_dims))
        self.positional_encoding = nn.Parameter(
            torch.zeros(1, key_grid[0] * key_grid[1], embed_dims)
        )
        self.dwc = (self.build_dwc(embed_dims, num_heads, kernel_size) if rank_restoration
                    else None)
        self.resize_encoding = TableResizer('bicubic')

    def has_own_keys(self, hw: Size) -> bool:
        """True where all tokens of a map are the keys of all: no windows, no reduction.

        A subclass that says so has ``queries(x)`` -> q and ``keys_values(x)`` -> k, v, all
        (B, N, C), and ``proj``, and :mod:`.streaming` may compute it.
        """
        return False

    def attend(self, q: Tensor, k: Tensor, v: Tensor, query_hw: Size, key_hw: Size,
               valid_keys: Tensor | None = None) -> Tensor:
        """Attention plus rank restoration, before the output projection.

        Args:
            q: (B, N, C) on the grid ``query_hw``.
            k, v: (B, M, C) on the grid ``key_hw``.
            valid_keys: (B, M, 1) bool, False for padding, which then is no key; None: all count.

        Returns:
            (B, N, C) in the dtype of ``v``.
        """
        encoding = self.resize_encoding(self.positional_encoding, self.key_grid, key_hw)
        if valid_keys is not None:
            v = v * valid_keys
        return focused_linear_attention(q, k, v, F.softplus(_wide(self.scale)), self.num_heads,
                                        self.focusing_factor, valid_keys, encoding,
                                        onto=self.restore_rank(v, query_hw))
