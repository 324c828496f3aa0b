"""The other linear attentions against plain quadratic restatements, and what all of them keep."""
from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from flatten_mm.attention import (
    VARIANTS,
    FocusedAttention,
    SoftmaxAttention,
    VariantAttention,
    variants,
)

WORDS = list(VARIANTS)
CONVOLVED = [word for word in WORDS if VARIANTS[word].is_convolved]
HEADS, DIMS, GRID = 3, 12, (4, 5)


def make_core(word: str, **kwargs) -> VariantAttention:
    return VariantAttention(DIMS, HEADS, GRID, word, **kwargs).double()


def make_qkv(batch: int = 2, queries: int = 20, keys: int = 20) -> list[Tensor]:
    return [torch.randn(batch, n, DIMS, dtype=torch.float64) for n in (queries, keys, keys)]


# ---- restated with the N x M matrix that the package never makes


def matrix(word: str, q: Tensor, k: Tensor, heads: int) -> Tensor:
    """(B, C, N, M): what each channel's values are multiplied with, one image and head at a time.
    """
    B, N, C = q.shape
    out = q.new_zeros(B, C, N, k.shape[1])
    for b in range(B):
        if word == 'hydra':
            unit_q, unit_k = (t[b] / t[b].norm(dim=1, keepdim=True) for t in (q, k))
            for c in range(C):
                out[b, c] = unit_q[:, c, None] * unit_k[None, :, c]
            continue
        for h in range(heads):
            channels = slice(h * C // heads, (h + 1) * C // heads)
            out[b, channels] = one_head(word, q[b, :, channels], k[b, :, channels])
    return out


def one_head(word: str, q: Tensor, k: Tensor) -> Tensor:
    """(N, M) of one head's (N, d) queries and (M, d) keys."""
    if word == 'efficient':
        rows = q.exp() / q.exp().sum(dim=1, keepdim=True)
        columns = k.exp() / k.exp().sum(dim=0, keepdim=True)
        return rows @ columns.T
    if word == 'angular':
        cosine = (q @ k.T) / (q.norm(dim=1)[:, None] * k.norm(dim=1)[None, :])
        weights = 0.5 + cosine / math.pi
        return weights / weights.sum(dim=1, keepdim=True)
    weights = (F.relu(q) + 1e-6) @ (F.relu(k) + 1e-6).T
    return weights / weights.shape[1] / (weights.mean(dim=1, keepdim=True) + 1e-6)


def convolved(v: Tensor, hw: tuple[int, int], core: VariantAttention) -> Tensor:
    """The depthwise convolution of V, head by head, by torch's own layer."""
    heads = [core.dwc(part.transpose(1, 2).unflatten(2, hw)).flatten(2).transpose(1, 2)
             for part in v.chunk(HEADS, dim=-1)]
    return torch.cat(heads, dim=-1)


@pytest.mark.parametrize('word', WORDS)
@pytest.mark.parametrize('kernel_size', [3, 5])
def test_equals_the_explicit_matrix(word, kernel_size) -> None:
    core = make_core(word, kernel_size=kernel_size)
    q, k, v = (t.requires_grad_() for t in make_qkv())
    ours = core.attend(q, k, v, GRID, GRID)
    plain = torch.einsum('bcij,bjc->bic', matrix(word, q, k, HEADS), v)
    if word in CONVOLVED:
        plain = plain + convolved(v, GRID, core)
    torch.testing.assert_close(ours, plain, rtol=1e-9, atol=1e-9)

    inputs = [q, k, v, *core.parameters()]
    weight = torch.randn_like(ours)
    gradients = [torch.autograd.grad((out * weight).sum(), inputs) for out in (ours, plain)]
    for ours_grad, plain_grad in zip(*gradients):
        torch.testing.assert_close(ours_grad, plain_grad, rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize('word', WORDS)
def test_gradcheck(word) -> None:
    core = VariantAttention(4, 2, (2, 3), word, kernel_size=3).double()
    q, k, v = (t[:1, :6, :4].clone().requires_grad_() for t in make_qkv())
    assert torch.autograd.gradcheck(lambda *qkv: core.attend(*qkv, (2, 3), (2, 3)), (q, k, v),
                                    eps=1e-7, atol=1e-4)


def test_only_what_is_used_is_learned() -> None:
    names = {word: [name for name, _ in make_core(word).named_parameters()] for word in WORDS}
    assert names == {word: ['dwc.weight', 'dwc.bias'] if word in ('angular', 'enhanced') else []
                     for word in ('linear', 'efficient', 'hydra', 'angular', 'enhanced')}
    assert not any(list(make_core(word, rank_restoration=False).parameters()) for word in WORDS)


# ---- what the words have to do with each other


def test_enhanced_is_linear_and_a_convolution() -> None:
    core, q_k_v = make_core('enhanced'), make_qkv()
    linear = make_core('linear').attend(*q_k_v, GRID, GRID)
    out = core.attend(*q_k_v, GRID, GRID)
    torch.testing.assert_close(out, linear + convolved(q_k_v[2], GRID, core))
    torch.testing.assert_close(
        make_core('enhanced', rank_restoration=False).attend(*q_k_v, GRID, GRID), linear)


@pytest.mark.parametrize('rank_restoration, word', [(False, 'linear'), (True, 'enhanced')])
def test_focused_attention_without_its_map_has_the_relu_kernel(rank_restoration, word) -> None:
    """Power 1: the focused core with its map off is the ReLU attention, scale and encoding apart.

    A scale s divides both features, so the 1e-6 beside their product weighs s * s as much; the
    learned values are set to those that leave the features alone.
    """
    core = FocusedAttention(DIMS, HEADS, GRID, focusing_factor=1,
                            rank_restoration=rank_restoration).double()
    assert (core.dwc is not None) == rank_restoration
    torch.nn.init.constant_(core.scale, math.log(math.e - 1))  # softplus gives 1
    other = make_core(word)
    if rank_restoration:
        other.dwc.load_state_dict(core.dwc.state_dict())
    qkv = make_qkv()
    torch.testing.assert_close(core.attend(*qkv, GRID, GRID), other.attend(*qkv, GRID, GRID))
    core.focusing_factor = 3
    assert not torch.allclose(core.attend(*qkv, GRID, GRID), other.attend(*qkv, GRID, GRID))


def test_focused_attention_without_its_convolution() -> None:
    core = FocusedAttention(DIMS, HEADS, GRID).double()
    bare = FocusedAttention(DIMS, HEADS, GRID, rank_restoration=False).double()
    left = bare.load_state_dict(core.state_dict(), strict=False)
    assert not left.missing_keys and left.unexpected_keys == ['dwc.weight', 'dwc.bias']
    qkv = make_qkv()
    torch.testing.assert_close(
        bare.attend(*qkv, GRID, GRID) + core.restore_rank(qkv[2], GRID),
        core.attend(*qkv, GRID, GRID))


@pytest.mark.parametrize('word', ['linear', 'efficient', 'angular'])
def test_equal_keys_give_the_mean_as_softmax_does(word) -> None:
    q, k, v = make_qkv()
    k = k[:, :1].expand_as(k).abs() + 1
    out = make_core(word, rank_restoration=False).attend(q.abs() + 1, k, v, GRID, GRID)
    expected = SoftmaxAttention(HEADS).attend(q, k, v, GRID, GRID)
    torch.testing.assert_close(expected, v.mean(dim=1, keepdim=True).expand_as(v))
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-5)


def test_efficient_attention_of_channels_far_apart_picks_as_softmax_does() -> None:
    """Each query on one channel, each channel on one key: both softmaxes become a choice."""
    tokens = torch.arange(4)
    q = k = 1e3 * F.one_hot(tokens, 4).double()[None]
    v = torch.randn(1, 4, 4, dtype=torch.float64)
    order = torch.tensor([2, 0, 3, 1])
    out = variants.efficient_attention(q[:, order], k, v, 1)
    expected = SoftmaxAttention(1).attend(q[:, order], k, v, (2, 2), (2, 2))
    torch.testing.assert_close(out, v[:, order])
    torch.testing.assert_close(out, expected)


def test_hydra_is_a_sum_over_tokens() -> None:
    q, k, v = make_qkv()
    twice = [torch.cat([t, t], dim=1) for t in (k, v)]
    torch.testing.assert_close(variants.hydra_attention(q, *twice),
                               2 * variants.hydra_attention(q, k, v))
    for word in ('linear', 'efficient', 'angular'):
        attend = VARIANTS[word].attend
        torch.testing.assert_close(attend(q, *twice, HEADS, None), attend(q, k, v, HEADS, None),
                                   rtol=1e-5, atol=1e-5)


def test_heads_of_hydra_do_not_matter_and_of_the_others_do() -> None:
    qkv = make_qkv()
    for word in WORDS:
        one, three = (VARIANTS[word].attend(*qkv, heads, None) for heads in (1, HEADS))
        assert torch.equal(one, three) == (word == 'hydra')


@pytest.mark.parametrize('word', ['hydra', 'angular'])
def test_length_of_queries_and_keys_does_not_matter(word) -> None:
    q, k, v = make_qkv()
    attend = VARIANTS[word].attend
    torch.testing.assert_close(attend(5 * q, 1e-3 * k, v, HEADS, None),
                               attend(q, k, v, HEADS, None))


# ---- what all keep


@pytest.mark.parametrize('word', WORDS)
def test_order_of_keys_does_not_matter(word) -> None:
    q, k, v = make_qkv(keys=30)
    order = torch.randperm(30)
    attend = VARIANTS[word].attend
    torch.testing.assert_close(attend(q, k[:, order], v[:, order], HEADS, None),
                               attend(q, k, v, HEADS, None))


@pytest.mark.parametrize('word', WORDS)
def test_padding_equals_cropping(word) -> None:
    """Padding on the right and at the bottom, other in each image, whatever it holds."""
    core, (q, k, v) = make_core(word), make_qkv()
    valid = torch.zeros(2, *GRID, 1, dtype=torch.bool)
    for image, (height, width) in enumerate([(4, 3), (2, 4)]):
        valid[image, :height, :width] = True
    flat = valid.flatten(1, 2)
    padded = core.attend(q, k, v, GRID, GRID, flat)
    garbage = [torch.where(flat, t, torch.full_like(t, 7.)) for t in (k, v)]
    torch.testing.assert_close(core.attend(q, *garbage, GRID, GRID, flat)[flat.expand_as(q)],
                               padded[flat.expand_as(q)])
    for image, hw in enumerate([(4, 3), (2, 4)]):
        inside = flat[image, :, 0]
        q_k_v = [t[image:image + 1, inside] for t in (q, k, v)]
        torch.testing.assert_close(padded[image:image + 1, inside], core.attend(*q_k_v, hw, hw))
        alone = VARIANTS[word].attend(q, k, v, HEADS, flat)[image:image + 1, inside]
        torch.testing.assert_close(alone, VARIANTS[word].attend(*q_k_v, HEADS, None))


@pytest.mark.parametrize('word', WORDS)
def test_fewer_keys_than_queries(word) -> None:
    """Spatial reduction: keys on a grid of their own, V brought to the queries' for the DWC."""
    core, (q, k, v) = make_core(word), make_qkv(keys=4)
    out = core.attend(q, k, v, GRID, (2, 2))
    plain = torch.einsum('bcij,bjc->bic', matrix(word, q, k, HEADS), v)
    if word in CONVOLVED:
        plain = plain + core.restore_rank(v, GRID)
    torch.testing.assert_close(out, plain)


@pytest.mark.parametrize('word', WORDS)
@pytest.mark.parametrize('dtype', [torch.float32, torch.bfloat16, pytest.param(
    torch.float16, marks=pytest.mark.skipif(
        torch.__version__ < '2.2', reason='torch 2.1 has no fp16 convolution on the CPU'))])
@pytest.mark.parametrize('magnitude', [0., 1e-8, 1., 1e4])
def test_finite_in_any_precision(word, dtype, magnitude) -> None:
    """Tokens of zeros and of any size; hydra's sum of 1e4 passes the end of fp16."""
    core = make_core(word).to(dtype)
    q, k, v = ((t * magnitude).to(dtype) for t in make_qkv())
    k[:, :7] = 0
    q, k, v = (t.requires_grad_() for t in (q, k, v))
    out = core.attend(q, k, v, GRID, GRID)
    assert out.dtype == dtype and out.isfinite().all()
    out.float().mean().backward()
    for tensor in (q, k, v, *core.parameters()):
        assert tensor.grad.isfinite().all()


def test_hydra_stops_at_the_end_of_fp16() -> None:
    q = torch.ones(1, 4096, 4, dtype=torch.float16)
    out = variants.hydra_attention(q, q, 100 * q)
    assert (out == torch.finfo(torch.float16).max).all()
    assert (variants.hydra_attention(q.float(), q.float(), 100 * q.float()) > 1e5).all()


@pytest.mark.parametrize('word', WORDS)
def test_autocast_computes_in_fp32(word) -> None:
    core = make_core(word, rank_restoration=False).float()
    q, k, v = (t.bfloat16() for t in make_qkv())
    with torch.autocast('cpu', dtype=torch.bfloat16):
        out = core.attend(q, k, v, GRID, GRID)
        wide = core.attend(q.float(), k.float(), v.float(), GRID, GRID)
    assert out.dtype == torch.bfloat16 and wide.dtype == torch.float32
    exact = core.double().attend(q.double(), k.double(), v.double(), GRID, GRID)
    torch.testing.assert_close(wide.double(), exact, rtol=1e-4, atol=1e-5)
    assert torch.equal(out, wide.bfloat16())


@pytest.mark.parametrize('word', WORDS)
def test_no_matrix_of_all_pairs(word) -> None:
    """Nothing the forward or backward pass makes grows with the square of the tokens."""
    made = []

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            out = function(*args, **(kwargs or {}))
            made.extend(t.numel() for t in (out if isinstance(out, (tuple, list)) else (out,))
                        if isinstance(t, Tensor))
            return out

    grid = (40, 50)
    core = make_core(word)
    with Watch():
        q, k, v = (t.requires_grad_() for t in make_qkv(1, 2000, 2000))
        core.attend(q, k, v, grid, grid).sum().backward()
    assert max(made) <= 2000 * DIMS * 2  # far below 2000 * 2000


@pytest.mark.parametrize('word', WORDS)
def test_one_graph_for_all_sizes_under_compile(word) -> None:
    torch._dynamo.reset()
    core = make_core(word).float().eval()
    graphs = []

    def count(graph, example_inputs):
        graphs.append(graph)
        return graph.forward

    compiled = torch.compile(core.attend, fullgraph=True, backend=count, dynamic=True)
    with torch.no_grad():
        for hw in ((6, 7), (9, 5), (12, 30)):
            q, k, v = (t.float() for t in make_qkv(1, hw[0] * hw[1], hw[0] * hw[1]))
            torch.testing.assert_close(compiled(q, k, v, hw, hw), core.attend(q, k, v, hw, hw))
    assert len(graphs) == 1


@pytest.mark.skipif(not hasattr(torch.compiler, 'set_stance'), reason='torch before 2.6')
@pytest.mark.parametrize('word', WORDS)
def test_trains_under_compile(word) -> None:
    """AOT, with which Inductor starts, refuses what Dynamo lets pass: views changed in place."""
    torch._dynamo.reset()
    core = make_core(word)
    qkv = [t.requires_grad_() for t in make_qkv()]
    compiled = torch.compile(core.attend, fullgraph=True, backend='aot_eager')
    weight = torch.randn_like(qkv[0])
    ours, plain = ([out, *torch.autograd.grad((out * weight).sum(), qkv)]
                   for out in (attend(*qkv, GRID, GRID) for attend in (compiled, core.attend)))
    for a, b in zip(ours, plain):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)
