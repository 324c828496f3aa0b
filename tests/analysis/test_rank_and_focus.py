"""Rank, entropy and what they say of the paper's claims."""
from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from flatten_mm import FLattenDeiT, FLattenPVT
from flatten_mm.analysis import (
    attention_rows,
    collect,
    dead_shares,
    effective_rank,
    equivalent_matrix,
    focus_stats,
    focused_map_figure,
    rank_report,
)
from flatten_mm.attention import focused_map


def test_deit_tiny_has_rank_64_without_and_196_with_the_convolution():
    """Figure 5 of the paper: 14x14 tokens, heads of 64 channels."""
    model = FLattenDeiT('tiny').eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    ranks = {}
    for name, local in (('without', ()), ('with', ('dwc',))):
        matrix = next(iter(collect(
            model, torch.randn(1, 3, 224, 224),
            lambda call, local=local: equivalent_matrix(call, 2, local=local, channel=5),
            stage=1, block=0).values()))
        assert matrix.shape == (196, 196)
        ranks[name] = rank_report(matrix)
    assert ranks['without'].numerical_rank <= 64
    assert ranks['with'].numerical_rank == 196
    assert ranks['without'].effective_rank < ranks['with'].effective_rank


def test_rank_of_known_matrices():
    torch.manual_seed(1)
    low = torch.randn(30, 5) @ torch.randn(5, 40)
    report = rank_report(low)
    assert report.numerical_rank == 5
    assert len(report.singular_values) == 30
    assert np.allclose(report.singular_values, np.linalg.svd(low.double().numpy())[1])
    assert rank_report(torch.eye(7)).effective_rank == pytest.approx(7)
    assert effective_rank(torch.tensor([0.5, 0.5, 0.])) == pytest.approx(2)
    assert rank_report(torch.zeros(3, 3)).numerical_rank == 0
    assert rank_report(torch.diag(torch.tensor([1., 1e-3])), rtol=1e-2).numerical_rank == 1
    with pytest.raises(ValueError, match='NaN or inf'):
        rank_report(torch.tensor([[1., math.nan]]))


def one_call(model, image, look, **where):
    return next(iter(collect(model, image, look, **where).values()))


def uniform(model):
    """Every query and key alike, so that attention is uniform."""
    for parameter in model.parameters():
        torch.nn.init.zeros_(parameter)
    return model.eval()


ARCH = dict(embed_dims=[16, 32, 40, 32], num_heads=[2, 2, 5, 4], mlp_ratios=[1, 1, 1, 1],
            depths=[1, 1, 1, 1])


@pytest.mark.parametrize('attention', ['focused', 'linear', 'softmax'])
def test_entropy_of_uniform_attention_is_log_of_the_keys(attention):
    stats = one_call(uniform(FLattenPVT(ARCH)), torch.randn(1, 3, 64, 96),
                     lambda call: focus_stats(call, attention), stage=0)
    assert torch.allclose(stats.entropy, torch.full((2,), math.log(16 * 24)).double())
    assert torch.allclose(stats.relative_entropy, torch.ones(2).double())
    assert torch.allclose(stats.top_mass, torch.full((2,), 38 / 384).double())
    assert stats.keys == 384 and stats.queries == 256


def test_focus_stats_are_those_of_the_rows():
    model = FLattenPVT(ARCH).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)

    def look(call):
        rows = attention_rows(call, list(range(96)), dtype=torch.float64)
        return focus_stats(call, queries=96), rows

    stats, rows = one_call(model, torch.randn(1, 3, 32, 48), look, stage=0)
    rows = rows / rows.sum(-1, keepdim=True)
    entropy = -(rows * rows.clamp(min=1e-30).log()).sum(-1).mean(0)
    top = rows.sort(-1, descending=True).values[..., :10].sum(-1).mean(0)
    assert torch.allclose(stats.entropy, entropy, atol=1e-4)
    assert torch.allclose(stats.top_mass, top, atol=1e-4)


def test_a_higher_power_is_more_focused():
    entropies = []
    for power in (1, 3, 8):
        torch.manual_seed(0)
        model = FLattenPVT(ARCH, focusing_factor=power).eval()
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter, std=0.2)
        stats = one_call(model, torch.randn(1, 3, 64, 64), focus_stats, stage=0)
        entropies.append(float(stats.relative_entropy.mean()))
    assert entropies[0] > entropies[1] > entropies[2]


def test_dead_tokens_are_counted_in_each_head():
    model = FLattenPVT(ARCH).eval()

    def look(call):
        q, k = -torch.ones_like(call.q), torch.ones_like(call.k)
        q[:, 0, 0] = 1.  # one token lives in the first of two heads
        k[:, :8] = -1.
        alive = type(call)(call.site, q, k, call.v, call.query_hw, call.key_hw, call.mask,
                           call.map_hw)
        return dead_shares(alive)

    queries, keys = one_call(model, torch.randn(1, 3, 16, 16), look, stage=0)
    assert queries == pytest.approx(31 / 32)
    assert keys == pytest.approx(8 / 16)


@pytest.mark.parametrize('power', [1, 2, 3, 4, 8])
def test_focused_map_in_two_dimensions(power):
    """Figure 4: the norm stays, vectors move to their nearest axis, further with p."""
    angles = torch.linspace(1, 89, 45).deg2rad().double()
    vectors = torch.stack([angles.cos(), angles.sin()], 1) * torch.linspace(0.1, 3, 45)[:, None]
    mapped = focused_map(vectors, power)
    assert torch.allclose(mapped.norm(dim=1), vectors.norm(dim=1))
    after = torch.atan2(mapped[:, 1], mapped[:, 0])
    towards_axis = (after - angles) * (angles - math.pi / 4).sign()
    assert (towards_axis.abs() < 1e-9).all() if power == 1 else (towards_axis > -1e-9).all()
    assert torch.allclose(after, torch.atan(angles.tan()**power))


def test_geometry_figure_has_a_panel_a_power():
    assert [axis.get_title() for axis in focused_map_figure((1, 3)).axes] == ['p = 1', 'p = 3']
