"""Linear layers on the faster of the two matrix libraries that torch has on a CPU.

In fp32 on x86 torch's own ``linear`` calls MKL, which on processors that are not Intel's uses
half the width of their vector units; oneDNN, which torch also carries and uses for bf16 and under
``torch.compile``, does not. Same products, same sums, about twice the speed there. Everywhere else
(other dtypes, devices, autocast, tracing) this is ``torch.nn.functional.linear``.
"""
from __future__ import annotations

import platform

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .grid import is_traced
from .precision import autocast_dtype


def _has_onednn_linear() -> bool:
    if platform.machine() not in ('x86_64', 'AMD64') or not torch.backends.mkldnn.is_available():
        return False
    return hasattr(torch.ops.mkldnn, '_linear_pointwise')


_HAS_ONEDNN_LINEAR = _has_onednn_linear()


def product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """``x @ weight.T + bias`` without autograd: (..., I), (O, I), (O,) -> (..., O)."""
    if uses_onednn(x):
        rows = _plain(x if x.ndim == 2 else x.flatten(0, -2))
        out = torch.ops.mkldnn._linear_pointwise(rows, _plain(weight), bias, 'none', [], '')
        # Not a view to autograd, which forbids to change the views a function returns in place.
        return torch.ops.aten._unsafe_view(out, (*x.shape[:-1], weight.shape[0]))
    return F.linear(x, weight, bias)


def _plain(matrix: Tensor) -> Tensor:
    """The matrix, copied unless it or its transpose is dense: oneDNN crawls on other layouts."""
    return matrix if matrix.is_contiguous() or matrix.t().is_contiguous() else matrix.contiguous()


def uses_onednn(x: Tensor) -> bool:
    """True where :func:`product` takes oneDNN's product."""
    return (_HAS_ONEDNN_LINEAR and x.device.type == 'cpu' and x.dtype == torch.float32
            and x.numel() > 0 and torch.backends.mkldnn.enabled and autocast_dtype('cpu') is None
            and not is_traced())


class _Linear(torch.autograd.Function):
    """(..., I), (O, I), (O,) -> (..., O)."""

    @staticmethod
    def forward(ctx, x, weight, bias):
        ctx.save_for_backward(x, weight)
        return product(x, weight, bias)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        needs_x, needs_weight, needs_bias = ctx.needs_input_grad
        d_x = product(grad, weight.t()) if needs_x else None
        d_weight = weight_gradient(grad, x) if needs_weight else None
        return d_x, d_weight, grad.flatten(0, -2).sum(dim=0) if needs_bias else None


def weight_gradient(grad: Tensor, x: Tensor) -> Tensor:
    """(..., O), (..., I) -> (O, I): the gradient of the weight of a linear layer."""
    grad, x = grad.flatten(0, -2), x.flatten(0, -2)
    # oneDNN transposes its first operand by a slow copy: let it be the narrower one.
    if grad.shape[-1] > x.shape[-1]:
        return product(x.t(), grad.t()).t()
    return product(grad.t(), x.t())


def heads_product(x: Tensor, matrices: Tensor) -> Tensor:
    """``x @ matrices`` without autograd: (B, h, N, d), (B, h, d, e) -> (B, h, N, e)."""
    if x.shape[:2] == (1, 1) and uses_onednn(x):  # more heads do not lie dense in memory
        return product(x[0, 0], matrices[0, 0].t())[None, None]
    return x @ matrices


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """``torch.nn.functional.linear`` on the faster library: (..., I) -> (..., O)."""
    if not uses_onednn(x):
        return F.linear(x, weight, bias)
    if torch.is_grad_enabled():
        return _Linear.apply(x, weight, bias)
    return product(x, weight, bias)


class Linear(nn.Linear):
    """``nn.Linear`` whose product is :func:`linear`."""

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias)


def project(packed: nn.Linear, x: Tensor, parts: int) -> tuple[Tensor, ...]:
    """A packed projection as ``parts`` tensors of their own: (B, N, C) -> (B, N, C') each.

    The chunks of one product would keep its whole result alive in the backward pass, and be
    copied by whoever needs them dense.
    """
    biases = [None] * parts if packed.bias is None else packed.bias.chunk(parts)
    return tuple(linear(x, w, b) for w, b in zip(packed.weight.chunk(parts), biases))
