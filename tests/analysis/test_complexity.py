"""The counter counts as mmengine's does, and as the attention is executed."""
from __future__ import annotations

import json

import mmdet
import mmpretrain
import mmseg
import pytest
import torch
from mmengine.analysis import get_model_complexity_info
from mmengine.config import Config
from mmengine.registry import MODELS, init_default_scope
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from flatten_mm.analysis.complexity import (
    default_shape,
    linear_products,
    measure,
    softmax_products,
)
from flatten_mm.attention import FocusedAttention, SoftmaxAttention
from flatten_mm.backbones import FLattenPVT

LIBRARIES = dict(mmseg=mmseg, mmdet=mmdet, mmpretrain=mmpretrain)
SWIN_UPERNET = ('mmseg', 'swin/swin-tiny-patch4-window7-in1k-pre_upernet_8xb2-160k_ade20k-512x512')
SWIN_MASK_RCNN = ('mmdet', 'swin/mask-rcnn_swin-t-p4-w7_fpn_1x_coco')


def _config(library: str, name: str) -> Config:
    return Config.fromfile(f'{LIBRARIES[library].__path__[0]}/.mim/configs/{name}.py')


def _classifier(**backbone) -> Config:
    return Config(dict(default_scope='mmpretrain', model=dict(
        type='ImageClassifier',
        backbone=dict(dict(type='FLattenPVT', arch='tiny', out_indices=(3,)), **backbone),
        neck=dict(type='GlobalAveragePooling'),
        head=dict(type='LinearClsHead', num_classes=1000, in_channels=512))))


@pytest.mark.parametrize('config, flops, params', [
    (SWIN_UPERNET, 945.7, 59.94), (SWIN_MASK_RCNN, 267.0, 47.79)])
def test_libraries_own_models_cost_what_the_paper_says(config, flops, params):
    complexity = measure(_config(*config))
    assert complexity.flops / 1e9 == pytest.approx(flops, abs=0.05)
    assert complexity.params / 1e6 == pytest.approx(params, abs=0.005)


@pytest.mark.parametrize('library, name', [
    ('mmseg', 'sem_fpn/fpn_r50_4xb4-160k_ade20k-512x512'),
    ('mmpretrain', 'swin_transformer/swin-tiny_16xb64_in1k'),
    ('mmdet', 'pvt/retinanet_pvt-t_fpn_1x_coco')])
def test_counts_as_mmengine_on_real_tensors(library, name):
    """mmengine's counter traces a real forward pass; it leaves attention out where mm's models
    call torch's fused one, whose products are added here."""
    cfg = _config(library, name)
    shape = (224, 224)
    complexity = measure(cfg, shape)
    init_default_scope(library)
    model = MODELS.build(cfg.model).eval()
    fused = []
    attention = nn.functional.scaled_dot_product_attention

    def watched(q, k, v, *args, **kwargs):
        fused.append(2 * q.numel() * k.shape[-2])
        return attention(q, k, v, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nn.functional, 'scaled_dot_product_attention', watched)
        patch.setattr(torch.nn.functional, 'scaled_dot_product_attention', watched)
        traced = get_model_complexity_info(model, inputs=(torch.zeros(1, 3, *shape),),
                                           show_table=False, show_arch=False)
    assert complexity.params == traced['params']
    assert complexity.flops == pytest.approx(traced['flops'] + sum(fused), rel=2e-3)


