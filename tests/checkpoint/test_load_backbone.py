"""Loading into a backbone: prefixes, position tables, kinds of attention, and refusals."""
from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch
from torch import nn

from flatten_mm.attention.grid import resize_grid_table
from flatten_mm.backbones import (
    FLattenCSwin,
    FLattenDeiT,
    FLattenPVT,
    FLattenPVTv2,
    FLattenSwin,
)
from flatten_mm.checkpoint import CheckpointError, load_backbone
from flatten_mm.checkpoint.load import find_prefix

PVT_ARCH = dict(embed_dims=[8, 16, 24, 32], num_heads=[1, 2, 2, 4], mlp_ratios=[2, 2, 2, 2],
                depths=[1, 1, 2, 1])
SWIN_ARCH = dict(embed_dims=12, depths=[1, 2, 2, 1], num_heads=[1, 2, 3, 6], mlp_ratio=2.)
CSWIN_ARCH = dict(embed_dims=16, depths=[1, 1, 2, 1], num_heads=[2, 2, 4, 8], mlp_ratio=2.)
DEIT_ARCH = dict(embed_dims=16, depths=[1, 1, 1, 1], num_heads=2, mlp_ratio=2., patch_size=16)
SIZE = 112


def pvt(**kwargs) -> FLattenPVT:
    return FLattenPVT(**{**dict(arch=PVT_ARCH, pretrain_img_size=SIZE), **kwargs})


def pvt_v2(**kwargs) -> FLattenPVTv2:
    return FLattenPVTv2(**{**dict(arch=PVT_ARCH, pretrain_img_size=SIZE), **kwargs})


def swin(**kwargs) -> FLattenSwin:
    return FLattenSwin(**{**dict(arch=SWIN_ARCH, pretrain_img_size=SIZE), **kwargs})


def cswin(**kwargs) -> FLattenCSwin:
    return FLattenCSwin(**{**dict(arch=CSWIN_ARCH, pretrain_img_size=SIZE, split_size=(1, 2, 3, 3)),
                           **kwargs})


def deit(**kwargs) -> FLattenDeiT:
    return FLattenDeiT(**{**dict(arch=DEIT_ARCH, pretrain_img_size=SIZE), **kwargs})


FAMILIES = dict(pvt=pvt, pvt_v2=pvt_v2, swin=swin, cswin=cswin, deit=deit)


def released(model: nn.Module, classes: int = 10) -> dict[str, torch.Tensor]:
    """What the authors' script would save for this model: random weights, a head, no norms of
    ours."""
    state = {name: torch.randn(t.shape) for name, t in model.state_dict().items()
             if not name.startswith(('norm0.', 'norm1.', 'norm2.')) or isinstance(
                 model, FLattenPVTv2)}
    width = list(state.values())[-1].shape[0]
    return {**state, 'head.weight': torch.randn(classes, width), 'head.bias': torch.randn(classes)}


def save(tmp_path: Path, content: object) -> Path:
    path = tmp_path / 'file.pth'
    torch.save(content, path)
    return path


def assert_loaded(model: nn.Module, state: dict, names: list[str]) -> None:
    ours = model.state_dict()
    for name in names:
        assert torch.equal(ours[name], state[name]), name


@pytest.mark.parametrize('prefix', ['', 'backbone.', 'module.', 'module.backbone.', 'encoder.',
                                    'a.b.c.'])
@pytest.mark.parametrize('family', FAMILIES)
def test_prefixes(tmp_path, family, prefix):
    model = FAMILIES[family]()
    state = released(model)
    content = {prefix + k: v for k, v in state.items()}
    if prefix.endswith('backbone.'):
        content['module.head.norm.weight'] = content['decode_head.weight'] = torch.zeros(3)
    report = load_backbone(model, save(tmp_path, {'state_dict': content}))
    assert report.prefix == prefix
    assert_loaded(model, state, report.loaded)
    assert {*report.loaded, *report.missing} == set(model.state_dict())
    norms = {'swin': 6, 'cswin': 6}.get(family, 0)  # norm0 to norm2
    assert len(report.missing) == norms
    assert {'head.weight', 'head.bias'} <= set(report.left_over)
    assert not report.fresh and not report.resized and not report.merged
    if prefix.endswith('backbone.'):
        assert 'decode_head.weight' in report.left_over


