"""Rows of attention and equivalent matrices are what the modules really apply to V."""
from __future__ import annotations

import oracle
import pytest
import torch
import torch.nn.functional as F

from flatten_mm import (
    FLattenCSwin,
    FLattenDeiT,
    FLattenPVT,
    FLattenPVTv2,
    FLattenSwin,
)
from flatten_mm.analysis import (
    attention_rows,
    attention_sites,
    collect,
    equivalent_matrix,
    local_bias,
    observe,
)
from flatten_mm.analysis.attention import ATTENTIONS, depthwise_rows, interpolation_adjoint

PVT_ARCH = dict(embed_dims=[16, 32, 40, 32], num_heads=[1, 2, 5, 4], mlp_ratios=[1, 1, 1, 1],
                depths=[1, 1, 1, 1])
SWIN_ARCH = dict(embed_dims=16, depths=[2, 2, 2, 2], num_heads=[2, 4, 4, 4], mlp_ratio=1.)
DEIT_ARCH = dict(embed_dims=48, depths=[1, 1, 1, 1], num_heads=3, mlp_ratio=1., patch_size=16)
# Windows and stripes that cut the map with padding and shift, reductions that leave a rest.
MODELS = {
    'pvt': (FLattenPVT, PVT_ARCH, dict(attn_type='LLSS', focusing_factor=4, kernel_size=3)),
    'pvt reduced': (FLattenPVT, PVT_ARCH, dict(attn_type='LSLS', la_sr_ratios=(2, 1, 2, 1))),
    'pvt_v2 linear': (FLattenPVTv2, PVT_ARCH, dict(attn_type='LLSS', linear=True)),
    'swin': (FLattenSwin, SWIN_ARCH, dict(attn_type='LLSS', softmax_window_size=4)),
    'swin windows': (FLattenSwin, SWIN_ARCH, dict(
        attn_type='LMMS1', window_size=5, softmax_window_size=3)),
    'cswin': (FLattenCSwin, SWIN_ARCH, dict(attn_type='LLSS', split_size=(1, 2, 2, 7))),
    'cswin stripes': (FLattenCSwin, SWIN_ARCH, dict(
        attn_type='LMMS1', split_size=(1, 2, 2, 7), focused_split_size=(3, 2, 2, 2))),
    'deit': (FLattenDeiT, DEIT_ARCH, dict(attn_type='LSLL')),
}


def make(name: str) -> torch.nn.Module:
    """A model with random weights everywhere, so that no table or bias is zero."""
    family, arch, options = MODELS[name]
    model = family(arch, pretrain_img_size=64, **options).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.15)
    return model


def before_projection(model, image):
    """Name of a site -> (B, H * W, C) that its module hands to the output projection."""
    found, hooks = {}, []
    for site in attention_sites(model):
        projection = getattr(site.module, 'proj', None) or site.holder.proj

        def keep(module, args, site=site):
            branches = sum(s.holder is site.holder for s in attention_sites(model))
            found[site.name] = args[0].chunk(branches, dim=-1)[site.branch]

        hooks.append(projection.register_forward_pre_hook(keep))
    with torch.no_grad():
        model(image)
    for hook in hooks:
        hook.remove()
    return found


@pytest.mark.parametrize('name', MODELS)
def test_rows_times_v_are_the_module_output(name):
    """Of every position, in a channel of every head, after windows are put back in place."""
    model = make(name)

    def look(call):
        queries = torch.arange(call.map_hw[0] * call.map_hw[1])
        width = call.v.shape[-1] // call.site.num_heads
        v = (call.v if call.is_reduced else call.windows.merge(call.v))[1].double()
        found = {}
        for channel in (1, width - 1):
            own = range(channel, v.shape[-1], width)  # this channel of every head
            rows = attention_rows(call, queries, local=('dwc', 'lepe'), channel=channel, image=1,
                                  dtype=torch.float64)
            bias = local_bias(call.site).expand(v.shape[-1])
            found[own] = torch.einsum('qhk,kh->qh', rows, v[:, own]) + bias[own]
        return found

    image = torch.randn(2, 3, 36, 52)
    expected = before_projection(model, image)
    for site, channels in collect(model, image, look).items():
        for own, got in channels.items():
            error = (got - expected[site][1][:, own]).abs().max() / expected[site].abs().max()
            assert error < 1e-5, (site, own, float(error))


