"""Naming a file's family and size by its keys and shapes."""
from __future__ import annotations

import json

import pytest
import torch

from flatten_mm import backbones
from flatten_mm.checkpoint import identify

FAMILIES = {'swin': 'FLattenSwin', 'cswin': 'FLattenCSwin', 'pvt': 'FLattenPVT',
            'pvt_v2': 'FLattenPVTv2', 'deit': 'FLattenDeiT'}
ARCHS = [(family, arch) for family, name in FAMILIES.items()
         for arch in getattr(backbones, name).ARCHS]


def on_meta(shapes: dict) -> dict[str, torch.Tensor]:
    return {name: torch.zeros(shape, device='meta') for name, shape in shapes.items()}


def shapes_of(family: str, **kwargs) -> dict:
    with torch.device('meta'):
        model = getattr(backbones, FAMILIES[family])(**kwargs)
    return {name: tensor.shape for name, tensor in model.state_dict().items()}


@pytest.mark.parametrize('family, arch', ARCHS)
def test_every_arch_is_named(family, arch):
    identity = identify(on_meta(shapes_of(family, arch=arch)))
    assert (identity.family, identity.size) == (family, arch)
    assert identity.is_focused


@pytest.mark.parametrize('attn_type', ['LLLL', 'LLSS', 'SSSS', 'LMMS1', 'LLMS2'])
@pytest.mark.parametrize('family', FAMILIES)
def test_letters(family, attn_type):
    arch = {'pvt_v2': 'b2'}.get(family, 'small')
    shapes = shapes_of(family, arch=arch, attn_type=attn_type)
    for prefix in ('', 'backbone.', 'module.backbone.'):
        identity = identify(on_meta({prefix + name: shape for name, shape in shapes.items()}))
        assert (identity.family, identity.size, identity.attn_type) == (family, arch, attn_type)
    assert str(identity).startswith('FLatten-') == identity.is_focused == ('L' in attn_type)


def test_other_models_have_no_name():
    assert identify({}) is None
    assert identify(on_meta({'conv1.weight': (64, 3, 7, 7),
                             'layer1.0.conv1.weight': (64, 64, 1, 1)})) is None


def test_no_released_size_is_said():
    shapes = shapes_of('swin', arch=dict(embed_dims=48, depths=[1, 1, 1, 1],
                                         num_heads=[3, 3, 3, 3], mlp_ratio=4.))
    identity = identify(on_meta(shapes))
    assert identity.size is None
    assert str(identity) == ('FLatten-Swin of no released size (width 48, depths 1, 1, 1, 1, '
                             'attention LLSS)')


def test_all_released_models(shared):
    released = json.loads(shared('golden', 'official_checkpoints.json').read_text())
    assert len(released) == 17
    letter = dict(t='tiny', s='small', m='medium', b='base')
    for name, model in released.items():
        identity = identify(on_meta({**model['parameters'], **model['buffers']}))
        family, size = name[len('flatten_'):].removesuffix('_384').rsplit('_', 1)
        # The paper's PVT-L is released as flatten_pvt_b.
        size = 'large' if (family, size) == ('pvt', 'b') else letter.get(size, size)
        assert (identity.family, identity.size) == (family, size), name
        assert identity.attn_type == model['attn_type']
