"""``attention`` and ``rank_restoration``: every family takes every word, and the ablations."""
from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import nn

from flatten_mm import backbones
from flatten_mm.analysis import attention_sites, collect, equivalent_matrix
from flatten_mm.analysis.complexity import linear_products
from flatten_mm.attention import FocusedAttention, SoftmaxAttention, VariantAttention
from flatten_mm.backbones.base import ATTENTIONS
from flatten_mm.checkpoint import CheckpointError, load_backbone

PYRAMID = dict(embed_dims=[8, 16, 20, 32], num_heads=[1, 2, 5, 8], mlp_ratios=[2, 2, 2, 2],
               depths=[1, 2, 1, 1])
SWIN = dict(embed_dims=8, depths=[1, 2, 1, 1], num_heads=[2, 2, 4, 8], mlp_ratio=2.)
SMALL = {
    'FLattenPVT': dict(arch=PYRAMID, attn_type='LMSL1'),
    'FLattenPVT-sr': dict(arch=PYRAMID, la_sr_ratios=(8, 4, 2, 1)),
    'FLattenPVTv2': dict(arch=PYRAMID),
    'FLattenPVTv2-linear': dict(arch=PYRAMID, linear=True),
    'FLattenSwin': dict(arch=SWIN),
    'FLattenSwin-windows': dict(arch=SWIN, attn_type='LLLS', window_size=5),
    'FLattenCSwin': dict(arch=SWIN),
    'FLattenCSwin-stripes': dict(arch=SWIN, attn_type='LMMS1', split_size=(1, 2, 3, 2),
                                 focused_split_size=(3, 2, 2, 2)),
    'FLattenDeiT': dict(arch=dict(embed_dims=16, depths=[1, 1, 1, 1], num_heads=2, mlp_ratio=2.,
                                  patch_size=16)),
}
FAMILIES = [name for name in SMALL if '-' not in name]
ABLATIONS = [dict(focusing_factor=1), dict(rank_restoration=False),
             dict(focusing_factor=1, rank_restoration=False)]
CHOICES = [dict(attention=word) for word in ATTENTIONS] + ABLATIONS

choices = pytest.mark.parametrize('choice', CHOICES, ids=lambda choice: ','.join(
    f'{key}={value}' for key, value in choice.items()))


def build(name: str, **kwargs) -> nn.Module:
    model = getattr(backbones, name.split('-')[0])(
        **{**dict(pretrain_img_size=64, drop_path_rate=0.), **SMALL[name], **kwargs})
    model.init_weights()
    return model


def cores(model: nn.Module, kind: type) -> list[nn.Module]:
    return [module for module in model.modules() if isinstance(module, kind)]