def test_prefix_is_chosen_by_shapes_before_names():
    target = {'a.weight': torch.zeros(2), 'b.weight': torch.zeros(3)}
    source = {'small.a.weight': torch.zeros(1), 'small.b.weight': torch.zeros(1),
              'teacher.net.a.weight': torch.zeros(2), 'teacher.net.b.weight': torch.zeros(3)}
    assert find_prefix(source, target) == 'teacher.net.'
    assert find_prefix({'other': torch.zeros(1)}, target) == ''
    # Of equals the shorter: the model before a copy of it inside a larger one.
    copies = {f'{p}{k}': v for p in ('copy.', '', 'a.b.') for k, v in target.items()}
    assert find_prefix(copies, target) == ''


def test_report_and_log(tmp_path, caplog):
    model = swin(pretrain_img_size=224)
    state = released(swin())
    state['layers.2.blocks.0.attn_mask'] = torch.zeros(4, 49, 49)
    state['layers.2.blocks.0.attn.relative_position_index'] = torch.zeros(49, 49).long()
    logger = logging.getLogger('report')
    with caplog.at_level(logging.INFO, 'report'):
        report = load_backbone(model, save(tmp_path, {'model': state}), logger=logger)
    assert [r.levelname for r in caplog.records] == ['INFO']
    text = caplog.records[0].getMessage()
    assert text == report.summary()
    assert "FLattenSwin from " in text and "file.pth (entry 'model')" in text
    assert 'the file: FLatten-Swin of no released size (width 12, depths 1, 2, 2, 1' in text
    assert f'loaded: {len(report.loaded)}\n' in text
    assert ('resized (from -> to): 4: layers.0.blocks.0.attn.positional_encoding 28x28 -> 56x56, '
            in text)
    assert 'missing (in the model, not in the file): 6: norm0.weight, norm0.bias' in text
    assert '(+2)' in text
    assert 'left over (in the file, not in the model): 2: head.weight, head.bias' in text
    assert 'recomputed by the model: 2: layers.2.blocks.0.attn_mask' in text
    assert len(report.loaded) + 6 == len(model.state_dict())


def test_something_unusual_missing_is_a_warning(tmp_path, caplog):
    state = released(swin())
    logger = logging.getLogger('report')
    with caplog.at_level(logging.INFO, 'report'):
        load_backbone(swin(use_abs_pos_embed=True), save(tmp_path, state), logger=logger)
    assert [r.levelname for r in caplog.records] == ['WARNING']
    assert '7: absolute_pos_embed' in caplog.text


def test_init_cfg(tmp_path):
    state = released(pvt())
    path = save(tmp_path, {'model': state})
    model = pvt(init_cfg=dict(type='Pretrained', checkpoint=str(path)))
    model.init_weights()
    assert_loaded(model, state, list(model.state_dict()))


# ---- position tables


