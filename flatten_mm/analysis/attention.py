"""Attention as a matrix: rows of what an observed module does to V, and of its rivals.

Focused linear attention never forms its attention map. Here the rows that are asked for are
formed from the same queries and keys: A (attention) and, on request, the banded matrices of the
depthwise convolutions of V that the module adds. The output of a module before its projection is
then ``row @ V + bias`` in every channel.
"""
from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from ..attention.focused import EPS, focused_map
from ..attention.grid import Size
from ..backbones.base import FOCUSED, SOFTMAX
from ..backbones.swin import MASKED_LOGIT
from .observe import AttendCall, AttentionSite

LINEAR = 'linear'  # vanilla linear attention: the features of FOCUSED without the focused map
ATTENTIONS = (FOCUSED, LINEAR, SOFTMAX)
DWC, LEPE = 'dwc', 'lepe'  # convolutions of V: of focused attention, of CSwin
DEFAULT_POWER = 3.  # of the focused map where a softmax module has none of its own
MAX_TOKENS = 4096


def attention_rows(call: AttendCall, queries: Tensor | Sequence[int], attention: str | None = None,
                   *, local: Sequence[str] = (), channel: int | None = None, image: int = 0,
                   dtype: torch.dtype = torch.float32) -> Tensor:
    """What chosen queries give each position of the map.

    Args:
        call: an observed call.
        queries: (Q,) positions on the map, ``row * W + column``.
        attention: ``'focused'``, ``'linear'`` (relu features, no focused map) or ``'softmax'``,
            all from the call's own q and k (in a focused module with its positional encoding, in
            the linear attentions with its scale; a softmax module has neither); None: the
            module's own, exact with biases and masks.
        local: add the module's convolutions of V: any of ``'dwc'`` (focused modules) and
            ``'lepe'`` (CSwin). Those a module does not have are left out.
        channel: of a head, 0 <= channel < d, whose kernel ``local`` uses. Every channel has its
            own kernel and so its own matrix; None: the mean kernel, for pictures.
        image: in the batch.
        dtype: to compute in.

    Returns:
        (Q, h, K), K positions of ``call.row_hw``; keys outside a query's window have 0. Rows of A
        sum to 1 up to the 1e-6 in the normaliser.

    Raises:
        ValueError: unknown attention or part, or a position that is not on the map.
    """
    positions = torch.as_tensor(queries, dtype=torch.long, device=call.q.device).view(-1)
    tokens = call.map_hw[0] * call.map_hw[1]
    if len(positions) and not (int(positions.min()) >= 0 and int(positions.max()) < tokens):
        raise ValueError(f'queries {positions.tolist()} are not all on the '
                         f'{call.map_hw[0]}x{call.map_hw[1]} map; expected 0 to {tokens - 1}')
    window_of, token_of = call.locate(positions)
    out = call.q.new_zeros(len(positions), call.site.num_heads, call.row_hw[0] * call.row_hw[1],
                           dtype=dtype)
    for window in window_of.unique().tolist():
        chosen = window_of == window
        rows = window_rows(call, window, token_of[chosen], attention, local=local,
                           channel=channel, image=image, dtype=dtype)
        keys = call.key_positions(window)
        on_map = keys >= 0
        full = torch.zeros_like(out[chosen])
        full[:, :, keys[on_map]] = rows[:, :, on_map]
        out[chosen] = full
    return out


def equivalent_matrix(call: AttendCall, head: int, attention: str | None = None, *,
                      local: Sequence[str] = (DWC, LEPE), channel: int | None = None,
                      window: int = 0, image: int = 0, max_tokens: int = MAX_TOKENS,
                      dtype: torch.dtype = torch.float64) -> Tensor:
    """The matrix that one head applies to V (section 3.3.2 and figure 5 of the paper).

    Args:
        head: from 0.
        window: from 0, row-major over the map (after the roll of a shifted block).
        max_tokens: refuse windows (maps, where there are no windows) with more queries or keys.
        (others): see :func:`attention_rows`.

    Returns:
        (N, M): queries by keys of one window.

    Raises:
        ValueError: no such head, window or channel, or more than ``max_tokens`` tokens.
    """
    N, M = call.q.shape[1], call.k.shape[1]
    if not 0 <= head < call.site.num_heads:
        raise ValueError(f'{call.site.label} has no head {head}; expected 0 to '
                         f'{call.site.num_heads - 1}')
    if not 0 <= window < call.windows.count:
        raise ValueError(f'{call.site.label} has no window {window}; expected 0 to '
                         f'{call.windows.count - 1}')
    check_size(call, max_tokens)
    tokens = torch.arange(N, device=call.q.device)
    rows = window_rows(call, window, tokens, attention, head=head, local=local, channel=channel,
                       image=image, dtype=dtype)
    return rows.view(N, M)