@pytest.mark.parametrize('attention', ATTENTIONS)
@pytest.mark.parametrize('name', ['pvt reduced', 'swin windows', 'cswin stripes'])
def test_every_attention_is_a_distribution_within_the_window(name, attention):
    model = make(name)

    def look(call):
        queries = [0, call.map_hw[0] * call.map_hw[1] - 1]
        rows = attention_rows(call, queries, attention)
        assert rows.shape == (2, call.site.num_heads, call.row_hw[0] * call.row_hw[1])
        assert (rows >= 0).all()
        assert (rows > 0).sum(-1).max() <= call.k.shape[1]
        # The 1e-6 in the normaliser takes much from a query of which the ReLU left nothing.
        sums = rows.sum(-1)
        assert (sums <= 1 + 1e-5).all() and (attention != 'softmax' or (sums > 1 - 1e-5).all())
        return float(sums.max())

    sums = collect(model, torch.randn(1, 3, 36, 52), look).values()
    assert max(sums) == pytest.approx(1, abs=1e-3)


def test_focused_rows_are_the_paper_equations():
    model = make('deit')
    site = attention_sites(model)[0]

    def look(call):
        mine = equivalent_matrix(call, 1, local=())
        q, k, scale, encoding = (t.double() for t in (
            call.q, call.k, site.module.scale, site.module.positional_encoding))
        return mine, oracle.attention_matrix(q, k, 3, scale, encoding, 3)[0, 1]

    mine, plain = collect(model, torch.randn(1, 3, 64, 64), look, stage=0)[site.name]
    assert torch.allclose(mine, plain, atol=1e-9)


def test_rivals_come_from_the_same_queries_and_keys():
    model = make('deit')
    module = attention_sites(model)[0].module

    def look(call):
        q = call.q.double().view(-1, 3, 16).transpose(0, 1)
        k = (call.k + module.positional_encoding).double().view(-1, 3, 16).transpose(0, 1)
        softmax = (q @ k.transpose(1, 2) / 4).softmax(-1)
        scale = F.softplus(module.scale.double()).view(3, 1, 16)
        linear = ((F.relu(q) + 1e-6) / scale) @ ((F.relu(k) + 1e-6) / scale).transpose(1, 2)
        linear = linear / 16 / (linear.mean(-1, keepdim=True) + 1e-6)
        queries = list(range(16))
        rows = {name: attention_rows(call, queries, name, dtype=torch.float64).transpose(0, 1)
                for name in ('softmax', 'linear')}
        assert torch.allclose(rows['softmax'], softmax, atol=1e-12)
        assert torch.allclose(rows['linear'], linear, atol=1e-12)

    with torch.no_grad():
        collect(model, torch.randn(1, 3, 64, 64), look, stage=0)


@pytest.mark.parametrize('hw', [(5, 7), (3, 2), (1, 6)])
def test_depthwise_matrix_at_borders_and_on_rectangles(hw):
    kernels = torch.randn(2, 5, 5, dtype=torch.float64)
    rows = depthwise_rows(kernels, hw, torch.arange(hw[0] * hw[1]))
    for i, kernel in enumerate(kernels):
        assert torch.equal(rows[:, i], oracle.depthwise_matrix(kernel, hw))


@pytest.mark.parametrize('tokens, values', [(12, 4), (10, 3), (7, 1), (15, 14)])
def test_interpolation_is_torchs(tokens, values):
    rows, v = torch.randn(5, 2, tokens).double(), torch.randn(values).double()
    long = F.interpolate(v.view(1, 1, -1), size=tokens, mode='linear').flatten()
    assert torch.allclose(interpolation_adjoint(rows, values) @ v, rows @ long)