def test_tables_are_resized_each_in_its_way(tmp_path):
    state = released(pvt())
    model = pvt(pretrain_img_size=(64, 160))
    report = load_backbone(model, save(tmp_path, state))
    ours = model.state_dict()
    for i, side in enumerate((28, 14, 7, 3), start=1):
        grid = (64 // 2**(i + 1), 160 // 2**(i + 1))
        for name, mode in ((f'pos_embed{i}', 'bilinear'),
                           (f'block{i}.0.attn.positional_encoding', 'bicubic')):
            assert report.resized[name] == ((side, side), grid)
            assert torch.equal(
                ours[name], resize_grid_table(state[name], (side, side), grid, mode))


def test_swin_tables(tmp_path):
    state = released(swin(use_abs_pos_embed=True, attn_type='LLSS'))
    model = swin(use_abs_pos_embed=True, pretrain_img_size=384, softmax_window_size=12)
    report = load_backbone(model, save(tmp_path, state))
    ours = model.state_dict()
    name = 'layers.2.blocks.0.attn.relative_position_bias_table'
    assert report.resized[name] == ((13, 13), (23, 23))
    table = resize_grid_table(state[name][None], (13, 13), (23, 23), 'bicubic')[0]
    assert torch.equal(ours[name], table)
    assert report.resized['absolute_pos_embed'] == ((28, 28), (96, 96))
    assert torch.equal(ours['absolute_pos_embed'], resize_grid_table(
        state['absolute_pos_embed'], (28, 28), (96, 96), 'bicubic'))


def test_table_of_a_square_number_of_rows_on_the_models_rectangle(tmp_path):
    """64x256 has as many cells as 128x128: a file of that very model must load unchanged."""
    model = pvt(pretrain_img_size=(64, 256))
    state = released(model)
    report = load_backbone(model, save(tmp_path, state))
    assert not report.resized
    assert_loaded(model, state, report.loaded)
    assert any('16x64 grid' in note for note in report.notes)


def test_table_that_is_no_square(tmp_path):
    state = released(pvt(pretrain_img_size=(64, 160)))
    with pytest.raises(CheckpointError, match=r'pos_embed1 has 640 rows in the file, which lie on '
                                              'no square'):
        load_backbone(pvt(), save(tmp_path, state))


# ---- warm start from softmax models


@pytest.mark.parametrize('family', FAMILIES)
def test_warm_start(tmp_path, family):
    make = FAMILIES[family]
    state = released(make(attn_type='SSSS'))
    table = {'pvt': 'pos_embed4', 'deit': 'pos_embed'}.get(family)
    if table:  # the originals have a class token, which has a first row of its own
        state['cls_token'] = torch.randn(1, 1, state[table].shape[2])
        state[table] = torch.cat([state['cls_token'], state[table]], dim=1)
    model = make(attn_type='LLSS')
    start = {k: v.clone() for k, v in model.state_dict().items()}
    report = load_backbone(model, save(tmp_path, {'model': state}))
    ours = model.state_dict()
    if table:
        state[table] = state[table][:, 1:]
        assert report.notes == [f'dropped the row of cls_token from {table}']
        assert 'cls_token' in report.left_over
    assert_loaded(model, state, [n for n in report.loaded if n not in report.merged])
    attention = {'pvt': 'block{}.0.attn', 'pvt_v2': 'block{}.0.attn',
                 'swin': 'layers.{}.blocks.0.attn', 'cswin': 'stage{}.0.attns.0',
                 'deit': 'blocks.{}.attn'}[family]
    for stage in (0, 1) if family in ('swin', 'deit') else (1, 2):
        for name in ('scale', 'positional_encoding', 'dwc.weight', 'dwc.bias'):
            name = f'{attention.format(stage)}.{name}'
            assert name in report.fresh
            assert torch.equal(ours[name], start[name])
    assert all('stage' not in n or n[5] in '12' for n in report.fresh)
    softmax_only = {'swin': 'layers.0.blocks.0.attn.relative_position_bias_table',
                    'pvt': 'block1.0.attn.sr.weight', 'pvt_v2': 'block1.0.attn.norm.bias'}
    assert softmax_only.get(family, 'head.bias') in report.left_over
    if family == 'cswin':
        name = 'stage2.0.attns.{}.get_v.weight'
        assert name.format(0) in report.merged
        assert torch.equal(ours[name.format(0)],
                           torch.cat([state[name.format(0)], state[name.format(1)]]))
        assert 'stage3.0.attns.1.get_v.weight' not in report.merged


def test_cswin_branches_part_again(tmp_path):
    state = released(cswin(attn_type='LLLL'))
    model = cswin(attn_type='SSSS')
    report = load_backbone(model, save(tmp_path, state))
    ours = model.state_dict()
    name = 'stage3.1.attns.{}.get_v.bias'
    assert {name.format(0), name.format(1)} <= set(report.merged)
    assert torch.equal(torch.cat([ours[name.format(b)] for b in (0, 1)]), state[name.format(0)])


def test_focused_block_lacking_one_of_its_parameters_is_no_warm_start(tmp_path):
    state = released(pvt())
    del state['block3.1.attn.scale']
    with pytest.raises(CheckpointError, match=r'The file lacks: block3\.1\.attn\.scale\.'):
        load_backbone(pvt(), save(tmp_path, state))


def test_unlike_reductions_are_told(tmp_path):
    state = released(pvt(attn_type='SSSS', sr_ratios=(4, 2, 1, 1)))
    with pytest.raises(CheckpointError, match=r'Shapes differ: block1\.0\.attn\.sr\.weight '
                                              r'\(8, 8, 4, 4\) in the file, \(8, 8, 8, 8\)'):
        load_backbone(pvt(attn_type='SSSS', sr_ratios=(8, 2, 1, 1)), save(tmp_path, state))
    with pytest.raises(CheckpointError, match=r'the file alone has: block1\.0\.attn\.sr'):
        load_backbone(pvt(attn_type='SSSS', sr_ratios=(1, 2, 1, 1)), save(tmp_path, state))


# ---- early ends


@pytest.mark.parametrize('family', FAMILIES)
def test_a_model_that_stops_early_leaves_later_stages(tmp_path, family):
    state = released(FAMILIES[family]())
    model = FAMILIES[family](out_indices=(1,))
    report = load_backbone(model, save(tmp_path, state))
    assert_loaded(model, state, report.loaded)
    later = {'swin': 'layers.2.blocks.0.attn.qkv.weight', 'cswin': 'stage3.0.qkv.weight',
             'deit': 'blocks.3.attn.qkv.weight'}
    assert later.get(family, 'block3.0.attn.q.weight') in report.left_over


def test_distilled_deit(tmp_path):
    state = released(deit(attn_type='SSSS'))
    rows = state['pos_embed']
    state['cls_token'] = state['dist_token'] = torch.randn(1, 1, 16)
    state['pos_embed'] = torch.cat([torch.full((1, 2, 16), 9.), rows], dim=1)
    model = deit(pretrain_img_size=224)
    report = load_backbone(model, save(tmp_path, {'model': state}))
    assert report.resized['pos_embed'] == ((7, 7), (14, 14))
    assert torch.equal(model.pos_embed, resize_grid_table(rows, (7, 7), (14, 14), 'bicubic'))


# ---- refusals


@pytest.fixture
def untouched():
    """Checks that a refusal left the model as it was."""
    pairs = []

    def watch(model: nn.Module) -> nn.Module:
        pairs.append((model, {k: v.clone() for k, v in model.state_dict().items()}))
        return model

    yield watch
    for model, before in pairs:
        assert_loaded(model, before, list(before))


@pytest.mark.parametrize('there, here', [
    ('swin', 'pvt'), ('pvt', 'swin'), ('cswin', 'swin'), ('pvt_v2', 'pvt'), ('pvt', 'pvt_v2'),
    ('swin', 'cswin'), ('swin', 'deit'), ('deit', 'swin')])
def test_another_family(tmp_path, untouched, there, here):
    titles = dict(pvt='PVT', pvt_v2='PVTv2', swin='Swin', cswin='CSwin', deit='DeiT')
    path = save(tmp_path, {'model': released(FAMILIES[there]())})
    with pytest.raises(CheckpointError) as error:
        load_backbone(untouched(FAMILIES[here]()), path)
    text = str(error.value)
    assert str(path) in text and '\n' not in text
    assert f'the file seems to be FLatten-{titles[there]} ' in text
    assert f'does not fit FLatten{titles[here]}, here FLatten-{titles[here]} ' in text


@pytest.mark.parametrize('file_depths, model_depths, match', [
    ([1, 1, 1, 1], [1, 1, 2, 1], r'The file lacks: block3\.1\.norm1\.weight'),
    ([1, 1, 2, 1], [1, 1, 1, 1], r'the file alone has: block3\.1\.norm1\.weight'),
])
def test_another_depth(tmp_path, untouched, file_depths, model_depths, match):
    path = save(tmp_path, released(pvt(arch={**PVT_ARCH, 'depths': file_depths})))
    with pytest.raises(CheckpointError, match=match) as error:
        load_backbone(untouched(pvt(arch={**PVT_ARCH, 'depths': model_depths})), path)
    assert f'depths {", ".join(map(str, file_depths))}' in str(error.value)


def test_deeper_file_into_a_model_that_stops_early(tmp_path, untouched):
    path = save(tmp_path, released(deit(arch={**DEIT_ARCH, 'depths': [1, 1, 1, 5]})))
    with pytest.raises(CheckpointError, match=r'the file alone has: blocks\.4\.'):
        load_backbone(untouched(deit(out_indices=(2,))), path)


def test_tiny_file_into_small_model_names_the_size(tmp_path, untouched):
    with torch.device('meta'):
        shapes = {k: v.shape for k, v in FLattenSwin('tiny').state_dict().items()}
    state = {k: torch.zeros(1).expand(shape) for k, shape in shapes.items()}
    with pytest.raises(CheckpointError, match='seems to be FLatten-Swin tiny .*LLSS'):
        load_backbone(untouched(FLattenSwin('small')), save(tmp_path, state))


def test_another_width_and_another_input(tmp_path, untouched):
    path = save(tmp_path, released(pvt()))
    with pytest.raises(CheckpointError, match='Only .* parameters match'):
        load_backbone(untouched(pvt(arch={**PVT_ARCH, 'embed_dims': [16, 32, 48, 64]})), path)
    with pytest.raises(CheckpointError, match=r'patch_embed1\.proj\.weight \(8, 3, 4, 4\) in the '
                                              r'file, \(8, 4, 4, 4\) in the model'):
        load_backbone(untouched(pvt(in_channels=4)), path)


def test_under_half_of_the_parameters(tmp_path, untouched):
    state = released(pvt())
    some = dict(list(state.items())[:len(state) // 3])
    with pytest.raises(CheckpointError, match=r'Only \d+ of \d+ parameters match'):
        load_backbone(untouched(pvt()), save(tmp_path, some))
    other = {'conv1.weight': torch.zeros(64, 3, 7, 7), 'bn1.bias': torch.zeros(64)}
    with pytest.raises(CheckpointError, match='not of a family known here.*first names are '
                                              r'conv1\.weight, bn1\.bias'):
        load_backbone(untouched(pvt()), save(tmp_path, other))


def test_a_lacking_stem_is_no_mere_warning(tmp_path, untouched):
    state = {k: v for k, v in released(cswin()).items() if not k.startswith('merge2.')}
    with pytest.raises(CheckpointError, match=r'The file lacks: merge2\.conv\.weight'):
        load_backbone(untouched(cswin()), save(tmp_path, state))


# ---- values


@pytest.mark.parametrize('bad', [float('nan'), float('inf')])
def test_values_that_are_not_finite(tmp_path, untouched, bad):
    state = released(swin())
    state['layers.1.blocks.0.mlp.fc1.bias'][3] = bad
    with pytest.raises(CheckpointError, match=r'layers\.1\.blocks\.0\.mlp\.fc1\.bias holds NaN or '
                                              'inf'):
        load_backbone(untouched(swin()), save(tmp_path, state))


def test_not_finite_in_what_is_left_over_does_not_matter(tmp_path):
    state = released(swin())
    state['head.weight'][0] = float('nan')
    load_backbone(swin(), save(tmp_path, state))


@pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16, torch.float64])
def test_other_floating_point_types_are_converted_and_told(tmp_path, dtype):
    state = {k: v.to(dtype) for k, v in released(pvt()).items()}
    model = pvt(pretrain_img_size=64)
    report = load_backbone(model, save(tmp_path, state))
    name = str(dtype).removeprefix('torch.')
    assert report.cast == {name: len(model.state_dict())}
    assert f'converted from {name}: ' in report.summary()
    ours = model.state_dict()
    assert all(t.dtype == torch.float32 for t in ours.values())
    assert torch.equal(ours['norm.weight'], state['norm.weight'].float())
    # Resized in full precision, not in the file's
    expected = resize_grid_table(state['pos_embed1'].float(), (28, 28), (16, 16), 'bilinear')
    assert torch.equal(ours['pos_embed1'], expected)


def test_a_double_beyond_float_is_told(tmp_path):
    state = {k: v.double() for k, v in released(pvt()).items()}
    state['norm.bias'][0] = 1e300
    with pytest.raises(CheckpointError, match=r'norm\.bias holds NaN or inf'):
        load_backbone(pvt(), save(tmp_path, state))


def test_integer_weights_are_refused(tmp_path, untouched):
    state = released(pvt())
    state['norm.weight'] = torch.ones(32, dtype=torch.int64)
    with pytest.raises(CheckpointError, match=r'norm\.weight is torch\.int64; expected '
                                              r'torch\.float32'):
        load_backbone(untouched(pvt()), save(tmp_path, state))


# ---- the released models themselves


def test_every_record_loads(shared, tmp_path):
    from golden import BUILD
    for record_path in sorted(shared('golden').glob('*.pt')):
        record = torch.load(record_path, weights_only=True)
        model = BUILD[record['family']](record['kwargs'])
        report = load_backbone(model, save(tmp_path, {'model': record['state_dict']}))
        assert not report.missing and not report.fresh and not report.resized, record_path.name
        assert report.left_over == ['head.weight', 'head.bias']
        assert_loaded(model, record['state_dict'], report.loaded)
