"""The other linear attentions the paper compares with, under the focused core's convention.

Each is its authors' formula between the projections, written from their papers: what else their
models change (layers, training, other blocks) is no part of it. A function takes q (B, N, C),
k and v (B, M, C) and ``valid_keys`` (B, M, 1) bool, False for tokens that are no keys (None: all
are), costs O(N + M), computes in at least fp32 and returns (B, N, C) in the dtype of v.
"""
from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from .focused import (
    EPS,
    RankRestoration,
    _count,
    _merge_heads,
    _split_heads,
    _wide,
    add_in_place,
    focused_linear_attention,
)
from .grid import Size


def relu_attention(q: Tensor, k: Tensor, v: Tensor, num_heads: int,
                   valid_keys: Tensor | None = None) -> Tensor:
    """Kernel attention with the features relu(x) + 1e-6, a row divided by its sum.

    Katharopoulos et al., "Transformers are RNNs: Fast Autoregressive Transformers with Linear
    Attention", ICML 2020, section 3.2, whose own features are elu(x) + 1; ReLU is what the FLatten
    paper calls vanilla linear attention. Their causal form is for sequences and left out.

    In each head ``phi(q) (phi(k)^T v / n) / (phi(q) . mean phi(k) + 1e-6)``: focused linear
    attention with the power 1, which makes the focused map the identity, and a scale of 1.
    """
    scale = torch.ones(1, 1, q.shape[-1], dtype=_wide(q[:0]).dtype, device=q.device)
    return focused_linear_attention(q, k, v, scale, num_heads, 1, valid_keys)


def efficient_attention(q: Tensor, k: Tensor, v: Tensor, num_heads: int,
                        valid_keys: Tensor | None = None) -> Tensor:
    """``softmax_channels(q) (softmax_tokens(k)^T v)`` in each head.

    Shen et al., "Efficient Attention: Attention with Linear Complexities", WACV 2021, section 3,
    with their softmax normalisation: each query over the channels of its head, each channel of
    the keys over all tokens. Rows sum to 1 by that, so nothing is divided. Their other
    normalisation (scaling) and the convolutional block they build around it are left out.
    """
    with torch.autocast(q.device.type, enabled=False):
        queries = _split_heads(_wide(q), num_heads).softmax(dim=-1)
        keys = _split_heads(_wide(k), num_heads)
        if valid_keys is not None:
            keys = keys.masked_fill(~valid_keys.unsqueeze(1), torch.finfo(keys.dtype).min)
        kv = keys.softmax(dim=-2).transpose(-2, -1) @ _split_heads(_wide(v), num_heads)
        return _merge_heads(queries @ kv).to(v.dtype)


def hydra_attention(q: Tensor, k: Tensor, v: Tensor, num_heads: int | None = None,
                    valid_keys: Tensor | None = None) -> Tensor:
    """As many heads as channels: ``q^ * sum over tokens (k^ * v)``, ``x^`` of length 1.

    Bolya et al., "Hydra Attention: Efficient Attention with Many Heads", ECCV 2022 workshops,
    section 3, with their cosine similarity kernel: queries and keys are divided by their length
    over all C channels. ``num_heads`` plays no part. The sum over tokens is a sum, not a mean, and
    nothing divides it, as they define it, so the output grows with the number of tokens. They use
    it in the last layers of a model only; here it is in every linear block, as in the comparison
    of the FLatten paper.
    """
    with torch.autocast(q.device.type, enabled=False):
        queries, keys = _unit(_wide(q)), _unit(_wide(k))
        if valid_keys is not None:
            keys = keys * valid_keys
        out = queries * (keys * _wide(v)).sum(dim=1, keepdim=True)
        if v.dtype == torch.float16:  # ends at 65504, which a sum over many tokens may pass
            out = out.clamp(-torch.finfo(v.dtype).max, torch.finfo(v.dtype).max)
        return out.to(v.dtype)