def test_mean_kernel_is_the_mean_over_channels():
    def look(call):
        mean = attention_rows(call, [3], local=('dwc', 'lepe'), dtype=torch.float64)
        channels = call.v.shape[-1] // call.site.num_heads
        each = [attention_rows(call, [3], local=('dwc', 'lepe'), channel=i, dtype=torch.float64)
                for i in range(channels)]
        assert torch.allclose(mean, torch.stack(each).mean(0))

    collect(make('cswin'), torch.randn(1, 3, 64, 64), look, stage=0)


def test_observing_leaves_no_trace_and_changes_nothing():
    model = make('cswin stripes')
    image = torch.randn(1, 3, 64, 64)
    state = [dict(vars(m)) for m in model.modules()]
    with torch.no_grad():
        before = model(image)
        with observe(model, lambda call: None) as sites:
            during = model(image)
    assert len(sites) == 3 * 2 * 2 + 2  # two branches in the three stages that have stripes
    assert all(torch.equal(a, b) for a, b in zip(before, during))
    assert [dict(vars(m)).keys() for m in model.modules()] == [s.keys() for s in state]
    assert all(not m._forward_pre_hooks for m in model.modules())


def test_observers_nest_and_survive_errors():
    model, seen = make('deit'), []
    image = torch.randn(1, 3, 32, 32)
    with observe(model, lambda call: seen.append('outer')):
        with pytest.raises(RuntimeError, match='stop'), observe(model, _stop):
            model(image)
        seen.clear()
        model(image)
    assert seen == ['outer'] * 4
    assert all('attend' not in vars(m) for m in model.modules())


def _stop(call):
    raise RuntimeError('stop')


def test_gradients_are_the_same_while_observed():
    model, image = make('swin'), torch.randn(1, 3, 32, 32)
    grads = []
    for look in (None, lambda call: attention_rows(call, [0])):
        model.zero_grad()
        if look is None:
            sum(out.sum() for out in model(image)).backward()
        else:
            with observe(model, look):
                sum(out.sum() for out in model(image)).backward()
        grads.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
    assert all(torch.equal(a, b) for a, b in zip(*grads))


def test_rows_of_few_queries_need_little_memory():
    """No tensor of queries x keys is made: 64x64 cells would take 67 MB."""
    model = FLattenPVT(PVT_ARCH).eval()
    largest = []

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            if isinstance(out, torch.Tensor):
                largest.append(out.numel())
            return out

    def look(call):
        with Watch():
            attention_rows(call, [0, 17, 4000], local=('dwc',))

    collect(model, torch.randn(1, 3, 256, 256), look, stage=0)
    assert max(largest) <= 3 * 4096 * 25


@pytest.mark.parametrize('arguments, message', [
    (dict(queries=[99]), 'not all on the 4x4 map; expected 0 to 15'),
    (dict(queries=[0], attention='cosine'), "unknown attention 'cosine'; expected one of focused"),
    (dict(queries=[0], local=('conv',)), 'unknown local parts'),
    (dict(queries=[0], local=('dwc',), channel=16), 'channels 0 to 15'),
])
def test_errors_name_what_is_expected(arguments, message):
    with pytest.raises(ValueError, match=message):
        collect(make('deit'), torch.randn(1, 3, 64, 64),
                lambda call: attention_rows(call, **arguments), stage=0)


def test_sizes_heads_and_places_are_checked():
    model, image = make('deit'), torch.randn(1, 3, 64, 64)
    for options, message in ((dict(head=3), 'no head 3; expected 0 to 2'),
                             (dict(head=0, window=1), 'no window 1'),
                             (dict(head=0, max_tokens=15), r'16 queries \(4x4\).*limit of 15')):
        with pytest.raises(ValueError, match=message):
            collect(model, image, lambda call, options=options: equivalent_matrix(call, **options),
                    stage=0)
    with pytest.raises(ValueError, match=r'no stage 4; its stages, counted from 0, are 0 \(1 bl'):
        attention_sites(model, stage=4)
    with pytest.raises(ValueError, match='Linear holds no FLatten backbone'):
        attention_sites(torch.nn.Linear(1, 1))
