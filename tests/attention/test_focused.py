"""The core against a plain restatement of the paper's equations, and its properties."""
from __future__ import annotations

import oracle
import pytest
import torch
from half import HALF

from flatten_mm.attention import FocusedAttention, focused


def make_core(dims: int = 12, heads: int = 3, grid: tuple[int, int] = (4, 5), **kwargs
              ) -> FocusedAttention:
    core = FocusedAttention(dims, heads, grid, **kwargs).double()
    with torch.no_grad():
        core.scale.normal_()
        core.positional_encoding.normal_()
    return core


def make_qkv(core: FocusedAttention, batch: int = 2) -> list[torch.Tensor]:
    tokens, dims = core.positional_encoding.shape[1:]
    return [torch.randn(batch, tokens, dims, dtype=torch.float64) for _ in range(3)]


@pytest.mark.parametrize('heads', [1, 3])
@pytest.mark.parametrize('focusing_factor', [1, 2, 3, 4.5])
@pytest.mark.parametrize('kernel_size', [1, 3, 5, 7])
def test_equals_the_explicit_attention_map(heads, focusing_factor, kernel_size) -> None:
    core = make_core(heads=heads, focusing_factor=focusing_factor, kernel_size=kernel_size)
    q, k, v = (t.requires_grad_() for t in make_qkv(core))
    ours = core.attend(q, k, v, (4, 5), (4, 5))
    plain = oracle.focused_attention(q, k, v, heads, core.scale, core.positional_encoding,
                                     core.dwc.weight, core.dwc.bias, (4, 5), focusing_factor)
    torch.testing.assert_close(ours, plain, rtol=1e-9, atol=1e-9)

    inputs = [q, k, v, *core.parameters()]
    weight = torch.randn_like(ours)
    gradients = [torch.autograd.grad((out * weight).sum(), inputs) for out in (ours, plain)]
    for ours_grad, plain_grad in zip(*gradients):
        torch.testing.assert_close(ours_grad, plain_grad, rtol=1e-7, atol=1e-8)


def test_gradcheck() -> None:
    core = make_core(dims=4, heads=2, grid=(2, 3), kernel_size=3)
    q, k, v = (t.requires_grad_() for t in make_qkv(core, batch=1))
    assert torch.autograd.gradcheck(lambda *qkv: core.attend(*qkv, (2, 3), (2, 3)), (q, k, v),
                                    eps=1e-7, atol=1e-4)


@pytest.mark.parametrize('padded', [False, True])
def test_tokens_may_pass_in_parts(monkeypatch, padded) -> None:
    """A part of three tokens at a time, the last one shorter: same values, same gradients."""
    core = make_core()
    inputs = [*(t.requires_grad_() for t in make_qkv(core)), *core.parameters()]
    valid = (torch.arange(20) < 17).view(1, 20, 1).repeat(2, 1, 1) if padded else None
    weight = torch.randn_like(inputs[0])
    results = []
    for elements in (focused.ELEMENTS_AT_ONCE, 3 * 2 * 12 + 1):
        monkeypatch.setattr(focused, 'ELEMENTS_AT_ONCE', elements)
        out = core.attend(*inputs[:3], (4, 5), (4, 5), valid)
        with torch.no_grad():
            torch.testing.assert_close(core.attend(*inputs[:3], (4, 5), (4, 5), valid), out)
        results.append([out, *torch.autograd.grad((out * weight).sum(), inputs)])
    for whole, parts in zip(*results):
        torch.testing.assert_close(parts, whole, rtol=1e-10, atol=1e-10)


def test_padding_is_no_key() -> None:
    """Attention with masked keys equals attention without those tokens, DWC apart."""
    core = make_core(grid=(1, 6))
    torch.nn.init.zeros_(core.dwc.weight)
    q, k, v = make_qkv(core)
    valid = torch.tensor([True, True, True, True, False, False]).view(1, 6, 1).repeat(2, 1, 1)
    masked = core.attend(q, k, v, (1, 6), (1, 6), valid)
    short = make_core(grid=(1, 4))
    short.load_state_dict(core.state_dict() | {
        'positional_encoding': core.positional_encoding[:, :4]})
    expected = short.attend(*(t[:, :4] for t in (q, k, v)), (1, 4), (1, 4))
    torch.testing.assert_close(masked[:, :4], expected)


def test_fewer_values_than_grid_cells_are_stretched_along_the_token_axis() -> None:
    core = make_core(grid=(2, 2))
    v = torch.arange(4., dtype=torch.float64).view(1, 4, 1).repeat(1, 1, 12)
    torch.nn.init.zeros_(core.dwc.weight)
    core.dwc.weight.data[:, :, 2, 2] = 1  # the identity
    torch.nn.init.zeros_(core.dwc.bias)
    stretched = core.restore_rank(v, (2, 4))[0, :, 0]
    expected = torch.tensor([0, .25, .75, 1.25, 1.75, 2.25, 2.75, 3], dtype=torch.float64)
    torch.testing.assert_close(stretched, expected)


@pytest.mark.parametrize('dtype', HALF)
@pytest.mark.parametrize('magnitude', [0., 1e-8, 1., 1e4])
@pytest.mark.parametrize('scale', [-20., 0., 20.])
def test_half_precision_stays_finite(dtype, magnitude, scale) -> None:
    core = make_core().float()
    torch.nn.init.constant_(core.scale, scale)
    torch.nn.init.zeros_(core.positional_encoding)
    core = core.to(dtype)
    q, k, v = ((t * magnitude).to(dtype).requires_grad_() for t in make_qkv(core))
    out = core.attend(q, k, v, (4, 5), (4, 5))
    assert out.dtype == dtype and out.isfinite().all()
    out.float().mean().backward()
    for tensor in (q, k, v, *core.parameters()):
        assert tensor.grad.isfinite().all()


def test_one_graph_for_all_sizes_under_compile() -> None:
    torch._dynamo.reset()
    core = make_core().float().eval()
    graphs = []

    def count(graph, example_inputs):
        graphs.append(graph)
        return graph.forward

    compiled = torch.compile(core.attend, fullgraph=True, backend=count, dynamic=True)
    with torch.no_grad():
        for hw in ((6, 7), (9, 5), (12, 30), (33, 17)):
            q, k, v = (torch.randn(1, hw[0] * hw[1], 12) for _ in range(3))
            torch.testing.assert_close(compiled(q, k, v, hw, hw), core.attend(q, k, v, hw, hw))
    assert len(graphs) == 1
