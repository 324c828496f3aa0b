"""What keeps half precision finite and near fp32 outside the core's own sums.

Under autocast torch gives LayerNorm an fp32 result on a GPU but not on a CPU, and an in-place sum
has the narrower type of the two. Both decide what the tokens between blocks are kept in, which is
where rounding adds up and where fp16 ends at 65504. Here they are fp32 on every device; with
half-precision weights, which know no other type, they have the weights'.
"""
from __future__ import annotations

import torch
from torch import Tensor, nn

from .grid import is_traced


class _LayerNorm(torch.autograd.Function):

    @staticmethod
    def forward(ctx, x, weight, bias, eps):
        out, mean, rstd = torch.native_layer_norm(x, weight.shape, weight, bias, eps)
        ctx.save_for_backward(x, weight, bias, mean, rstd)
        ctx.eps = eps
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad):
        x, weight, bias, mean, rstd = ctx.saved_tensors
        flat = rstd >= ctx.eps**-0.5 * (1 - 4 * torch.finfo(rstd.dtype).eps)
        return (*torch.ops.aten.native_layer_norm_backward(
            grad, x, weight.shape, mean, rstd.masked_fill(flat, 0), weight, bias,
            list(ctx.needs_input_grad[:3])), None)


class LayerNorm(nn.LayerNorm):
    """``nn.LayerNorm`` with a result in the dtype of its weight, and no gradient of flat tokens.

    A token whose channels are all equal has nothing to normalise, yet its gradient is multiplied
    by eps^-0.5 (316 or 1000), and again in every norm on its way. In a fresh PVTv2, whose biases
    are 0, tokens of zero pixels (padding) stay zero: padding half of an image multiplied the norm
    of the gradient by 10^5, and an image of zeros made it NaN, in fp32. So where the variance is
    lost beside eps (below 1e-6 of it in fp32: a standard deviation of 3e-6 at most) no gradient
    passes; the residual connection around the norm has its own.
    """

    def forward(self, x: Tensor) -> Tensor:
        x = x.to(self.weight.dtype)
        if torch.is_grad_enabled() and not is_traced():
            return _LayerNorm.apply(x, self.weight, self.bias, self.eps)
        return super().forward(x)


def autocast_dtype(device_type: str) -> torch.dtype | None:
    """What autocast computes in on a kind of device; None where it is off."""
    if device_type == 'meta':  # torch knows no autocast there, and says so with an error
        return None
    if hasattr(torch, 'get_autocast_dtype'):
        on = torch.is_autocast_enabled(device_type)
        return torch.get_autocast_dtype(device_type) if on else None
    if device_type == 'cpu':  # before torch 2.4 there was a function for each kind
        return torch.get_autocast_cpu_dtype() if torch.is_autocast_cpu_enabled() else None
    return torch.get_autocast_gpu_dtype() if torch.is_autocast_enabled() else None


def narrowed(x: Tensor) -> Tensor:
    """``x`` in autocast's type: what several layers would each make of it, made once."""
    dtype = autocast_dtype(x.device.type)
    return x if dtype is None else x.to(dtype)


def add_branch(branch: Tensor, x: Tensor) -> Tensor:
    """``x + branch`` in the wider dtype; in place of ``branch`` where that is its own."""
    return branch.add_(x) if branch.dtype == x.dtype else x + branch


class _FiniteGradient(torch.autograd.Function):

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad):
        limit = torch.finfo(grad.dtype).max
        return grad.nan_to_num(nan=float('nan'), posinf=limit, neginf=-limit)


def finite_gradient(x: Tensor) -> Tensor:
    """``x``; where it is fp16, gradients beyond fp16's range become its largest number, 65504.

    For queries and keys. The focused map looks at their direction only, so a token near zero has
    gradients of up to p / 1e-6 times the spread of v: right, and beyond fp16. One such token
    would turn a whole step into inf. Values and everything after them are left as they are, so
    that a loss scaler still sees what a too large scale makes overflow. NaN stays NaN.
    """
    return _FiniteGradient.apply(x) if x.dtype == torch.float16 and x.requires_grad else x
