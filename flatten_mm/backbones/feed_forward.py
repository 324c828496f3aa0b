"""The families' feed-forward parts: fc1, GELU, fc2, in little memory.

The hidden layer is 4 to 8 times as wide as the tokens and the largest thing a block makes. Where
gradients are needed autograd keeps it before the GELU only; where they are not, a share of the
tokens at a time passes through (:func:`add_in_parts`), so that it stays in the cache.
"""
from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..attention.grid import Size, depthwise_conv, is_traced
from ..attention.linear import (
    HAS_OPERATORS,
    Linear,
    as_autocast,
    in_compiled_inference,
    operator,
    product,
    weight_gradient,
)
from ..attention.precision import narrowed
from ..attention.streaming import runs_in_parts

HIDDEN_ELEMENTS_AT_ONCE = 2**19  # a thread: 2 MiB of fp32, about a core's cache


class _GeluLinear(torch.autograd.Function):
    """linear(gelu(x)), of which x is kept for the backward pass and gelu(x) is not."""

    @staticmethod
    def forward(ctx, x, weight, bias):
        ctx.save_for_backward(x, weight)
        out = x.new_empty(*x.shape[:-1], weight.shape[0])
        for part, out_part in zip(_parts(x), _parts(out, like=x)):
            out_part.copy_(product(F.gelu(part), weight, bias))
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        d_x = torch.empty_like(x)
        # A sum of many parts in bf16 stops growing.
        d_weight = torch.zeros_like(weight, dtype=torch.promote_types(weight.dtype, torch.float32))
        for part, grad_part, d_part in zip(_parts(x), _parts(grad, like=x), _parts(d_x)):
            d_weight.add_(weight_gradient(grad_part, F.gelu(part)))
            d_hidden = product(grad_part, weight.t())
            torch.ops.aten.gelu_backward.grad_input(d_hidden, part, grad_input=d_part)
        return d_x, d_weight.to(weight.dtype), grad.flatten(0, -2).sum(dim=0)


def _parts(x: Tensor, like: Tensor | None = None) -> tuple[Tensor, ...]:
    """(..., C) as views (n, C) of the rows that pass at once; as many as of ``like`` if given."""
    hidden = x if like is None else like
    x = x.reshape(-1, x.shape[-1])
    if x.device.type != 'cpu' or is_traced():
        return (x,)
    return x.split(rows_at_once(hidden.shape[-1]))


def rows_at_once(hidden_dims: int) -> int:
    """Tokens that pass through a hidden layer of ``hidden_dims`` at once on a CPU."""
    return max(HIDDEN_ELEMENTS_AT_ONCE * torch.get_num_threads() // hidden_dims, 1)


def gelu_linear(x: Tensor, linear: nn.Linear) -> Tensor:
    """``linear(gelu(x))``: (..., C) -> (..., C'); overwrites ``x`` where no gradient is needed."""
    weight, bias = linear.weight, linear.bias
    if not torch.is_grad_enabled() and not is_traced():
        return linear(torch.ops.aten.gelu_(x))
    if is_traced():
        return linear(F.gelu(x))
    with torch.autocast(x.device.type, enabled=False):
        return _GeluLinear.apply(x, weight.to(x.dtype), bias.to(x.dtype))


class Mlp(nn.Module):
    """fc1, GELU, fc2 on tokens: (B, N, C) -> (B, N, C).

    Args:
        embed_dims: C.
        hidden_dims: width between the two layers.
        drop_rate: dropout after each layer.
    """

    def __init__(self, embed_dims: int, hidden_dims: int, drop_rate: float = 0.) -> None:
        super().__init__()
        self.fc1 = Linear(embed_dims, hidden_dims)
        self.fc2 = Linear(hidden_dims, embed_dims)
        self.drop = nn.Dropout(drop_rate)

    def forward(self, x: Tensor, hw: Size | None = None) -> Tensor:
        if self.training and self.drop.p:
            return self.drop(self.fc2(self.drop(F.gelu(self.fc1(x)))))
        if in_compiled_inference(x):
            return _mlp_operator(*as_autocast(x, self.fc1.weight, self.fc1.bias, self.fc2.weight,
                                              self.fc2.bias))
        return gelu_linear(self.fc1(x), self.fc2)


def _mlp_in_parts(x: Tensor, weight1: Tensor, bias1: Tensor, weight2: Tensor,
                  bias2: Tensor) -> Tensor:
    """:class:`Mlp` as one function without autograd: (B, N, C) -> (B, N, C)."""
    out = torch.empty_like(x)
    rows = rows_at_once(weight1.shape[0])
    for part, out_part in zip(x.flatten(0, 1).split(rows), out.flatten(0, 1).split(rows)):
        hidden = torch.ops.aten.gelu_(product(part, weight1, bias1))
        out_part.copy_(product(hidden, weight2, bias2))
    return out


_mlp_operator = operator(
    'mlp(Tensor x, Tensor weight1, Tensor bias1, Tensor weight2, Tensor bias2) -> Tensor',
    _mlp_in_parts, lambda x, *weights: torch.empty_like(x),
) if HAS_OPERATORS else None


def passes_in_parts(mlp: nn.Module, norm: nn.Module, x: Tensor) -> bool:
    """True where :func:`add_in_parts` may stand for ``x + mlp(norm(x))``, and is cheaper."""
    return isinstance(mlp, Mlp) and runs_in_parts(x, norm, mlp)


def add_in_parts(mlp: Mlp, norm: nn.Module, x: Tensor) -> Tensor:
    """``x += mlp(norm(x))`` for (B, N, C), a share of the tokens at a time.

    Nothing as large as x is made: large tensors are paged in by the kernel each time anew.
    """
    x = x.contiguous()
    for part in x.view(-1, x.shape[-1]).split(rows_at_once(mlp.fc1.out_features)):
        part.add_(mlp(narrowed(norm(part))))
    return x


class DepthwiseConv(nn.Module):
    """3x3 depthwise convolution of tokens; the released name is ``dwconv.dwconv``."""

    def __init__(self, dims: int) -> None:
        super().__init__()
        self.dwconv = nn.Conv2d(dims, dims, 3, padding=1, groups=dims)

    def forward(self, x: Tensor, hw: Size) -> Tensor:
        """(B, H * W, C) -> (B, H * W, C)."""
        return depthwise_conv(x, hw, self.dwconv.weight, self.dwconv.bias)


class ConvMlp(nn.Module):
    """PVTv2's: fc1, (ReLU in the linear variant), 3x3 depthwise convolution, GELU, fc2.

    Args:
        embed_dims: C.
        hidden_dims: width between the two layers.
        drop_rate: dropout after each layer.
        linear: the linear variant.
    """

    def __init__(self, embed_dims: int, hidden_dims: int, drop_rate: float, linear: bool) -> None:
        super().__init__()
        self.fc1 = Linear(embed_dims, hidden_dims)
        self.relu = nn.ReLU() if linear else nn.Identity()
        self.dwconv = DepthwiseConv(hidden_dims)
        self.fc2 = Linear(hidden_dims, embed_dims)
        self.drop = nn.Dropout(drop_rate)

    def forward(self, x: Tensor, hw: Size) -> Tensor:
        """(B, H * W, C) -> (B, H * W, C)."""
        x = self.dwconv(self.relu(self.fc1(x)), hw)
        if self.training and self.drop.p:
            return self.drop(self.fc2(self.drop(F.gelu(x))))
        return gelu_linear(x, self.fc2)