@pytest.mark.parametrize('num_keys', [192, 48])
def test_focused_attention_costs_its_formula(num_keys):
    """What the core executes, what is counted for it, and N C d + M C d + N C + ks^2 N C."""
    N, M, C, heads, ks = 192, num_keys, 64, 4, 5
    attention = FocusedAttention(C, heads, (M // 12, 12), kernel_size=ks)
    q, k, v = torch.randn(1, N, C), torch.randn(1, M, C), torch.randn(1, M, C)
    grids = (16, 12), (M // 12, 12)
    executed, counted = (
        _macs(lambda attend=attend: attend(q, k, v, *grids))
        for attend in (attention.attend, lambda *args: linear_products(attention, *args)))
    d = C // heads
    assert counted == N * C * d + M * C * d + N * C + ks**2 * N * C
    assert executed == pytest.approx(counted, rel=0.02)


def test_softmax_attention_costs_its_formula():
    N, M, C = 192, 48, 64
    attention = SoftmaxAttention(4)
    q, k, v = torch.randn(1, N, C), torch.randn(1, M, C), torch.randn(1, M, C)
    assert _macs(lambda: softmax_products(attention, q, k, v, (16, 12), (4, 12))) == 2 * N * M * C


def _macs(function) -> int:
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        function()
    return counter.get_total_flops() // 2


def test_parts_are_the_whole():
    complexity = measure(_config(*SWIN_UPERNET), (128, 128))
    parts = {part.name: part for part in complexity.parts}
    assert sum(part.flops for part in parts.values()) == complexity.flops
    assert sum(part.params for part in parts.values()) == complexity.params
    assert parts['auxiliary_head'].flops == 0 and parts['auxiliary_head'].params > 0
    assert 'other' not in parts


def test_stages_of_our_backbones():
    complexity = measure(_classifier())
    assert [part.name for part in complexity.parts[:5]] == [
        'backbone.patch_embed', *(f'backbone.stage{i}' for i in (1, 2, 3, 4))]
    assert all(part.flops > 0 and part.params > 0 for part in complexity.parts[:5])
    assert {part.name for part in complexity.parts[5:]} <= {'neck', 'head', 'other'}


def test_focused_attention_grows_with_the_pixels():
    """Four times the pixels, four times the cost; softmax attention grows faster."""
    focused, softmax = (
        [measure(_classifier(attn_type=letters), (side, side)).flops for side in (448, 896)]
        for letters in ('LLLL', 'SSSS'))
    assert focused[1] / focused[0] == pytest.approx(4, rel=0.01)
    assert softmax[1] / softmax[0] > 5


def test_heads_on_boxes_count_the_boxes_of_the_config():
    cfg = _config(*SWIN_MASK_RCNN)
    before = {part.name: part.flops for part in measure(cfg, (128, 128)).parts}
    cfg.model.test_cfg.rpn.max_per_img //= 2
    after = {part.name: part.flops for part in measure(cfg, (128, 128)).parts}
    assert after['roi_head.bbox_head'] * 2 == before['roi_head.bbox_head']
    assert after['roi_head.mask_head'] == before['roi_head.mask_head'] > 0


@MODELS.register_module()
class PVTThatLooksAtValues(FLattenPVT):
    """A backbone that runs on real tensors only."""

    def forward(self, x):
        out, = super().forward(x)
        return (out if out.sum().item() < 1e9 else -out,)


@pytest.mark.parametrize('attn_type', ['LLLL', 'SSSS'])
def test_models_that_need_values_are_counted_on_values(attn_type):
    cfg = _classifier(attn_type=attn_type)
    expected = measure(cfg, (96, 64))
    cfg.model.backbone.type = 'PVTThatLooksAtValues'
    assert measure(cfg, (96, 64)) == expected


def test_classifiers_are_counted_at_their_own_size():
    assert default_shape(_classifier()) == (224, 224)
    assert default_shape(_classifier(pretrain_img_size=384)) == (384, 384)
    assert default_shape(_config(*SWIN_UPERNET)) == (512, 2048)
    assert default_shape(_config(*SWIN_MASK_RCNN)) == (800, 1280)


def test_channels_of_the_image():
    three, five = (measure(_classifier(in_channels=channels), (64, 64)).parts[0].flops
                   for channels in (3, 5))
    assert five - three == 2 * 16 * 16 * 4 * 4 * 64


def test_unknown_scope():
    with pytest.raises(ValueError, match="default_scope='mmpose'; expected one of mmseg"):
        measure(Config(dict(default_scope='mmpose', model=dict())))


def test_to_dict_is_json():
    complexity = measure(_classifier(), (64, 64))
    content = json.loads(json.dumps(complexity.to_dict()))
    assert content['flops'] == complexity.flops and content['shape'] == [64, 64]
    assert content['parts'][0]['name'] == 'backbone.patch_embed'
    assert complexity.table().splitlines()[-1].startswith('total')
