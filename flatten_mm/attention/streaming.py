"""Inference on large maps on a CPU: two tensors as large as the map where a block makes six.

Tokens pass twice, a share at a time: first for K^T V and for the values, which the depthwise
convolution needs on their grid; then for the queries, whose result goes through the output
projection into the tokens themselves. Normalised tokens, queries and keys never exist for the
whole map. The arithmetic is that of :mod:`.focused`; what it saves is memory, and time because the
allocator hands large tensors back at once and the kernel pages in the next one anew.
"""
from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .focused import FocusedAttention, _key_values, _parts, _query, _wide, tokens_at_once
from .grid import Size, is_traced
from .precision import autocast_dtype, narrowed


def runs_in_parts(x: Tensor, *modules: nn.Module) -> bool:
    """True at inference on a CPU, eager, where nobody has hooks on the modules' own calls."""
    return (not is_traced() and not torch.is_grad_enabled() and x.device.type == 'cpu'
            and not any(module.training or module._forward_hooks or module._forward_pre_hooks
                        for parent in modules for module in parent.modules()))


def is_streamed(attention: nn.Module | None, norm: nn.Module, x: Tensor, hw: Size) -> bool:
    """True where :func:`add_streamed` may stand for ``x + attention(norm(x), hw)``, and pays."""
    return (isinstance(attention, FocusedAttention) and runs_in_parts(x, norm, attention)
            and 'attend' not in vars(attention)  # or somebody looks at what it attends to
            and x.shape[1] > tokens_at_once(x.shape[2]) and attention.has_own_keys(hw))


def add_streamed(attention: FocusedAttention, norm: nn.Module, x: Tensor, hw: Size) -> Tensor:
    """``x + attention(norm(x), hw)`` for (B, H * W, C), in place of x.

    Args:
        attention: with keys and values of the queries' own tokens, over the whole map.
        norm: before it.
    """
    x = x.contiguous()
    encoding = attention.resize_encoding(attention.positional_encoding, attention.key_grid, hw)
    inverse_scale = F.softplus(_wide(attention.scale)).reciprocal()
    for image in x.split(1):
        kv, v = _pass_of_keys(attention, norm, image, encoding, inverse_scale)
        out = attention.restore_rank(v, hw)
        out = torch.zeros_like(v) if out is None else out
        del v
        for part, out_part in _parts(image, out):
            q = attention.queries(narrowed(norm(part)))
            with torch.autocast('cpu', enabled=False):
                _query(q, out_part, None, kv, inverse_scale, attention.focusing_factor, add=True)
            part.add_(attention.proj(out_part))
    return x


def _pass_of_keys(attention: FocusedAttention, norm: nn.Module, image: Tensor, encoding: Tensor,
                  inverse_scale: Tensor) -> tuple[Tensor, Tensor]:
    """[K^T V | mean k] of each head, (1, h, d, d + 1), and the values (1, N, C)."""
    kv = 0
    v = torch.empty_like(image, dtype=autocast_dtype('cpu') or attention.scale.dtype)
    for part, v_part, encoding_part in _parts(image, v, encoding):
        k, values = attention.keys_values(narrowed(norm(part)))
        v_part.copy_(values)
        with torch.autocast('cpu', enabled=False):
            kv = kv + _key_values(k, values, None, encoding_part, inverse_scale,
                                  attention.focusing_factor, attention.num_heads)
    return kv / image.shape[1], v
