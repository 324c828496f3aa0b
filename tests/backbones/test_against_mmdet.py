"""Softmax twins against the same families in mmdet: same maps, and the same function."""
from __future__ import annotations

import pytest
import torch

mmdet_backbones = pytest.importorskip('mmdet.models.backbones')

from flatten_mm import FLattenPVT, FLattenPVTv2, FLattenSwin  # noqa: E402

SIZES = [(64, 64), (97, 130), (130, 67)]


def grids(outs) -> list[torch.Size]:
    return [o.shape[2:] for o in outs]


@pytest.mark.parametrize('size', SIZES)
def test_same_strides(size) -> None:
    x = torch.randn(1, 3, *size)
    swin = mmdet_backbones.SwinTransformer(embed_dims=24, depths=(1, 1, 1, 1),
                                           num_heads=(1, 2, 4, 8))
    ours = FLattenSwin(dict(embed_dims=24, depths=[1, 1, 1, 1], num_heads=[1, 2, 4, 8],
                            mlp_ratio=4.))
    assert grids(ours(x)) == grids(swin(x))
    kwargs = dict(embed_dims=8, num_stages=4, num_layers=[1, 1, 1, 1], num_heads=[1, 2, 5, 8])
    arch = dict(embed_dims=[8, 16, 40, 64], num_heads=[1, 2, 5, 8], mlp_ratios=[2, 2, 2, 2],
                depths=[1, 1, 1, 1])
    assert grids(FLattenPVT(arch)(x)) == grids(
        mmdet_backbones.PyramidVisionTransformer(mlp_ratios=[2] * 4, **kwargs)(x))
    assert grids(FLattenPVTv2(arch)(x)) == grids(
        mmdet_backbones.PyramidVisionTransformerV2(mlp_ratios=[2] * 4, **kwargs)(x))


RENAMED = {'stages.': 'layers.', 'attn.w_msa.': 'attn.', 'ffn.layers.0.0.': 'mlp.fc1.',
           'ffn.layers.1.': 'mlp.fc2.', 'projection.': 'proj.', 'norm3.': 'norm.'}


def our_name(key: str) -> str:
    for theirs, ours in RENAMED.items():
        key = key.replace(theirs, ours)
    return key


def merging_order_of_mmdet(value: torch.Tensor) -> torch.Tensor:
    """mmdet unfolds a 2x2 cell channel by channel, Swin (and ours) pixel by pixel."""
    pixels = value.unflatten(-1, (4, -1))  # our order: (0,0), (1,0), (0,1), (1,1)
    return pixels[..., [0, 2, 1, 3], :].transpose(-1, -2).flatten(-2)


def test_softmax_swin_is_mmdets_swin() -> None:
    """With the same weights, where no window is padded and every map is larger than one.

    (On a map one window high mmdet still shifts along it; the released models do not.)
    """
    theirs = mmdet_backbones.SwinTransformer(embed_dims=24, depths=(2, 2, 2, 2),
                                             num_heads=(1, 2, 4, 8), drop_path_rate=0.)
    theirs.eval()  # returns None
    ours = FLattenSwin(dict(embed_dims=24, depths=[2, 2, 2, 2], num_heads=[1, 2, 4, 8],
                            mlp_ratio=4.), attn_type='SSSS', drop_path_rate=0.).eval()
    names = [key for key in theirs.state_dict() if not key.endswith('relative_position_index')]
    weights = {key: torch.randn_like(theirs.state_dict()[key]) * 0.2 for key in names}
    ours.load_state_dict({our_name(key): value for key, value in weights.items()})
    theirs.load_state_dict({
        key: merging_order_of_mmdet(value) if 'downsample' in key else value
        for key, value in weights.items()}, strict=False)
    x = torch.randn(2, 3, 448, 672)
    with torch.no_grad():
        for a, b in zip(ours(x), theirs(x)):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
