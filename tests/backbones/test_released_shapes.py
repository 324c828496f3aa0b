"""Keys, shapes and parameter counts of the 17 released models."""
from __future__ import annotations

import json

import pytest
import torch

from flatten_mm import FLattenCSwin, FLattenDeiT, FLattenPVT, FLattenPVTv2, FLattenSwin

MODELS = {
    'flatten_pvt_t': (FLattenPVT, dict(arch='tiny')),
    'flatten_pvt_s': (FLattenPVT, dict(arch='small')),
    'flatten_pvt_m': (FLattenPVT, dict(arch='medium')),
    'flatten_pvt_b': (FLattenPVT, dict(arch='large')),
    **{f'flatten_pvt_v2_b{i}': (FLattenPVTv2, dict(arch=f'b{i}')) for i in range(5)},
    'flatten_swin_t': (FLattenSwin, dict(arch='tiny')),
    'flatten_swin_s': (FLattenSwin, dict(arch='small')),
    'flatten_swin_b': (FLattenSwin, dict(arch='base')),
    'flatten_swin_b_384': (FLattenSwin, dict(arch='base', softmax_window_size=12)),
    'flatten_cswin_t': (FLattenCSwin, dict(arch='tiny')),
    'flatten_cswin_s': (FLattenCSwin, dict(arch='small')),
    'flatten_cswin_b': (FLattenCSwin, dict(arch='base')),
    'flatten_cswin_b_384': (FLattenCSwin, dict(arch='base', split_size=(1, 2, 12, 12))),
}


def build(name: str, **kwargs):
    family, settings = MODELS[name]
    with torch.device('meta'):
        return family(out_indices=(3,), **settings, **kwargs)


@pytest.mark.parametrize('name', MODELS)
def test_every_released_parameter(name: str, shared) -> None:
    released = json.loads(shared('golden', 'official_checkpoints.json').read_text())[name]
    model = build(name, pretrain_img_size=released['img_size'], attn_type=released['attn_type'])
    theirs = {k: tuple(v) for k, v in dict(released['parameters']).items()
              if not k.startswith('head.')}
    ours = {k: tuple(p.shape) for k, p in model.named_parameters()}
    assert ours == theirs
    assert not dict(model.named_buffers()), 'the state dict would hold more than parameters'
    head = (model.embed_dims[-1] + 1) * 1000
    assert sum(p.numel() for p in model.parameters()) + head == released['num_params']


# Counts with a 1000-way head; the repository's own statement of what the test above reads.
PARAMETERS = {'flatten_pvt_t': 12150504, 'flatten_pvt_v2_b2': 22548264,
              'flatten_swin_t': 29192384, 'flatten_cswin_t': 21201768}


@pytest.mark.parametrize('name', PARAMETERS)
def test_parameter_counts(name: str) -> None:
    model = build(name)
    head = (model.embed_dims[-1] + 1) * 1000
    assert sum(p.numel() for p in model.parameters()) + head == PARAMETERS[name]


def test_deit_tiny_is_as_large_as_the_paper_says() -> None:
    with torch.device('meta'):
        model = FLattenDeiT('tiny', out_indices=(3,))
    count = sum(p.numel() for p in model.parameters()) + (192 + 1) * 1000
    assert 5.7e6 <= count <= 6.2e6
