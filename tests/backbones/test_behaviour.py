"""What mm users expect of any backbone, for every family."""
from __future__ import annotations

import copy
import pickle

import pytest
import torch
from mmengine.registry import MODELS
from torch import nn

import flatten_mm  # noqa: F401  (registers)
from flatten_mm.attention import focused
from flatten_mm.backbones import feed_forward
from flatten_mm.backbones.base import Block

PYRAMID = dict(embed_dims=[8, 16, 20, 32], num_heads=[1, 2, 5, 8], mlp_ratios=[2, 2, 2, 2],
               depths=[1, 2, 2, 1])
SWIN = dict(embed_dims=8, depths=[1, 2, 2, 1], num_heads=[1, 2, 4, 8], mlp_ratio=2.)
CSWIN = dict(embed_dims=8, depths=[1, 2, 2, 1], num_heads=[2, 2, 4, 8], mlp_ratio=2.)
DEIT = dict(embed_dims=16, depths=[1, 2, 2, 1], num_heads=2, mlp_ratio=2., patch_size=16)
SMALL = {
    'FLattenPVT': dict(arch=PYRAMID, pretrain_img_size=64),
    'FLattenPVT-sr': dict(arch=PYRAMID, pretrain_img_size=64, attn_type='LMMS1',
                          la_sr_ratios=(8, 4, 2, 1)),
    'FLattenPVTv2': dict(arch=PYRAMID, pretrain_img_size=64, attn_type='LLSS'),
    'FLattenPVTv2-linear': dict(arch=PYRAMID, pretrain_img_size=64, attn_type='LSLS', linear=True),
    'FLattenSwin': dict(arch=SWIN, pretrain_img_size=64),
    'FLattenSwin-windows': dict(arch=SWIN, pretrain_img_size=64, attn_type='LLLS', window_size=4,
                                softmax_window_size=3, use_abs_pos_embed=True),
    'FLattenCSwin': dict(arch=CSWIN, pretrain_img_size=64, split_size=(1, 2, 2, 2)),
    'FLattenCSwin-stripes': dict(arch=CSWIN, pretrain_img_size=64, split_size=(1, 2, 3, 2),
                                 attn_type='LMMS1', focused_split_size=(3, 2, 2, 2)),
    'FLattenDeiT': dict(arch=DEIT, pretrain_img_size=64, attn_type='LLLS'),
}
NAMES = list(SMALL)


def build(name: str, **kwargs) -> nn.Module:
    """A small model of the family with random weights, tables and scales included."""
    model = MODELS.build(dict(type=name.split('-')[0], **(SMALL[name] | kwargs)))
    model.init_weights()
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if 'positional_encoding' in key or 'scale' in key:
                parameter.normal_(std=0.5)
    return model


