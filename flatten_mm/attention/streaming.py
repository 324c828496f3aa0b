"""Inference on large maps on a CPU: two tensors as large as the map where a block makes six.

Tokens pass twice, a share at a time: first for K^T V and for the values, which the depthwise
convolution needs on their grid; then for the queries, whose result goes through the output
projection and takes the convolution's place. Normalised tokens, queries and keys never exist for
the whole map. The arithmetic is that of :mod:`.focused`; it saves memory, and time because the
allocator hands large tensors back at once and the kernel pages in the next one anew.
"""
from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules import module as _all_modules

from .focused import FocusedAttention, _key_values, _parts, _query, _wide, tokens_at_once
from .grid import Size, is_traced
from .precision import autocast_dtype, narrowed


def runs_in_parts(x: Tensor, *modules: nn.Module) -> bool:
    """True at inference on a CPU, eager, where nobody watches or replaces the modules' calls."""
    return (not is_traced() and not torch.is_grad_enabled() and x.device.type == 'cpu'
            and x.numel() > 0 and not _all_modules._global_forward_hooks
            and not _all_modules._global_forward_pre_hooks
            and not any(module.training or module._forward_hooks or module._forward_pre_hooks
                        or 'forward' in vars(module)
                        for parent in modules for module in parent.modules()))


def is_streamed(attention: nn.Module | None, norm: nn.Module, x: Tensor, hw: Size) -> bool:
    """True where :func:`add_streamed` may stand for ``x + attention(norm(x), hw)``, and pays."""
    return (isinstance(attention, FocusedAttention) and runs_in_parts(x, norm, attention)
            and 'attend' not in vars(attention)  # or somebody looks at what it attends to
            and x.shape[1] > tokens_at_once(x.shape[2]) and attention.has_own_keys(hw)
            and _definer(attention, 'forward') is _definer(attention, 'keys_values'))


def _definer(module: nn.Module, name: str) -> type:
    """The class whose ``name`` the module has; a subclass may have a ``forward`` of its own."""
    return next(kind for kind in type(module).__mro__ if name in vars(kind))


def add_streamed(attention: FocusedAttention, norm: nn.Module, x: Tensor, hw: Size) -> Tensor:
    """``x + attention(norm(x), hw)``: (B, H * W, C) -> (B, H * W, C).

    Args:
        attention: with keys and values of the queries' own tokens, over the whole map.
        norm: before it.
    """
    encoding = attention.resize_encoding(attention.positional_encoding, attention.key_grid, hw)
    inverse_scale = F.softplus(_wide(attention.scale)).reciprocal()
    sums = []
    for image in x.split(1):
        kv, v = _pass_of_keys(attention, norm, image, encoding, inverse_scale)
        out = attention.restore_rank(v, hw)
        out = torch.zeros_like(v) if out is None else out
        del v
        # The result takes the place of the attention's; half as wide under autocast, it has none.
        total = out if out.dtype == x.dtype else torch.empty_like(image)
        for part, out_part, total_part in _parts(image, out, total):
            q = attention.queries(narrowed(norm(part)))
            with torch.autocast('cpu', enabled=False):
                _query(q, out_part, None, kv, inverse_scale, attention.focusing_factor, add=True)
            torch.add(part, attention.proj(out_part), out=total_part)
        sums.append(total)
    return torch.cat(sums) if len(sums) > 1 else sums[0]


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
