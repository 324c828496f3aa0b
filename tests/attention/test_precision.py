"""Norms, sums and gradients that keep half precision finite."""
from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from half import HALF, HAS_FP16
from torch import nn

from flatten_mm.attention.grid import conv_with_full_cell
from flatten_mm.attention.precision import LayerNorm, add_branch, finite_gradient


@pytest.mark.parametrize('dtype', [torch.float64, torch.float32, torch.bfloat16])
def test_norm_is_torchs(dtype) -> None:
    ours, theirs = LayerNorm(8, eps=1e-6).to(dtype), nn.LayerNorm(8, eps=1e-6).to(dtype)
    nn.init.normal_(ours.weight)
    nn.init.normal_(ours.bias)
    theirs.load_state_dict(ours.state_dict())
    # From tokens that vary much to such whose variance is less than eps; in bf16 no hundredth is
    # seen beside it.
    least = 1e-3 if dtype == torch.bfloat16 else 1e-5
    x = torch.randn(2, 5, 8) * torch.tensor([1e4, 1, 1e-3, least, 1e2]).view(5, 1)
    x = x.to(dtype).requires_grad_()
    grad = torch.randn_like(x)
    for a, b in zip([ours(x), *torch.autograd.grad(ours(x), [x, *ours.parameters()], grad)],
                    [theirs(x), *torch.autograd.grad(theirs(x), [x, *theirs.parameters()], grad)]):
        torch.testing.assert_close(a, b)
    with torch.no_grad():
        assert torch.equal(ours(x), theirs(x))


@pytest.mark.parametrize('dtype', [torch.float64, torch.float32, *HALF])
@pytest.mark.parametrize('eps', [1e-5, 1e-6])
def test_flat_tokens_pass_no_gradient_through_a_norm(dtype, eps) -> None:
    norm = LayerNorm(8, eps=eps).to(dtype)
    flat = torch.tensor([0., 1., -30.], dtype=dtype).view(3, 1).expand(3, 8)
    x = torch.cat((flat, torch.randn(2, 8, dtype=dtype))).requires_grad_()
    (norm(x) * torch.randn(5, 8, dtype=dtype)).sum().backward()
    assert not x.grad[:3].any() and x.grad[3:].all()
    assert norm.bias.grad.all()


@pytest.mark.parametrize('dtype', HALF)
def test_under_autocast_tokens_stay_fp32(dtype) -> None:
    with torch.autocast('cpu', dtype):
        x = LayerNorm(8)(torch.randn(2, 8, dtype=dtype))
        branch = F.linear(x, torch.randn(8, 8))
        assert (x.dtype, branch.dtype) == (torch.float32, dtype)
        total = add_branch(branch, x)
    assert total.dtype == torch.float32
    assert torch.equal(total, x + branch)


def test_sum_is_in_place_where_it_can_be() -> None:
    branch, x = torch.randn(2, 8), torch.randn(2, 8)
    expected = branch + x
    assert add_branch(branch, x) is branch and torch.equal(branch, expected)


@pytest.mark.skipif(not HAS_FP16, reason='this torch has little fp16 on the CPU')
def test_gradients_beyond_fp16_end_at_its_largest_number() -> None:
    x = torch.zeros(4, dtype=torch.float16, requires_grad=True)
    factor = torch.tensor([1e6, -1e6, 2., float('nan')])
    (finite_gradient(x).float() * factor).sum().backward()
    assert x.grad[:3].tolist() == [65504., -65504., 2.] and x.grad[3].isnan()
    for dtype in (torch.bfloat16, torch.float32):
        other = torch.zeros(2, dtype=dtype, requires_grad=True)
        assert finite_gradient(other) is other


@pytest.mark.parametrize('kernel, stride, padding', [(3, 2, 1), (7, 4, 3), (7, 4, 2), (2, 2, 0)])
@pytest.mark.parametrize('hw', [(1, 1), (1, 2), (2, 5), (3, 3), (6, 7)])
def test_convolution_of_few_cells(kernel, stride, padding, hw) -> None:
    """The convolution itself, with no gradient left unset in bf16 (chance: many tries)."""
    conv = nn.Conv2d(4, 8, kernel, stride, padding)
    x = torch.randn(2, 4, *hw)
    short = [max(kernel - 2 * padding - side, 0) for side in hw]
    torch.testing.assert_close(conv_with_full_cell(conv, x),
                               conv(F.pad(x, (0, short[1], 0, short[0]))))
    for _ in range(10):
        junk = [torch.full((500 * (i + 1),), float('nan')) for i in range(10)]
        del junk
        conv.zero_grad()
        with torch.autocast('cpu', torch.bfloat16):
            conv_with_full_cell(conv, x).float().mean().backward()
        assert conv.weight.grad.isfinite().all()