def expected_grids(name: str, height: int, width: int) -> list[tuple[int, int]]:
    """Sides of the outputs as each family's docstring documents them."""
    def up(side, stride):
        return -(-side // stride)

    family = name.split('-')[0]
    if family == 'FLattenPVT':
        first = [max(side // 4, 1) for side in (height, width)]
        return [tuple(max(s // 2**i, 1) for s in first) for i in range(4)]
    if family == 'FLattenDeiT':
        return [(up(height, 16), up(width, 16))] * 4
    first = [up(s, 4) if family != 'FLattenCSwin' else max((s + 1) // 4, 1)
             for s in (height, width)]
    return [tuple(up(s, 2**i) for s in first) for i in range(4)]


@pytest.mark.parametrize('scope', ['mmseg', 'mmdet', 'mmpretrain'])
@pytest.mark.parametrize('name', ['FLattenPVT', 'FLattenPVTv2', 'FLattenSwin', 'FLattenCSwin',
                                  'FLattenDeiT'])
def test_every_scope_finds_the_backbone(scope, name) -> None:
    registry = __import__(f'{scope}.registry', fromlist=['MODELS']).MODELS
    assert type(registry.build(dict(type=name, **SMALL[name]))).__name__ == name


@pytest.mark.parametrize('name', NAMES)
@pytest.mark.parametrize('size', [(32, 32), (64, 64), (37, 91), (91, 37), (130, 66), (5, 3)])
def test_any_size(name, size) -> None:
    model = build(name)
    outs = model(torch.randn(2, 3, *size))
    dims = model.embed_dims
    assert [tuple(out.shape) for out in outs] == [
        (2, c, *hw) for c, hw in zip(dims, expected_grids(name, *size))]
    sum(out.square().mean() for out in outs).backward()
    assert all(out.isfinite().all() and out.is_contiguous() for out in outs)


@pytest.mark.parametrize('name', NAMES)
def test_share_of_tokens_at_once_does_not_matter(name, monkeypatch) -> None:
    model, x = build(name).eval(), torch.randn(2, 3, 72, 40)
    with torch.no_grad():
        whole = model(x)
        monkeypatch.setattr(focused, 'ELEMENTS_AT_ONCE', 50)
        monkeypatch.setattr(feed_forward, 'HIDDEN_ELEMENTS_AT_ONCE', 50)
        for ours, theirs in zip(model(x), whole):
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize('name', ['FLattenPVT', 'FLattenPVTv2', 'FLattenSwin', 'FLattenCSwin',
                                  'FLattenDeiT'])
@pytest.mark.parametrize('x, message', [
    (torch.randn(3, 64, 64), r'\(3, 64, 64\).*x\[None\] for one image'),
    (torch.randn(1, 4, 64, 64), '4 channels.*set in_channels=4'),
    (torch.zeros(1, 3, 64, 64, dtype=torch.uint8), 'torch.uint8.*data_preprocessor'),
    (torch.randn(1, 3, 0, 64), 'is empty'), (torch.randn(0, 3, 64, 64), 'is empty'),
    ([torch.randn(3, 64, 64)], 'type list.*a tensor')])
def test_wrong_input_is_named(name, x, message) -> None:
    with pytest.raises(ValueError, match=f'{name}: input of .*{message}'):
        build(name)(x)


@pytest.mark.parametrize('name', NAMES)
def test_what_a_hook_has_seen_is_not_overwritten(name, monkeypatch) -> None:
    monkeypatch.setattr(focused, 'ELEMENTS_AT_ONCE', 50)
    monkeypatch.setattr(feed_forward, 'HIDDEN_ELEMENTS_AT_ONCE', 50)
    model, kept = build(name).eval(), []

    def keep(module: nn.Module, args: tuple, result) -> None:
        kept.extend((t, t.clone()) for t in (*args, result) if isinstance(t, torch.Tensor))

    for module in model.modules():
        if isinstance(module, (Block, nn.Conv2d)) or 'embed' in type(module).__name__.lower():
            module.register_forward_hook(keep)
    image = torch.randn(2, 3, 72, 40)
    with torch.no_grad():
        model(image)
    assert len(kept) > 10
    for tensor, at_the_time in kept:
        assert torch.equal(tensor, at_the_time)


@pytest.mark.filterwarnings('ignore::torch.jit.TracerWarning')
@pytest.mark.parametrize('name', NAMES)
def test_can_be_traced(name) -> None:
    model, x = build(name).eval(), torch.randn(1, 3, 72, 40)
    with torch.no_grad():
        traced = torch.jit.trace(model, x, check_trace=False)
        for ours, theirs in zip(traced(x), model(x)):
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize('name', NAMES)
def test_images_of_a_batch_do_not_mix(name) -> None:
    model = build(name).eval()
    x = torch.randn(3, 3, 50, 70)
    with torch.no_grad():
        together, alone = model(x), model(x[1:2])
    for a, b in zip(together, alone):
        torch.testing.assert_close(a[1:2], b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize('name', NAMES)
def test_no_parameter_without_gradient(name) -> None:
    """DistributedDataParallel with find_unused_parameters=False needs this."""
    for out_indices in [(0, 1, 2, 3), (3,), (0, 2)]:
        model = build(name, out_indices=out_indices)
        outs = model(torch.randn(2, 3, 64, 64))
        assert len(outs) == len(out_indices)
        sum(out.square().mean() for out in outs).backward()
        unused = [key for key, p in model.named_parameters() if p.requires_grad and p.grad is None]
        assert not unused


@pytest.mark.parametrize('name', NAMES)
def test_checkpointing_keeps_gradients(name) -> None:
    plain, saving = build(name, drop_path_rate=0.), build(name, drop_path_rate=0., with_cp=True)
    saving.load_state_dict(plain.state_dict())
    x = torch.randn(2, 3, 48, 80)
    for model in (plain, saving):
        sum(out.square().mean() for out in model.train()(x)).backward()
    for (key, a), b in zip(plain.named_parameters(), saving.parameters()):
        if a.requires_grad:
            torch.testing.assert_close(a.grad, b.grad, msg=key)


@pytest.mark.parametrize('name', NAMES)
@pytest.mark.parametrize('frozen_stages', [-1, 0, 1, 2, 4])
def test_frozen_stages(name, frozen_stages) -> None:
    model = build(name, frozen_stages=frozen_stages, drop_path_rate=0.3)
    assert model.train() is model
    frozen = [key for key, p in model.named_parameters() if not p.requires_grad]
    first = ('patch_embed1.', 'patch_embed.', 'stage1_conv_embed.', 'pos_embed')
    assert any(key.startswith(first) for key in frozen) == (frozen_stages >= 0)
    blocks = [m for m in model.modules() if hasattr(m, 'norm1') and hasattr(m, 'drop_path')]
    depths = model.depths
    for index, block in enumerate(blocks):
        stage = next(s for s in range(4) if index < sum(depths[:s + 1])) + 1
        assert block.training == (stage > frozen_stages)
        assert all(p.requires_grad == (stage > frozen_stages) for p in block.parameters())
    outs = model(torch.randn(2, 3, 64, 64))
    if frozen_stages < 4:
        outs[-1].sum().backward()
    assert model.eval() is model and not any(m.training for m in model.modules())


@pytest.mark.parametrize('name', NAMES)
def test_copies_and_round_trips(name) -> None:
    model = build(name).eval()
    x = torch.randn(1, 3, 40, 72)
    with torch.no_grad():
        expected = model(x)
        fresh = build(name).eval()
        fresh.load_state_dict(model.state_dict(), strict=True)
        for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model)), fresh,
                     copy.deepcopy(model).train().eval()):
            for a, b in zip(twin(x), expected):
                assert torch.equal(a, b)


@pytest.mark.parametrize('name', NAMES)
def test_resized_tables_follow_the_weights(name) -> None:
    """Outputs at a size that resizes tables are never those of earlier weights."""
    model, other = build(name).eval(), build(name).eval()
    x = torch.randn(1, 3, 96, 32)
    with torch.no_grad():
        first = model(x)
        assert all(torch.equal(a, b) for a, b in zip(model(x), first))
        model.load_state_dict(other.state_dict())
        for a, b in zip(model(x), other(x)):
            assert torch.equal(a, b)
        model.double()
        for a, b in zip(model(x.double()), other.double()(x.double())):
            assert torch.equal(a, b)
        model(x.double())
        for p in model.parameters():
            p.data.mul_(0.5)  # leaves no trace in the tensor's version ...
        model.train().eval()  # ... so a change of mode forgets as well
        twin = copy.deepcopy(model)
        for a, b in zip(model(x.double()), twin(x.double())):
            assert torch.equal(a, b)


@pytest.mark.parametrize('name', NAMES)
def test_in_channels(name) -> None:
    assert build(name, in_channels=5)(torch.randn(1, 5, 64, 64))[0].shape[0] == 1


def test_deit_pyramid() -> None:
    outs = build('FLattenDeiT', pyramid=True)(torch.randn(1, 3, 64, 96))
    assert [tuple(o.shape[2:]) for o in outs] == [(16, 24), (8, 12), (4, 6), (2, 3)]


BAD = [
    (dict(arch='huge'), "unknown arch 'huge'"),
    (dict(arch=dict(depths=[1])), 'needs exactly the keys'),
    (dict(attn_type='LLS'), "attn_type='LLS'; expected 4 letters"),
    (dict(attn_type='LLSX'), "attn_type='LLSX'"),
    (dict(attn_type='LLMS'), 'M stages need it'),
    (dict(attn_type='LLSS2'), 'goes with M stages'),
    (dict(out_indices=(0, 4)), r'out_indices=\(0, 4\); expected ascending .* from 0 to 3'),
    (dict(out_indices=(2, 1)), 'ascending'),
    (dict(out_indices=()), 'out_indices'),
    (dict(kernel_size=4), 'kernel_size=4'),
    (dict(focusing_factor=0), 'focusing_factor=0'),
    (dict(frozen_stages=5), 'frozen_stages=5; expected -1 to 4'),
    (dict(drop_path_rate=1.), 'drop_path_rate=1.0'),
    (dict(in_channels=0), 'in_channels=0'),
]


@pytest.mark.parametrize('name', ['FLattenPVT', 'FLattenPVTv2', 'FLattenSwin', 'FLattenCSwin',
                                  'FLattenDeiT'])
@pytest.mark.parametrize('kwargs, message', BAD)
def test_wrong_arguments_are_named(name, kwargs, message) -> None:
    with pytest.raises(ValueError, match=f'{name}.*{message}'):
        MODELS.get(name)(**(SMALL[name] | kwargs))


@pytest.mark.parametrize('name, kwargs, message', [
    ('FLattenPVT', dict(arch=PYRAMID | dict(num_heads=[1, 3, 5, 8])), 'num_heads=3 of stage 1'),
    ('FLattenSwin', dict(arch=SWIN | dict(num_heads=[3, 2, 4, 8])), 'num_heads=3 of stage 0 does'),
    ('FLattenCSwin', dict(arch=CSWIN | dict(num_heads=[1, 2, 4, 8]), attn_type='SSSS'),
     'num_heads=1 of stage 0 cannot be shared by two branches'),
    ('FLattenPVT', dict(sr_ratios=(8, 4)), r'sr_ratios=\(8, 4\)'),
    ('FLattenSwin', dict(window_size=0), 'window_size=0'),
    ('FLattenCSwin', dict(split_size=(1, 2)), r'split_size=\(1, 2\)'),
])
def test_wrong_family_arguments_are_named(name, kwargs, message) -> None:
    with pytest.raises(ValueError, match=message):
        MODELS.get(name)(**(SMALL[name] | kwargs))


@pytest.mark.parametrize('name', NAMES)
def test_starting_weights(name) -> None:
    model = MODELS.build(dict(type=name.split('-')[0], **SMALL[name]))
    model.init_weights()
    for key, p in model.named_parameters():
        if key.endswith(('positional_encoding', 'scale')):
            assert not p.any(), key
        elif 'pos_embed' in key or 'relative_position_bias_table' in key:
            assert 0.01 < p.std() < 0.03, key
    for module in model.modules():
        if isinstance(module, nn.Linear) and module.weight.numel() > 500:
            assert 0.015 < module.weight.std() < 0.025
            assert module.bias is None or not module.bias.any()


@pytest.mark.skipif(not hasattr(torch.compiler, 'set_stance'), reason='torch before 2.6')
@pytest.mark.parametrize('name, training', [
    ('FLattenPVT', False), ('FLattenPVT', True), ('FLattenPVTv2', False), ('FLattenSwin', False),
    ('FLattenCSwin', False), ('FLattenDeiT', False)])
def test_one_graph_under_compile(name, training) -> None:
    """fullgraph raises where Dynamo would break the graph; AOT is what Inductor starts with."""
    torch._dynamo.reset()
    model = build(name).eval()
    compiled = torch.compile(model, fullgraph=True, backend='aot_eager')
    x = torch.randn(1, 3, 64, 96)
    with torch.set_grad_enabled(training):
        for a, b in zip(compiled(x), model(x)):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_a_checkpoint_alone_is_enough_to_start_from_it(tmp_path) -> None:
    model = build('FLattenPVT')
    path = tmp_path / 'weights.pth'
    torch.save({'model': model.state_dict()}, path)
    for init_cfg in (dict(checkpoint=str(path)), dict(type='Pretrained', checkpoint=str(path))):
        other = MODELS.build(dict(type='FLattenPVT', init_cfg=init_cfg, **SMALL['FLattenPVT']))
        other.init_weights()
        for a, b in zip(other.parameters(), model.parameters()):
            assert torch.equal(a, b)
