"""Properties of the core that hold for any input."""
from __future__ import annotations

import oracle
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flatten_mm import FLattenDeiT
from flatten_mm.analysis import attention_rows, collect
from flatten_mm.attention import FocusedAttention, focused_linear_attention, focused_map
from flatten_mm.attention.focused import EPS

settings.register_profile('flatten_mm', deadline=None, derandomize=True, database=None,
                          max_examples=20)
PROFILE = settings.get_profile('flatten_mm')
POWERS = st.sampled_from([0.5, 1, 2, 3, 8])
SEEDS = st.integers(0, 10**6)
DIMS, HEADS = 12, (1, 2, 3, 6)


def draw(seed: int, *shapes: tuple[int, ...], low: float = -1.) -> list[torch.Tensor]:
    """Tensors of numbers from ``low`` to 1, in float64."""
    generator = torch.Generator().manual_seed(seed)
    return [low + (1 - low) * torch.rand(shape, generator=generator, dtype=torch.float64)
            for shape in shapes]


def make_core(seed: int, heads: int, p: float, grid=(2, 3)) -> FocusedAttention:
    core = FocusedAttention(DIMS, heads, grid, focusing_factor=p, kernel_size=3).double()
    for parameter, value in zip(core.parameters(), draw(seed, *(q.shape for q in
                                                                core.parameters()))):
        parameter.data = value
    return core


def features(x: torch.Tensor, scale: torch.Tensor, p: float) -> torch.Tensor:
    return oracle.focused_map((x.relu() + EPS) / scale, p)


@PROFILE
@given(seed=SEEDS, p=POWERS, magnitude=st.sampled_from([1e-8, 1., 1e4]),
       factor=st.floats(1e-3, 1e3))
def test_the_map_keeps_norm_and_order_and_scales(seed, p, magnitude, factor) -> None:
    x, = draw(seed, (2, 5, 16), low=1e-3)
    x = x * magnitude
    y = focused_map(x, p)
    torch.testing.assert_close(y.norm(dim=-1), x.norm(dim=-1))
    assert torch.equal(y.argmax(-1), x.argmax(-1))
    torch.testing.assert_close(focused_map(factor * x, p), factor * y)
    share = (x.amax(-1) / x.norm(dim=-1), y.amax(-1) / y.norm(dim=-1))
    if p == 1:
        torch.testing.assert_close(y, x)
    else:  # sharper above 1, blunter below
        assert ((share[1] - share[0]) * (p - 1) > -1e-12).all()
    torch.testing.assert_close(focused_map(x.float(), p).double(), y, rtol=1e-4,
                               atol=1e-7 * magnitude)


@PROFILE
@given(seed=SEEDS, tokens=st.integers(1, 9), keys=st.integers(1, 9), heads=st.sampled_from(HEADS),
       p=POWERS)
def test_the_order_of_keys_with_their_values_does_not_matter(seed, tokens, keys, heads, p) -> None:
    q, k, v, scale, encoding = draw(seed, (2, tokens, DIMS), (2, keys, DIMS), (2, keys, DIMS),
                                    (1, 1, DIMS), (1, keys, DIMS))
    inputs = [t.requires_grad_() for t in (q, k, v)]
    order = torch.randperm(keys, generator=torch.Generator().manual_seed(seed))
    out = focused_linear_attention(q, k, v, scale.exp(), heads, p, encoding=encoding)
    permuted = focused_linear_attention(q, k[:, order], v[:, order], scale.exp(), heads, p,
                                        encoding=encoding[:, order])
    torch.testing.assert_close(permuted, out)
    for a, b in zip(torch.autograd.grad(permuted.sin().sum(), inputs),
                    torch.autograd.grad(out.sin().sum(), inputs)):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-9 * b.abs().max().item())


@PROFILE
@given(seed=SEEDS, heads=st.sampled_from(HEADS), p=POWERS, factor=st.floats(-100, 100))
def test_scaling_the_values_scales_all_but_the_bias(seed, heads, p, factor) -> None:
    core = make_core(seed, heads, p)
    q, k, v = draw(seed + 1, *[(2, 6, DIMS)] * 3)
    bias = core.dwc.bias.repeat(heads)
    with torch.no_grad():
        out, scaled = (core.attend(q, k, c * v, (2, 3), (2, 3)) - bias for c in (1, factor))
    torch.testing.assert_close(scaled, factor * out)


@PROFILE
@given(seed=SEEDS, tokens=st.integers(1, 9), keys=st.integers(1, 9), heads=st.sampled_from(HEADS))
def test_power_one_is_vanilla_linear_attention(seed, tokens, keys, heads) -> None:
    q, k, v = draw(seed, (2, tokens, DIMS), (2, keys, DIMS), (2, keys, DIMS))
    ours = focused_linear_attention(q, k, v, torch.ones(1, 1, DIMS, dtype=q.dtype), heads, 1)
    expected = []
    for q_h, k_h, v_h in zip(*(t.chunk(heads, -1) for t in (q.relu() + EPS, k.relu() + EPS, v))):
        similarity = q_h @ k_h.transpose(1, 2)
        expected.append(similarity @ v_h / (similarity.sum(-1, keepdim=True) + keys * EPS))
    torch.testing.assert_close(ours, torch.cat(expected, -1))