def angular_attention(q: Tensor, k: Tensor, v: Tensor, num_heads: int,
                      valid_keys: Tensor | None = None) -> Tensor:
    """Weights ``1/2 + q^ . k^ / pi``, ``x^`` of length 1 in each head, a row divided by its sum.

    You et al., "Castling-ViT: Compressing Self-Attention via Switching Towards Linear-Angular
    Attention at Vision Transformer Inference", CVPR 2023: the angular kernel ``1 - angle / pi``
    up to the linear terms of its series. The higher terms they stand in for by a depthwise
    convolution (``dwc`` of :class:`VariantAttention`) and, in training, by a masked softmax branch
    that is dropped for inference: that branch is left out here. Written from the kernel, whose
    constant term gives each row a share of the mean of V; how the authors' code treats that term
    and the normalisation was not compared.
    """
    with torch.autocast(q.device.type, enabled=False):
        queries, keys = [_unit(_split_heads(_wide(x), num_heads)) for x in (q, k)]
        values = _split_heads(_wide(v), num_heads)
        if valid_keys is not None:
            keys, values = keys * valid_keys.unsqueeze(1), values * valid_keys.unsqueeze(1)
        count = _count(k, valid_keys)
        mean_kv = keys.transpose(-2, -1) @ values / count  # (B, h, d, d)
        mean_key = keys.sum(dim=-2, keepdim=True) / count  # (B, h, 1, d)
        mean_value = values.sum(dim=-2, keepdim=True) / count
        numerator = 0.5 * mean_value + queries @ mean_kv / math.pi
        # Between 1/2 - 1/pi and 1/2 + 1/pi.
        normaliser = 0.5 + queries @ mean_key.transpose(-2, -1) / math.pi
        return _merge_heads(numerator / normaliser).to(v.dtype)


def _unit(x: Tensor) -> Tensor:
    """Tokens divided by their length along the last axis.

    A token shorter than 1e-6 has no direction: it becomes zeros and gets no gradient, which would
    be as large as its length is small.
    """
    length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return x / length.masked_fill(length < EPS, math.inf)


@dataclass(frozen=True)
class Variant:
    """One of the other linear attentions.

    Attributes:
        attend: ``attend(q, k, v, num_heads, valid_keys)``, see this module's first lines.
        is_convolved: a depthwise convolution of V is added to it.
        is_normalised: rows are divided by their sum, which costs a product more.
        is_by_channel: every channel is a head of its own.
    """

    attend: Callable[[Tensor, Tensor, Tensor, int, Tensor | None], Tensor]
    is_convolved: bool = False
    is_normalised: bool = False
    is_by_channel: bool = False


VARIANTS: dict[str, Variant] = {
    'linear': Variant(relu_attention, is_normalised=True),
    'efficient': Variant(efficient_attention),
    'hydra': Variant(hydra_attention, is_by_channel=True),
    'angular': Variant(angular_attention, is_normalised=True, is_convolved=True),
    # Cai et al., "EfficientViT: Enhanced Linear Attention for High-Resolution Low-Computation
    # Visual Recognition", arXiv 2205.14756 (2022): linear attention with ReLU features, enhanced
    # in locality by a depthwise convolution. Theirs is in the feed-forward layers, which a choice
    # of attention leaves alone; here it is where focused attention has it, on V.
    'enhanced': Variant(relu_attention, is_normalised=True, is_convolved=True),
}


class VariantAttention(RankRestoration, nn.Module):
    """One of :data:`VARIANTS` with the calling convention of the focused core.

    It learns nothing but, where the attention has one, a depthwise convolution ``dwc``
    (d, 1, ks, ks) of V on its grid, added to the output: one kernel for all heads, as in
    :class:`FocusedAttention`, so that only the attention differs between the words.

    Args:
        embed_dims: C.
        num_heads: h; each head is d = C / h wide.
        key_grid: (H, W) of the keys at the training size; nothing here depends on it.
        attention: a key of :data:`VARIANTS`.
        kernel_size: ks, odd.
        rank_restoration: False leaves the convolution out where there is one.
    """

    def __init__(self, embed_dims: int, num_heads: int, key_grid: Size, attention: str,
                 kernel_size: int = 5, rank_restoration: bool = True) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.attention = attention
        self.variant = VARIANTS[attention]
        self.dwc = (self.build_dwc(embed_dims, num_heads, kernel_size)
                    if self.variant.is_convolved and rank_restoration else None)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, query_hw: Size, key_hw: Size,
               valid_keys: Tensor | None = None) -> Tensor:
        """Attention plus the convolution, before the output projection.

        Args:
            q: (B, N, C) on the grid ``query_hw``.
            k, v: (B, M, C) on the grid ``key_hw``.
            valid_keys: (B, M, 1) bool, False for padding, which then is no key; None: all count.

        Returns:
            (B, N, C) in the dtype of ``v``.
        """
        if valid_keys is not None:
            v = v * valid_keys
        out = self.variant.attend(q, k, v, self.num_heads, valid_keys)
        local = self.restore_rank(v, query_hw)
        return out if local is None else add_in_place(out, local)
