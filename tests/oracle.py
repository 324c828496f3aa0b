"""The paper's equations restated plainly, to test the core against.

Kept slow and obvious on purpose: one token, one head, one pixel at a time where that is clearer.
Nothing here is shared with the package.
"""
from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def focused_map(x: Tensor, p: float) -> Tensor:
    """Equation 4: f_p(x) = |x| / |x**p| * x**p, the norm over the last axis."""
    powered = x**p
    return powered * x.norm(dim=-1, keepdim=True) / powered.norm(dim=-1, keepdim=True)


def attention_matrix(q: Tensor, k: Tensor, num_heads: int, scale: Tensor, encoding: Tensor,
                     p: float) -> Tensor:
    """The explicit attention map (B, h, N, M) of released focused attention; rows sum to 1.

    q (B, N, C), k (B, M, C), scale (1, 1, C), encoding (1, M, C). Up to the 1e-6 added to the
    normaliser a row is phi(q_i) . phi(k_j) over its sum.
    """
    def phi(x: Tensor) -> Tensor:
        return focused_map((F.relu(x) + 1e-6) / F.softplus(scale), p)

    q, k = phi(q), phi(k + encoding)
    heads = []
    for q_h, k_h in zip(q.chunk(num_heads, -1), k.chunk(num_heads, -1)):
        similarity = q_h @ k_h.transpose(1, 2)  # (B, N, M)
        heads.append(similarity / k.shape[1] / (similarity.mean(-1, keepdim=True) + 1e-6))
    return torch.stack(heads, dim=1)


def depthwise_matrix(kernel: Tensor, hw: tuple[int, int]) -> Tensor:
    """The (H * W, H * W) matrix that convolving one channel with ``kernel`` (ks, ks) applies."""
    (H, W), ks = hw, kernel.shape[0]
    matrix = torch.zeros(H * W, H * W, dtype=kernel.dtype)
    for row in range(H):
        for column in range(W):
            for i in range(ks):
                for j in range(ks):
                    r, c = row + i - ks // 2, column + j - ks // 2
                    if 0 <= r < H and 0 <= c < W:
                        matrix[row * W + column, r * W + c] = kernel[i, j]
    return matrix


def focused_attention(q: Tensor, k: Tensor, v: Tensor, num_heads: int, scale: Tensor,
                      encoding: Tensor, dwc_weight: Tensor, dwc_bias: Tensor,
                      hw: tuple[int, int], p: float) -> Tensor:
    """Attention map times V plus the convolution of V, (B, N, C), quadratic in tokens."""
    attention = attention_matrix(q, k, num_heads, scale, encoding, p)
    outs = []
    for head, v_h in enumerate(v.chunk(num_heads, -1)):  # (B, N, d)
        local = torch.stack([depthwise_matrix(dwc_weight[c, 0], hw) @ v_h[..., c, None]
                             for c in range(v_h.shape[-1])], dim=-1).squeeze(2)
        outs.append(attention[:, head] @ v_h + local + dwc_bias)
    return torch.cat(outs, dim=-1)
