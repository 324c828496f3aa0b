"""The feed-forward parts against their plain form, in parts and in one."""
from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from flatten_mm.backbones import feed_forward
from flatten_mm.backbones.feed_forward import ConvMlp, Mlp, add_in_parts, passes_in_parts


@pytest.fixture(params=[2**19, 64])
def parts(request, monkeypatch) -> None:
    """All rows at once, and two rows at a time."""
    monkeypatch.setattr(feed_forward, 'HIDDEN_ELEMENTS_AT_ONCE', request.param)


def plain(mlp: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
    hidden = F.linear(x, mlp.fc1.weight, mlp.fc1.bias)
    if isinstance(mlp, ConvMlp):
        hidden = mlp.dwconv.dwconv(mlp.relu(hidden).transpose(1, 2).unflatten(2, (3, 5)))
        hidden = hidden.flatten(2).transpose(1, 2)
    return F.linear(F.gelu(hidden), mlp.fc2.weight, mlp.fc2.bias)


@pytest.mark.parametrize('make', [lambda: Mlp(8, 32), lambda: ConvMlp(8, 32, 0., False),
                                  lambda: ConvMlp(8, 32, 0., True)])
def test_values_and_gradients(make, parts) -> None:
    mlp = make().double()
    x = torch.randn(2, 15, 8, dtype=torch.float64, requires_grad=True)
    ours, theirs = mlp(x, (3, 5)), plain(mlp, x)
    torch.testing.assert_close(ours, theirs)
    inputs = [x, *mlp.parameters()]
    grad = torch.randn_like(ours)
    for a, b in zip(torch.autograd.grad(ours, inputs, grad), torch.autograd.grad(
            theirs, inputs, grad)):
        torch.testing.assert_close(a, b)
    before = x.detach().clone()
    with torch.no_grad():
        torch.testing.assert_close(mlp(x, (3, 5)), theirs)
        torch.testing.assert_close(mlp.float()(x.float(), (3, 5)), theirs.float())
    assert torch.equal(x, before)


@pytest.mark.parametrize('layout', [lambda x: x, lambda x: x.transpose(0, 1)])
def test_added_in_parts(layout, parts) -> None:
    mlp, norm = Mlp(8, 32).eval(), torch.nn.LayerNorm(8).eval()
    x = layout(torch.randn(3, 5, 8))
    with torch.no_grad():
        assert passes_in_parts(mlp, norm, x)
        torch.testing.assert_close(add_in_parts(mlp, norm, x.clone()), x + mlp(norm(x)))


def test_not_in_parts_where_more_is_asked_for() -> None:
    x, norm = torch.randn(3, 5, 8), torch.nn.LayerNorm(8).eval()
    assert not passes_in_parts(Mlp(8, 32).eval(), norm, x)  # gradients
    with torch.no_grad():
        assert not passes_in_parts(Mlp(8, 32).train(), norm, x)
        assert not passes_in_parts(ConvMlp(8, 32, 0., False).eval(), norm, x)  # needs the whole map


def test_dropout_still_drops() -> None:
    mlp = Mlp(8, 32, drop_rate=0.5).train()
    x = torch.randn(1, 10, 8)
    assert not torch.equal(mlp(x), mlp(x))
    assert torch.equal(mlp.eval()(x), mlp(x))


def test_autocast_gradients_have_the_parameters_dtype() -> None:
    mlp = Mlp(8, 32)
    with torch.autocast('cpu', torch.bfloat16):
        out = mlp(torch.randn(1, 10, 8))
    out.float().sum().backward()
    assert out.dtype == torch.bfloat16
    assert all(p.grad.dtype == torch.float32 for p in mlp.parameters())


def test_half_precision_gradient_of_the_weight_does_not_depend_on_the_parts(parts) -> None:
    mlp, x, grad = Mlp(8, 32), torch.randn(1, 2000, 8), torch.randn(1, 2000, 8) + 0.3
    gradients = []
    for enabled in (False, True):
        mlp.zero_grad()
        with torch.autocast('cpu', torch.bfloat16, enabled=enabled):
            out = mlp(x)
        (out.float() * grad).sum().backward()
        gradients.append(mlp.fc2.weight.grad.clone())
    fp32, bf16 = gradients
    assert (bf16 - fp32).norm() < 5e-3 * fp32.norm()
