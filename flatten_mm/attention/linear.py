"""Linear layers on the faster of the two matrix libraries that torch has on a CPU.

In fp32 on x86 torch's own ``linear`` calls MKL, which on processors that are not Intel's uses
half the width of their vector units; oneDNN, which torch also carries and uses for bf16, does not.
Same products, same sums, about twice the speed there. Inference under ``torch.compile`` calls it
too, in bf16 also, where Inductor's own product first copies the bias to every row. Everywhere else
(other dtypes and devices, eager autocast, compiled training, export) this is
``torch.nn.functional.linear``.
"""
from __future__ import annotations

import platform
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .grid import is_traced
from .precision import autocast_dtype


def _has_onednn_linear() -> bool:
    if platform.machine() not in ('x86_64', 'AMD64') or not torch.backends.mkldnn.is_available():
        return False
    return hasattr(torch.ops.mkldnn, '_linear_pointwise')


def _has_bf16() -> bool:
    supported = getattr(torch.ops.mkldnn, '_is_mkldnn_bf16_supported', None)
    return supported is not None and supported()


_HAS_ONEDNN_LINEAR = _has_onednn_linear()
HAS_OPERATORS = _HAS_ONEDNN_LINEAR and hasattr(torch.compiler, 'is_exporting')  # torch >= 2.7
if HAS_OPERATORS:
    _OPERATORS = torch.library.Library('flatten_mm', 'FRAGMENT')
    _OPERATOR_DTYPES = (torch.float32, torch.bfloat16) if _has_bf16() else (torch.float32,)


def operator(schema: str, function: Callable[..., Tensor],
             empty: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Make ``function`` one node of compiled graphs, ``flatten_mm::NAME``, on a CPU.

    Inductor itself takes oneDNN's products for frozen weights only, and does not go through a
    graph in parts.

    Args:
        schema: ``NAME(Tensor x, ...) -> Tensor``.
        function: computes it; called without autograd.
        empty: makes a tensor like its result.
    """
    name = schema.partition('(')[0]
    if not hasattr(torch.ops.flatten_mm, name):  # this module may be loaded again
        _OPERATORS.define(schema)
        _OPERATORS.impl(name, function, 'CPU')
        torch.library.register_fake(f'flatten_mm::{name}', empty, lib=_OPERATORS)
    return getattr(torch.ops.flatten_mm, name)


def product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """``x @ weight.T + bias`` without autograd: (..., I), (O, I), (O,) -> (..., O)."""
    if in_compiled_inference(x):
        return _product_operator(*as_autocast(x, weight, bias))
    return _onednn_product(x, weight, bias) if uses_onednn(x) else F.linear(x, weight, bias)


def _onednn_product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    if not x.numel():
        return F.linear(x, weight, bias)
    rows = _plain(x if x.ndim == 2 else x.flatten(0, -2))
    out = torch.ops.mkldnn._linear_pointwise(rows, _plain(weight), bias, 'none', [], '')
    # Not a view to autograd, which forbids to change the views a function returns in place.
    return torch.ops.aten._unsafe_view(out, (*x.shape[:-1], weight.shape[0]))


_product_operator = operator(
    'product(Tensor x, Tensor weight, Tensor? bias) -> Tensor', _onednn_product,
    lambda x, weight, bias: x.new_empty(*x.shape[:-1], weight.shape[0]),
) if HAS_OPERATORS else None


def _plain(matrix: Tensor) -> Tensor:
    """The matrix, copied unless it or its transpose is dense: oneDNN crawls on other layouts."""
    return matrix if matrix.is_contiguous() or matrix.t().is_contiguous() else matrix.contiguous()


def uses_onednn(x: Tensor) -> bool:
    """True where :func:`product` calls oneDNN itself: eager, fp32, on a CPU."""
    return (_HAS_ONEDNN_LINEAR and x.device.type == 'cpu' and x.dtype == torch.float32
            and torch.backends.mkldnn.enabled and not is_traced()
            and autocast_dtype('cpu') is None)


def in_compiled_inference(x: Tensor) -> bool:
    """True where an :func:`operator` may be a node of the graph being traced.

    Not in an exported graph, which must run without this package.
    """
    return (HAS_OPERATORS and x.device.type == 'cpu' and is_traced()
            and torch.backends.mkldnn.enabled and not torch.is_grad_enabled()
            and _product_dtype(x) in _OPERATOR_DTYPES
            and not torch.jit.is_tracing() and not _is_exporting())


@torch.compiler.assume_constant_result
def _is_exporting() -> bool:
    """Asked while Dynamo traces, which itself takes ``is_exporting()`` for true at all times."""
    return torch.compiler.is_exporting()


def _product_dtype(x: Tensor) -> torch.dtype:
    return autocast_dtype('cpu') or x.dtype


def as_autocast(*tensors: Tensor | None) -> tuple[Tensor | None, ...]:
    """What autocast would make of the arguments of a product."""
    dtype = autocast_dtype('cpu')
    return tensors if dtype is None else tuple(t if t is None else t.to(dtype) for t in tensors)


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
    # More heads do not lie dense in memory.
    if x.shape[:2] == (1, 1) and (uses_onednn(x) or in_compiled_inference(x)):
        return product(x[0, 0], matrices[0, 0].t())[None, None]
    return x @ matrices


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """``torch.nn.functional.linear`` on the faster library: (..., I) -> (..., O)."""
    if uses_onednn(x) and torch.is_grad_enabled():
        return _Linear.apply(x, weight, bias)
    return product(x, weight, bias)


class Linear(nn.Linear):
    """``nn.Linear`` whose product is :func:`linear`."""

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias)


def project(packed: nn.Linear, x: Tensor, parts: int, chosen: slice | None = None
            ) -> tuple[Tensor, ...]:
    """A packed projection as ``parts`` tensors of their own: (B, N, C) -> (B, N, C') each.

    The chunks of one product would keep its whole result alive in the backward pass, and be
    copied by whoever needs them dense. ``chosen`` says which of the parts; None: all.
    """
    chosen = chosen or slice(None)
    biases = [None] * parts if packed.bias is None else packed.bias.chunk(parts)
    return tuple(linear(x, weight, bias) for weight, bias
                 in zip(packed.weight.chunk(parts)[chosen], biases[chosen]))
