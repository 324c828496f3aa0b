"""The released computation of PVT, focused and softmax, restated eagerly, step by step.

The baseline that timings and memory are compared with; kept plain. It holds no parameters of its
own: ``as_released(model)`` makes a PVT of ours compute its blocks this way.
"""
from __future__ import annotations

import types

import torch.nn.functional as F
from torch import Tensor, nn

from flatten_mm.attention import FocusedAttention
from flatten_mm.attention.linear import Linear
from flatten_mm.attention.softmax import SoftmaxAttention
from flatten_mm.backbones.base import Block
from flatten_mm.backbones.feed_forward import Mlp
from flatten_mm.backbones.pvt import SpatialReduction


def attend(self: FocusedAttention, q: Tensor, k: Tensor, v: Tensor, query_hw, key_hw,
           valid_keys=None) -> Tensor:
    """As ``released_models.md`` describes it, in its order; same arguments as the core's."""
    B, N, C = q.shape
    M, heads, p = k.shape[1], self.num_heads, self.focusing_factor
    k = k + self.resize_encoding(self.positional_encoding, self.key_grid, key_hw)
    scale = F.softplus(self.scale)
    q = (F.relu(q) + 1e-6) / scale
    k = (F.relu(k) + 1e-6) / scale
    q_norm, k_norm = q.norm(dim=-1, keepdim=True), k.norm(dim=-1, keepdim=True)
    q, k = q**p, k**p
    q = q / q.norm(dim=-1, keepdim=True) * q_norm
    k = k / k.norm(dim=-1, keepdim=True) * k_norm
    q, k, v = (t.reshape(B, -1, heads, C // heads).permute(0, 2, 1, 3) for t in (q, k, v))
    z = 1 / (q @ k.mean(dim=-2, keepdim=True).transpose(-2, -1) + 1e-6)
    kv = (k.transpose(-2, -1) * M**-0.5) @ (v * M**-0.5)
    x = q @ kv * z
    x = x.transpose(1, 2).reshape(B, N, C)
    v = v.transpose(1, 2).reshape(B, M, C)
    if M != N:
        v = F.interpolate(v.transpose(1, 2), size=N, mode='linear').transpose(1, 2)
    v = v.reshape(B, *query_hw, heads, C // heads).permute(0, 3, 4, 1, 2)
    v = self.dwc(v.reshape(B * heads, C // heads, *query_hw))
    v = v.reshape(B, C, N).permute(0, 2, 1)
    return x + v


def softmax_attend(self: SoftmaxAttention, q: Tensor, k: Tensor, v: Tensor, query_hw, key_hw,
                   attn_mask=None) -> Tensor:
    """The softmax twin's, with the attention map as a tensor."""
    B, N, C = q.shape
    heads = self.num_heads
    q, k, v = (t.reshape(B, -1, heads, C // heads).permute(0, 2, 1, 3) for t in (q, k, v))
    attn = (q @ k.transpose(-2, -1) * (C // heads)**-0.5).softmax(dim=-1)
    return (attn @ v).transpose(1, 2).reshape(B, N, C)


def pvt_attention(self: SpatialReduction, x: Tensor, hw) -> Tensor:
    """PVT's attention with keys and values from one product."""
    q = self.q(x)
    source, key_hw = self.reduce(x, hw)
    k, v = self.kv(source).chunk(2, dim=-1)
    return self.proj_drop(self.proj(self.attend(q, k, v, hw, key_hw)))


def mlp(self: Mlp, x: Tensor, hw=None) -> Tensor:
    return self.drop(self.fc2(self.drop(F.gelu(self.fc1(x)))))


def block(self: Block, x: Tensor, hw) -> Tensor:
    x = x + self.drop_path(self.mix(self.norm1(x), hw))
    return x + self.drop_path(self.mlp(self.norm2(x), hw))


RESTATED = {FocusedAttention: ('attend', attend), SoftmaxAttention: ('attend', softmax_attend),
            SpatialReduction: ('forward', pvt_attention), Mlp: ('forward', mlp),
            Block: ('forward', block)}


def as_released(model: nn.Module) -> nn.Module:
    """Make a PVT of ours compute as the released code does; returns it."""
    for module in model.modules():
        if isinstance(module, Linear):
            module.forward = types.MethodType(nn.Linear.forward, module)
        for kind, (name, function) in RESTATED.items():
            if isinstance(module, kind):
                setattr(module, name, types.MethodType(function, module))
    return model