@PROFILE
@given(seed=SEEDS, keys=st.integers(1, 9), heads=st.sampled_from(HEADS), p=POWERS)
def test_heads_apart_are_heads_together(seed, keys, heads, p) -> None:
    """Once the norms over all channels are taken, each head is an attention of its own."""
    q, k, v, scale = draw(seed, (2, 4, DIMS), (2, keys, DIMS), (2, keys, DIMS), (1, 1, DIMS),
                          low=0.5)  # of which no power is below the 1e-6 that is added again
    together = focused_linear_attention(q, k, v, scale, heads, p)
    ones = torch.ones(1, 1, DIMS // heads, dtype=q.dtype)
    parts = zip(*(t.chunk(heads, -1) for t in (features(q, scale, p) - EPS,
                                               features(k, scale, p) - EPS, v)))
    apart = [focused_linear_attention(*part, ones, 1, 1) for part in parts]
    torch.testing.assert_close(torch.cat(apart, -1), together)


@PROFILE
@given(seed=SEEDS, heads=st.sampled_from(HEADS), p=st.sampled_from([0.5, 1, 2, 3]),
       factor=st.sampled_from([1e-2, 0.5, 7., 1e3]))
def test_the_length_of_a_query_does_not_matter(seed, heads, p, factor) -> None:
    """Up to the two 1e-6, for which the bound is: added to an element of at least m, it changes
    the element by 1e-6 / m at most, its power by (1 + 1e-6 / m)^p, weights of keys in a row by that
    and as much again by their sum; added to the normaliser s, it takes 1e-6 / s of the output."""
    q, k, v, scale = draw(seed, (1, 4, DIMS), (1, 5, DIMS), (1, 5, DIMS), (1, 1, DIMS), low=0.4)
    out, scaled = (focused_linear_attention(c * q, k, v, scale, heads, p) for c in (1, factor))
    least = min(1, factor) * q.min()
    mean_key = features(k, scale, p).mean(1, keepdim=True)
    normaliser = min((features(c * q, scale, p) * mean_key).unflatten(-1, (heads, -1)).sum(-1)
                     .min().item() for c in (1, factor))
    bound = ((1 + EPS / least)**(2 * p) - 1 + EPS / normaliser) * v.abs().max()
    assert (scaled - out).abs().max() <= bound + 1e-12
    assert bound < 0.05  # so that it says something


@PROFILE
@given(seed=SEEDS, heads=st.sampled_from(HEADS), p=POWERS)
def test_what_is_no_key_does_not_matter(seed, heads, p) -> None:
    q, k, v, other_k, other_v, scale = draw(seed, *[(2, 6, DIMS)] * 5, (1, 1, DIMS))
    valid = torch.tensor([1, 0, 1, 1, 0, 0], dtype=torch.bool).view(1, 6, 1).expand(2, 6, 1)
    out = focused_linear_attention(q, k, v, scale.exp(), heads, p, valid)
    kept = [t[:, valid[0, :, 0]] for t in (k, v)]
    torch.testing.assert_close(focused_linear_attention(q, *kept, scale.exp(), heads, p), out)
    changed = torch.where(valid, k, other_k), v * valid + 0 * other_v
    torch.testing.assert_close(
        focused_linear_attention(q, *changed, scale.exp(), heads, p, valid), out)


@pytest.mark.parametrize('p', [1, 3, 8])
def test_rows_of_attention_sum_to_one_less_the_share_of_the_epsilon(p) -> None:
    """Exactly s / (s + 1e-6), s the query's similarity to the mean key: between 1 - 1e-6 / s and 1.
    """
    arch = dict(embed_dims=DIMS, depths=[1, 1, 1, 1], num_heads=3, mlp_ratio=1., patch_size=8)
    model = FLattenDeiT(arch, pretrain_img_size=32, focusing_factor=p).double().eval()
    for parameter, value in zip(model.parameters(), draw(0, *(q.shape for q in
                                                              model.parameters()))):
        parameter.data = 0.5 * value

    def look(call):
        rows = attention_rows(call, range(16), 'focused', dtype=torch.float64)
        scale = torch.nn.functional.softplus(call.site.module.scale)
        key = call.k[:1] + call.site.module.positional_encoding
        similarity = (features(call.q[:1], scale, p) * features(key, scale, p).mean(1, True))
        return rows, similarity.unflatten(-1, (3, -1)).sum(-1)[0]

    image, = draw(1, (1, 3, 32, 32))
    with torch.no_grad():
        found = collect(model, image, look)
    assert len(found) == 4
    for rows, similarity in found.values():
        assert (rows >= 0).all()
        sums = rows.sum(-1)
        torch.testing.assert_close(sums, similarity / (similarity + EPS))
        assert (sums <= 1 + 1e-12).all() and (1 - sums <= EPS / similarity + 1e-12).all()