@choices
@pytest.mark.parametrize('name', SMALL)
def test_trains_at_any_size(name, choice) -> None:
    """On a map that is no multiple of anything: finite, all parameters with gradients, and again
    under autocast, from a copy, and on a black image."""
    model = build(name, **choice)
    image = torch.randn(2, 3, 75, 91)
    outs = model(image)
    sum(out.square().mean() for out in outs).backward()
    assert all(out.isfinite().all() for out in outs)
    for key, value in model.named_parameters():
        if value.requires_grad:
            assert value.grad is not None and value.grad.isfinite().all(), key
    model.eval()
    with torch.no_grad():
        outs = model(image)
        for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
            assert all(torch.equal(a, b) for a, b in zip(twin(image), outs))
        assert all(out.isfinite().all() for out in model(torch.zeros(1, 3, 64, 64)))
        with torch.autocast('cpu', dtype=torch.bfloat16):
            assert all(out.isfinite().all() for out in model(image))
        for alone, out in zip(model(image[1:]), outs):
            torch.testing.assert_close(alone, out[1:], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize('name', SMALL)
def test_focused_is_what_it_is_without_the_word(name) -> None:
    plain, named = build(name), build(name, attention='focused', rank_restoration=True)
    assert list(plain.state_dict()) == list(named.state_dict())
    assert cores(plain, FocusedAttention) and not cores(plain, VariantAttention)


@pytest.mark.parametrize('name', SMALL)
def test_softmax_is_attn_type_of_s(name) -> None:
    word, letters = build(name, attention='softmax'), build(name, attn_type='SSSS')
    letters.load_state_dict(word.state_dict(), strict=True)
    assert not cores(word, (FocusedAttention, VariantAttention))
    image = torch.randn(1, 3, 64, 96)
    with torch.no_grad():
        for a, b in zip(word.eval()(image), letters.eval()(image)):
            assert torch.equal(a, b)


@pytest.mark.parametrize('word', [word for word in ATTENTIONS if word not in (
    'focused', 'softmax')])
@pytest.mark.parametrize('name', SMALL)
def test_the_linear_blocks_have_it_and_no_other(name, word) -> None:
    focused, other = build(name), build(name, attention=word)
    replaced = cores(other, VariantAttention)
    assert not cores(other, FocusedAttention) and {m.attention for m in replaced} == {word}
    assert len(replaced) == len(cores(focused, FocusedAttention))
    assert len(cores(other, SoftmaxAttention)) == len(cores(focused, SoftmaxAttention))
    added = set(other.state_dict()) - set(focused.state_dict())
    gone = set(focused.state_dict()) - set(other.state_dict())
    ends = {'scale', 'positional_encoding'} | (
        set() if word in ('angular', 'enhanced') else {'weight', 'bias'})
    assert not added and {key.rpartition('.')[2] for key in gone} == ends
    assert all('.dwc.' in key for key in gone if key.endswith(('weight', 'bias')))


def test_words_and_ablations_differ() -> None:
    """Same shared weights, ten attentions, ten outputs."""
    source = build('FLattenDeiT')
    with torch.no_grad():
        for value in source.parameters():
            value.normal_(std=0.5)
    image, found = torch.randn(1, 3, 64, 64), []
    for choice in CHOICES:
        model = build('FLattenDeiT', **choice).eval()
        model.load_state_dict(source.state_dict(), strict=False)
        with torch.no_grad():
            found.append(model(image)[-1])
    assert len(found) == 10
    for i, a in enumerate(found):
        assert all(not torch.allclose(a, b, rtol=1e-3, atol=1e-4) for b in found[:i]), CHOICES[i]


@pytest.mark.parametrize('name', FAMILIES)
def test_unknown_word_names_the_choices(name) -> None:
    with pytest.raises(ValueError, match=f"{name}: unknown attention 'performer'; expected one of "
                                         'focused, linear, efficient, hydra, angular, enhanced, '
                                         'softmax$'):
        build(name, attention='performer')


@pytest.mark.parametrize('attention', ['focused', 'angular', 'enhanced'])
def test_without_rank_restoration_there_is_no_convolution(attention) -> None:
    keys = build('FLattenSwin', attention=attention, rank_restoration=False).state_dict()
    assert not any('.dwc.' in key for key in keys)
    assert any('.dwc.' in key for key in build('FLattenSwin', attention=attention).state_dict())


# ---- files of one attention into a model of another


@pytest.mark.parametrize('here', CHOICES, ids=str)
@pytest.mark.parametrize('there', [dict(), dict(attention='hydra'), dict(attention='enhanced'),
                                   dict(rank_restoration=False)], ids=str)
def test_warm_start(there, here, tmp_path) -> None:
    """What both have is loaded, the rest is fresh or left over, and nothing is an error."""
    source, model = build('FLattenSwin', **there), build('FLattenSwin', **here)
    path = tmp_path / 'other.pth'
    torch.save({'model': source.state_dict()}, path)
    if (there, here) == (dict(attention='hydra'), dict(attention='softmax')):
        # No name in the file says that its blocks are of another attention than Swin's own.
        with pytest.raises(CheckpointError, match='The file lacks: .*relative_position_bias_table'):
            load_backbone(model, path)
        return
    report = load_backbone(model, path)
    theirs, ours = source.state_dict(), model.state_dict()
    assert set(report.loaded) == set(theirs) & set(ours)
    assert set(report.fresh) == set(ours) - set(theirs) and not report.missing
    assert set(report.left_over) == set(theirs) - set(ours)
    assert all(torch.equal(ours[key], theirs[key]) for key in report.loaded)


@pytest.mark.parametrize('lost', ['dwc.weight', 'scale', 'positional_encoding'])
@pytest.mark.parametrize('here', [dict(), dict(attention='enhanced'),
                                  dict(rank_restoration=False)], ids=str)
def test_a_part_of_focused_attention_is_no_attention(lost, here, tmp_path) -> None:
    state = build('FLattenSwin').state_dict()
    del state[f'layers.1.blocks.1.attn.{lost}']
    path = tmp_path / 'damaged.pth'
    torch.save({'model': state}, path)
    with pytest.raises(CheckpointError, match=r'layers\.1\.blocks\.1\.attn\.'):
        load_backbone(build('FLattenSwin', **here), path)


# ---- analysis


def test_analysis_knows_focused_attention_without_its_convolution() -> None:
    """Rows of the matrix times V are the output of the module."""
    model = build('FLattenDeiT', rank_restoration=False, focusing_factor=1).eval()
    attn = model.blocks[0].attn
    outs = []
    hook = attn.proj.register_forward_pre_hook(lambda module, args: outs.append(args[0]))
    found = collect(model, torch.randn(1, 3, 64, 64),
                    lambda call: (equivalent_matrix(call, 1), call.v), stage=0)
    hook.remove()
    (matrix, v), = found.values()
    torch.testing.assert_close(matrix @ v[0, :, 8:].double(), outs[0][0, :, 8:].double(),
                               rtol=1e-4, atol=1e-5)


def test_analysis_says_what_it_does_not_observe() -> None:
    with pytest.raises(ValueError, match="FLattenDeiT with attention='hydra' has nothing to "
                                         'observe there; expected blocks of focused or softmax'):
        attention_sites(build('FLattenDeiT', attention='hydra'))
    swin = build('FLattenSwin', attention='hydra')
    assert {site.stage for site in attention_sites(swin)} == {2, 3}
    with pytest.raises(ValueError, match="attention='hydra' has nothing"):
        attention_sites(swin, stage=1)


# ---- cost


@pytest.mark.parametrize('word, macs', [
    ('linear', lambda N, M, C, d, ks: N * C * d + M * C * d + N * C),
    ('efficient', lambda N, M, C, d, ks: N * C * d + M * C * d),
    ('hydra', lambda N, M, C, d, ks: N * C + M * C),
    ('angular', lambda N, M, C, d, ks: N * C * d + M * C * d + N * C + ks**2 * N * C),
    ('enhanced', lambda N, M, C, d, ks: N * C * d + M * C * d + N * C + ks**2 * N * C)])
@pytest.mark.parametrize('keys', [192, 48])
def test_costs_its_formula(word, macs, keys) -> None:
    """What is counted is the formula, and what is executed is that (hydra has no products)."""
    from torch.utils.flop_counter import FlopCounterMode

    def count(function) -> int:
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            function()
        return counter.get_total_flops() // 2

    N, M, C, heads = 192, keys, 64, 2
    core = VariantAttention(C, heads, (16, 12), word)
    q, k, v = torch.randn(1, N, C), torch.randn(1, M, C), torch.randn(1, M, C)
    grids = (16, 12), (M // 12, 12)
    counted = count(lambda: linear_products(core, q, k, v, *grids))
    assert counted == macs(N, M, C, C // heads, 5)
    if word != 'hydra':
        assert count(lambda: core.attend(q, k, v, *grids)) == pytest.approx(counted, rel=0.02)
