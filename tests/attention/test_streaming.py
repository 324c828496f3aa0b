"""Streamed attention is the attention, and stands back where it must."""
from __future__ import annotations

import pytest
import torch
from torch import nn

from flatten_mm.attention import focused
from flatten_mm.attention.precision import LayerNorm
from flatten_mm.attention.streaming import add_streamed, is_streamed
from flatten_mm.backbones.pvt import FocusedReducedAttention, SoftmaxReducedAttention
from flatten_mm.backbones.swin import FocusedWindowAttention

HW, DIMS, HEADS = (5, 7), 8, 2


def pvt(sr_ratio: int = 1, **core_cfg) -> nn.Module:
    return FocusedReducedAttention(DIMS, HEADS, (3, 4), sr_ratio, False, True, 0., **core_cfg)


def swin(is_global: bool = True, window: tuple[int, int] = (3, 3)) -> nn.Module:
    return FocusedWindowAttention(DIMS, HEADS, window, is_global, False, True, 0.)


def ready(attention: nn.Module) -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(0)
    norm = LayerNorm(DIMS)
    for module in (attention, norm):
        for parameter in module.parameters():
            nn.init.normal_(parameter, std=0.5)
    return attention.eval(), norm.eval()


@pytest.fixture(autouse=True, params=[1, 9, 34])
def few_tokens_at_once(request, monkeypatch) -> None:
    """Of the 35: one, a share that leaves a rest, and a share that leaves one."""
    monkeypatch.setattr(focused, 'tokens_at_once', lambda dims: request.param)
    monkeypatch.setattr('flatten_mm.attention.streaming.tokens_at_once', lambda dims: request.param)


@pytest.mark.parametrize('make', [pvt, swin, lambda: pvt(rank_restoration=False)])
@pytest.mark.parametrize('dtype', [torch.float32, torch.float64, torch.bfloat16, 'autocast'])
def test_is_the_attention(make, dtype) -> None:
    attention, norm = ready(make())
    x = torch.randn(2, 35, DIMS)
    if isinstance(dtype, torch.dtype):
        attention, norm, x = attention.to(dtype), norm.to(dtype), x.to(dtype)
    with torch.no_grad(), torch.autocast('cpu', torch.bfloat16, enabled=dtype == 'autocast'):
        assert is_streamed(attention, norm, x, HW)
        expected = x + attention(norm(x), HW)
        before = x.clone()
        streamed = add_streamed(attention, norm, x, HW)
    assert torch.equal(x, before)
    assert streamed.dtype == expected.dtype
    loose = dict(rtol=2e-2, atol=2e-2) if dtype in (torch.bfloat16, 'autocast') else {}
    torch.testing.assert_close(streamed, expected, **loose)


@pytest.mark.parametrize('make', [
    lambda: pvt(sr_ratio=2), lambda: swin(is_global=False),
    lambda: SoftmaxReducedAttention(DIMS, HEADS, 1, False, True, 0., 0.)])
def test_not_where_keys_are_of_others(make) -> None:
    attention, norm = ready(make())
    with torch.no_grad():
        assert not is_streamed(attention, norm, torch.randn(1, 35, DIMS), HW)


def test_windows_of_the_whole_map_are_streamed() -> None:
    attention, norm = ready(swin(is_global=False, window=(7, 7)))
    x = torch.randn(1, 35, DIMS)
    with torch.no_grad():
        assert is_streamed(attention, norm, x, HW)
        expected = x + attention(norm(x), HW)
        torch.testing.assert_close(add_streamed(attention, norm, x, HW), expected)


def test_not_where_somebody_looks_or_trains() -> None:
    attention, norm = ready(pvt())
    x = torch.randn(1, 35, DIMS)
    assert not is_streamed(attention, norm, x, HW)  # gradients
    with torch.no_grad():
        hook = attention.q.register_forward_hook(lambda *call: None)
        assert not is_streamed(attention, norm, x, HW)
        hook.remove()
        attention.attend = attention.attend  # as flatten_mm.analysis.observe does
        assert not is_streamed(attention, norm, x, HW)
        del attention.attend
        attention.forward = attention.forward  # as wrappers do
        assert not is_streamed(attention, norm, x, HW)
        del attention.forward
        hook = nn.modules.module.register_module_forward_hook(lambda *call: None)
        assert not is_streamed(attention, norm, x, HW)
        hook.remove()
        assert not is_streamed(attention.train(), norm, x, HW)
        assert is_streamed(attention.eval(), norm, x, HW)


def test_not_for_a_forward_of_its_own() -> None:
    class Own(FocusedReducedAttention):
        def forward(self, x: torch.Tensor, hw: tuple[int, int]) -> torch.Tensor:
            return torch.zeros_like(x)

    attention, norm = ready(Own(DIMS, HEADS, (3, 4), 1, False, True, 0.))
    with torch.no_grad():
        assert not is_streamed(attention, norm, torch.randn(1, 35, DIMS), HW)


def test_not_for_a_small_map() -> None:
    attention, norm = ready(pvt())
    with torch.no_grad():
        assert not is_streamed(attention, norm, torch.randn(64, 1, DIMS), (1, 1))
