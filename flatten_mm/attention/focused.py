"""Focused linear attention (FLatten Transformer, ICCV 2023, section 3): the core of every family.

The core knows tokens, heads and a grid. Projections, windows, stripes and spatial reduction
belong to the families and happen around it.
"""
from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .grid import Size, TableResizer, depthwise_conv

EPS = 1e-6  # of the released models: added to relu(x) and to the normaliser


def focused_map(x: Tensor, focusing_factor: float = 3) -> Tensor:
    """f_p: sharpen the direction of each token, keep its norm (equation 4 of the paper).

    Args:
        x: (..., C), every element positive.
        focusing_factor: the power p; 1 leaves x as it is.

    Returns:
        (..., C) with ``|f(x)| = |x|`` along the last axis.
    """
    # f_p(c x) = c f_p(x): divided by its peak, no element overflows or all underflow in a power.
    peak = x.detach().amax(dim=-1, keepdim=True)
    x = x / peak
    powered = x**focusing_factor
    norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    powered_norm = torch.linalg.vector_norm(powered, dim=-1, keepdim=True)
    return powered * (peak * norm / powered_norm)


def linear_attention(q: Tensor, k: Tensor, v: Tensor, num_heads: int, num_keys: Tensor | int = 0,
                     eps: float = EPS) -> Tensor:
    """Linear attention of non-negative queries and keys, in O(N) (equation 2 of the paper).

    Args:
        q: (B, N, C), non-negative.
        k: (B, M, C), non-negative.
        v: (B, M, C).
        num_heads: h, a divisor of C.
        num_keys: keys that count in the mean, a number or (B, 1, 1); 0 means M.
        eps: added to the normaliser.

    Returns:
        (B, N, C), heads concatenated: ``q (k^T v / n) / (q . mean(k) + eps)`` in each head.
    """
    B, N, C = q.shape
    num_keys = num_keys if isinstance(num_keys, Tensor) else num_keys or k.shape[1]
    k_mean = k.sum(dim=1, keepdim=True) / num_keys  # (B, 1, C)
    q, k, v, k_mean = (t.unflatten(2, (num_heads, -1)).transpose(1, 2) for t in (q, k, v, k_mean))
    if isinstance(num_keys, Tensor):
        num_keys = num_keys[..., None]
    kv = k.transpose(-2, -1) @ v / num_keys  # (B, h, d, d)
    # One product gives numerator and normaliser: the mean key is the last column.
    mixed = q @ torch.cat((kv, k_mean.transpose(-2, -1)), dim=-1)  # (B, h, N, d + 1)
    out = mixed[..., :-1] / (mixed[..., -1:] + eps)
    return out.transpose(1, 2).reshape(B, N, C)


class FocusedAttention(nn.Module):
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
    """

    def __init__(self, embed_dims: int, num_heads: int, key_grid: Size,
                 focusing_factor: float = 3, kernel_size: int = 5) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.key_grid = tuple(key_grid)
        self.focusing_factor = focusing_factor
        head_dims = embed_dims // num_heads
        self.scale = nn.Parameter(torch.zeros(1, 1, embed_dims))
        self.positional_encoding = nn.Parameter(
            torch.zeros(1, key_grid[0] * key_grid[1], embed_dims)
        )
        self.dwc = nn.Conv2d(head_dims, head_dims, kernel_size, padding=kernel_size // 2,
                             groups=head_dims)
        self.resize_encoding = TableResizer('bicubic')

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
        with torch.autocast(q.device.type, enabled=False):
            q, k, wide_v, encoding, scale = (
                t if t.dtype == torch.float64 else t.float()
                for t in (q, k, v, encoding, self.scale)
            )
            scale = F.softplus(scale)
            q = focused_map((F.relu(q) + EPS) / scale, self.focusing_factor)
            k = focused_map((F.relu(k + encoding) + EPS) / scale, self.focusing_factor)
            num_keys: Tensor | int = k.shape[1]
            if valid_keys is not None:
                k = k * valid_keys
                num_keys = valid_keys.sum(dim=1, keepdim=True)
            out = linear_attention(q, k, wide_v, self.num_heads, num_keys)
        return out.to(v.dtype) + self.restore_rank(v, query_hw)

    def restore_rank(self, v: Tensor, hw: Size) -> Tensor:
        """Depthwise convolution of V on its grid (section 3.3.2 of the paper).

        (B, M, C) -> (B, H * W, C). Where V has fewer tokens than the grid (spatial reduction) it
        is brought to H * W tokens by linear interpolation along the flattened token axis, as the
        released PVT models do.
        """
        B, M, C = v.shape
        if hw[0] * hw[1] != M:
            v = F.interpolate(v.transpose(1, 2), size=hw[0] * hw[1], mode='linear').transpose(1, 2)
        weight = self.dwc.weight.repeat(self.num_heads, 1, 1, 1)
        return depthwise_conv(v, hw, weight, self.dwc.bias.repeat(self.num_heads))
