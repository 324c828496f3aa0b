"""The families' own softmax attention, on torch's scaled_dot_product_attention."""
from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .grid import Size, WholeMap, is_traced


class SoftmaxAttention(WholeMap, nn.Module):
    """softmax(q k^T d^-0.5) v with the calling convention of the focused core; no parameters.

    Args:
        num_heads: h, a divisor of C.
        attn_drop_rate: dropout on the attention weights in training.
    """

    def __init__(self, num_heads: int, attn_drop_rate: float = 0.) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.attn_drop_rate = attn_drop_rate

    def attend(self, q: Tensor, k: Tensor, v: Tensor, query_hw: Size, key_hw: Size,
               attn_mask: Tensor | None = None) -> Tensor:
        """(B, N, C), (B, M, C), (B, M, C) -> (B, N, C); ``attn_mask`` broadcasts to (B, h, N, M).

        A float mask is added to the logits, a bool mask is True where a key may be seen.
        """
        q, k, v = (t.unflatten(2, (self.num_heads, -1)).transpose(1, 2) for t in (q, k, v))
        drop = self.attn_drop_rate if self.training else 0.
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=attn_mask, dropout_p=drop)
        out = out.transpose(1, 2)
        if is_traced():  # exporters lay it out otherwise than the kernel they trace: no view then
            out = out.clone(memory_format=torch.contiguous_format)
        return out.flatten(2)
