"""The product on the faster library is torch's linear layer, values and gradients."""
from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from flatten_mm.attention.linear import (
    HAS_OPERATORS,
    Linear,
    heads_product,
    linear,
    product,
    project,
    uses_onednn,
    weight_gradient,
)
from flatten_mm.backbones.feed_forward import Mlp

LAYOUTS = {
    'dense': lambda: torch.randn(2, 50, 24),
    'slice': lambda: torch.randn(2, 50, 48)[..., 24:],
    'transposed': lambda: torch.randn(2, 24, 50).transpose(1, 2),
    'one row': lambda: torch.randn(1, 1, 24),
    'two dimensions': lambda: torch.randn(50, 24),
}


@pytest.mark.parametrize('layout', LAYOUTS)
@pytest.mark.parametrize('bias', [True, False])
@pytest.mark.parametrize('dtype', [torch.float32, torch.float64, torch.bfloat16])
def test_equals_torch(layout, bias, dtype) -> None:
    x = LAYOUTS[layout]().to(dtype)
    weight = torch.randn(36, 24, dtype=dtype)
    inputs = [x, weight] + ([torch.randn(36, dtype=dtype)] if bias else [])
    inputs = [t.detach().requires_grad_() for t in inputs]
    ours, theirs = linear(*inputs), F.linear(*inputs)
    torch.testing.assert_close(ours, theirs)
    grad = torch.randn_like(ours)
    for a, b in zip(torch.autograd.grad(ours, inputs, grad), torch.autograd.grad(
            theirs, inputs, grad)):
        torch.testing.assert_close(a, b, rtol=1e-4 if dtype == torch.float32 else None,
                                   atol=1e-4 if dtype == torch.float32 else None)
    with torch.no_grad():
        torch.testing.assert_close(linear(*inputs), theirs)


def test_odd_layouts_of_the_weight() -> None:
    x, weight = torch.randn(40, 24), torch.randn(36, 48)[:, :24]
    for w in (weight, torch.randn(24, 40)[:, :36].t()):
        torch.testing.assert_close(product(x, w), F.linear(x, w))


@pytest.mark.parametrize('outputs, inputs', [(8, 40), (40, 8), (16, 16)])
def test_gradient_of_the_weight(outputs, inputs) -> None:
    grad, x = torch.randn(2, 30, outputs), torch.randn(2, 30, inputs)
    torch.testing.assert_close(weight_gradient(grad, x),
                               torch.einsum('bno,bni->oi', grad, x), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize('batch, heads', [(1, 1), (2, 1), (1, 3), (2, 3)])
def test_products_of_heads(batch, heads) -> None:
    x = torch.randn(batch, 30, heads, 8).transpose(1, 2)
    matrices = torch.randn(batch, heads, 8, 9)
    for left in (x, x.contiguous()):
        torch.testing.assert_close(heads_product(left, matrices), left @ matrices)


def test_empty_input() -> None:
    assert linear(torch.randn(0, 24), torch.randn(36, 24)).shape == (0, 36)


def test_under_autocast_the_dtype_is_autocasts() -> None:
    x = torch.randn(4, 24)
    with torch.autocast('cpu', torch.bfloat16):
        assert not uses_onednn(x)
        assert Linear(24, 36)(x).dtype == torch.bfloat16


def test_result_may_be_changed_in_place() -> None:
    layer, x = Linear(24, 24), torch.randn(2, 5, 24, requires_grad=True)
    layer(x).add_(x).sum().backward()
    torch.testing.assert_close(x.grad, 1 + layer.weight.sum(0).expand_as(x))


def test_parts_are_those_of_the_packed_product() -> None:
    packed, x = torch.nn.Linear(24, 36), torch.randn(2, 5, 24)
    for part, expected in zip(project(packed, x, 3), packed(x).chunk(3, -1)):
        torch.testing.assert_close(part, expected)
        assert part.is_contiguous()


@pytest.fixture
def graph() -> list[str]:
    """Names of what a compiled or exported graph calls; filled by ``compiled``."""
    return []


def compiled(module: torch.nn.Module, graph: list[str]) -> torch.nn.Module:
    def backend(gm: torch.fx.GraphModule, inputs: list) -> torch.fx.GraphModule:
        graph.extend(str(node.target) for node in gm.graph.nodes)
        return gm

    return torch.compile(module, fullgraph=True, backend=backend, dynamic=True)


@pytest.mark.skipif(not HAS_OPERATORS, reason='torch before 2.7, or no oneDNN')
@pytest.mark.parametrize('make, name', [(lambda: Linear(24, 36), 'flatten_mm.product'),
                                        (lambda: Mlp(24, 96), 'flatten_mm.mlp')])
class TestOperators:

    @pytest.mark.parametrize('autocast', [False, True])
    def test_compiled_inference_calls_them(self, make, name, autocast, graph) -> None:
        layer = make().eval()
        call = compiled(layer, graph)
        for length in (50, 70):
            x = torch.randn(2, length, 24)
            with torch.no_grad(), torch.autocast('cpu', torch.bfloat16, enabled=autocast):
                ours, theirs = call(x), layer(x)
            assert ours.dtype == theirs.dtype
            torch.testing.assert_close(ours, theirs)
        assert any(name in target for target in graph)

    def test_compiled_training_does_not(self, make, name, graph) -> None:
        compiled(make(), graph)(torch.randn(2, 50, 24)).sum().backward()
        assert graph
        assert not any('flatten_mm' in target for target in graph)

    @pytest.mark.parametrize('strict', [False, True])
    def test_an_exported_graph_runs_without_them(self, make, name, strict) -> None:
        with torch.no_grad():
            program = torch.export.export(make().eval(), (torch.randn(2, 50, 24),), strict=strict)
        targets = [str(node.target) for node in program.graph.nodes]
        assert any('linear' in target for target in targets)
        assert not any('flatten_mm' in target for target in targets)

    def test_neither_does_a_traced_one(self, make, name) -> None:
        with torch.no_grad():
            traced = torch.jit.trace(make().eval(), torch.randn(2, 50, 24))
        assert 'flatten_mm::' not in str(traced.inlined_graph)