def check_size(call: AttendCall, max_tokens: int = MAX_TOKENS) -> None:
    """Refuse a matrix that does not fit.

    Raises:
        ValueError: a window has more than ``max_tokens`` queries or keys.
    """
    N, M = call.q.shape[1], call.k.shape[1]
    if max(N, M) > max_tokens:
        raise ValueError(
            f'{call.site.label} has {N} queries ({call.query_hw[0]}x{call.query_hw[1]}) and {M} '
            f'keys: its matrix takes {8e-9 * N * M:.1f} GB and its singular values many times '
            f'that, above the limit of {max_tokens} tokens; choose a later stage or raise the '
            'limit (max_tokens)')


def window_rows(call: AttendCall, window: int, tokens: Tensor, attention: str | None = None, *,
                head: int | None = None, local: Sequence[str] = (), channel: int | None = None,
                image: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    """(Q, h, M): rows of chosen tokens (Q,) of one window; (Q, 1, M) with a ``head``.

    See :func:`attention_rows`.
    """
    attention = call.site.kind if attention is None else attention
    if attention not in ATTENTIONS:
        raise ValueError(f'unknown attention {attention!r}; expected one of '
                         f'{", ".join(ATTENTIONS)}')
    if set(local) - {DWC, LEPE}:
        raise ValueError(f'unknown local parts {tuple(local)}; expected any of {DWC}, {LEPE}')
    index = image * call.windows.count + window
    q, k = call.q[index, tokens].to(dtype), call.k[index].to(dtype)  # (Q, C), (M, C)
    make = _softmax_rows if attention == SOFTMAX else _linear_rows
    rows = make(call, q, k, index, tokens, attention, head).transpose(0, 1)  # (Q, h, M)
    if local:
        rows = rows + local_rows(call, tokens, local, channel, head, dtype)
    return rows


def _linear_rows(call: AttendCall, q: Tensor, k: Tensor, index: int, tokens: Tensor,
                 attention: str, head: int | None) -> Tensor:
    """(h, Q, M) of the focused and the vanilla linear attention."""
    module, power = call.site.module, DEFAULT_POWER
    if call.site.kind == FOCUSED:
        power = module.focusing_factor
        k = k + _encoding(call, k.dtype)
    q, k = F.relu(q) + EPS, F.relu(k) + EPS
    if call.site.kind == FOCUSED:
        scale = F.softplus(module.scale[0].to(q.dtype))
        q, k = q / scale, k / scale
    if attention == FOCUSED:
        q, k = focused_map(q, power), focused_map(k, power)
    q, k = _heads(call, q, head), _heads(call, k, head)
    similarity = q @ k.transpose(1, 2)
    count: Tensor | int = k.shape[1]
    visible = _visible(call, index, tokens)
    if visible is not None:
        similarity = similarity * visible
        count = visible.sum(dim=-1, keepdim=True)
    return similarity / count / (similarity.sum(dim=-1, keepdim=True) / count + EPS)


def _softmax_rows(call: AttendCall, q: Tensor, k: Tensor, index: int, tokens: Tensor,
                  attention: str, head: int | None) -> Tensor:
    """(h, Q, M) of softmax attention."""
    if call.site.kind == FOCUSED:
        k = k + _encoding(call, k.dtype)
    q, k = _heads(call, q, head), _heads(call, k, head)
    logits = q @ k.transpose(1, 2) * q.shape[-1]**-0.5
    if call.site.kind == SOFTMAX and call.mask is not None and call.mask.dtype != torch.bool:
        mask = _mask_of(call, index, tokens)
        logits = logits + (mask if head is None else mask[head:head + 1])
    else:
        visible = _visible(call, index, tokens)
        if visible is not None:
            logits = logits.masked_fill(~visible, float('-inf'))
    return logits.softmax(dim=-1)


def _heads(call: AttendCall, x: Tensor, head: int | None) -> Tensor:
    """(N, C) -> (h, N, d), or (1, N, d) of one head."""
    x = x.unflatten(1, (call.site.num_heads, -1)).transpose(0, 1)
    return x if head is None else x[head:head + 1]


def _encoding(call: AttendCall, dtype: torch.dtype) -> Tensor:
    """(M, C) positional encoding of the keys of a focused module."""
    module = call.site.module
    table = module.resize_encoding(module.positional_encoding, module.key_grid, call.key_hw)
    return table[0].to(dtype)


def _mask_of(call: AttendCall, index: int, tokens: Tensor) -> Tensor:
    """(h, Q, M) of a softmax module's mask."""
    (B, N, _), M = call.q.shape, call.k.shape[1]
    return call.mask.expand(B, call.site.num_heads, N, M)[index][:, tokens]


def _visible(call: AttendCall, index: int, tokens: Tensor) -> Tensor | None:
    """(1 or Q, M) bool, keys that a query may see; None where it may see all."""
    if call.mask is None:
        return None
    if call.site.kind == FOCUSED:
        return call.mask[index].transpose(0, 1)
    mask = _mask_of(call, index, tokens)[0]
    return mask if mask.dtype == torch.bool else mask > MASKED_LOGIT / 2


# ---- convolutions of V as matrices


def local_rows(call: AttendCall, tokens: Tensor, parts: Sequence[str] = (DWC, LEPE),
               channel: int | None = None, head: int | None = None,
               dtype: torch.dtype = torch.float64) -> Tensor:
    """(Q, h, M): rows of the banded matrices of a module's convolutions of V; bias left out.

    Where V has fewer tokens than the grid (spatial reduction), the linear interpolation along
    the token axis that precedes the convolution is part of the matrix.

    Raises:
        ValueError: ``channel`` is not one of a head.
    """
    N, M = call.q.shape[1], call.k.shape[1]
    heads = call.site.num_heads if head is None else 1
    rows = call.q.new_zeros(len(tokens), heads, N, dtype=dtype)
    for kernels in local_kernels(call.site, parts, channel):  # (1 or h, ks, ks)
        if head is not None and len(kernels) > 1:
            kernels = kernels[head:head + 1]
        rows = rows + depthwise_rows(kernels.to(dtype), call.query_hw, tokens)
    return rows if N == M else interpolation_adjoint(rows, M)


def local_kernels(site: AttentionSite, parts: Sequence[str], channel: int | None) -> list[Tensor]:
    """Kernels of one channel of every head (the mean over channels for None).

    Returns:
        (1, ks, ks) for ``'dwc'``, whose kernel all heads share, and (h, 3, 3) for ``'lepe'``, for
        those of them that the module has.
    """
    found = []
    if DWC in parts and site.has_dwc:
        found.append(site.module.dwc.weight.detach().transpose(0, 1))  # (1, d, ks, ks)
    if LEPE in parts and hasattr(site.module, 'get_v'):
        weight = site.module.get_v.weight.detach()
        found.append(weight.squeeze(1).unflatten(0, (site.num_heads, -1)))  # (h, d, 3, 3)
    for kernels in found:
        if channel is not None and not 0 <= channel < kernels.shape[1]:
            raise ValueError(f'{site.label}: channel {channel}; a head has channels 0 to '
                             f'{kernels.shape[1] - 1}')
    return [kernels.mean(1) if channel is None else kernels[:, channel] for kernels in found]


def local_bias(site: AttentionSite, parts: Sequence[str] = (DWC, LEPE)) -> Tensor:
    """(C,): what the convolutions add to every token, whatever V is; (1,) 0 where there are none.
    """
    biases = [site.holder.norm1.weight.new_zeros(1)]
    if DWC in parts and site.has_dwc:
        biases.append(site.module.dwc.bias.repeat(site.num_heads))
    if LEPE in parts and hasattr(site.module, 'get_v'):
        biases.append(site.module.get_v.bias)
    return sum(biases).detach()


def depthwise_rows(kernels: Tensor, hw: Size, tokens: Tensor) -> Tensor:
    """Rows of the matrices that zero-padded convolutions of one channel apply to a flat grid.

    Args:
        kernels: (g, ks, ks).
        hw: (H, W).
        tokens: (Q,) rows wanted.

    Returns:
        (Q, g, H * W), exact at borders.
    """
    deltas = F.one_hot(tokens, hw[0] * hw[1]).to(kernels.dtype).view(-1, 1, *hw)
    # What position i reads from j is what a delta at i gives to j through the flipped kernel.
    weight = kernels.flip(-2, -1).unsqueeze(1)
    return F.conv2d(deltas, weight, padding=kernels.shape[-1] // 2).flatten(2)


def interpolation_adjoint(rows: Tensor, num_values: int) -> Tensor:
    """Rows over N tokens -> rows over the M values those are linearly interpolated from.

    (Q, h, N) -> (Q, h, M); the interpolation has half-pixel centres, as in
    :meth:`flatten_mm.attention.FocusedAttention.restore_rank`.
    """
    N = rows.shape[-1]
    source = (torch.arange(N, device=rows.device, dtype=torch.float64) + 0.5) * num_values / N - 0.5
    source = source.clamp(0, num_values - 1)
    low = source.floor().long()
    high = (low + 1).clamp(max=num_values - 1)
    share = (source - low).to(rows.dtype)
    out = rows.new_zeros(*rows.shape[:-1], num_values)
    out.index_add_(-1, low, rows * (1 - share))
    return out.index_add_(-1, high, rows * share)
