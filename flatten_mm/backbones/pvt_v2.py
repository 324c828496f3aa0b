"""FLatten-PVTv2: overlapping patches, a depthwise convolution in the MLP, norms after stages."""
from __future__ import annotations

from collections.abc import Sequence

from mmengine.registry import MODELS
from torch import Tensor, nn

from ..attention.grid import Size
from ..attention.precision import LayerNorm
from .base import init_conv_by_fan_out
from .feed_forward import ConvMlp
from .pvt import PatchEmbed, PVTPyramid


@MODELS.register_module()
class FLattenPVTv2(PVTPyramid):
    """FLatten-PVTv2 of the paper: PVTv2 with focused linear attention.

    Overlapping patches, so the maps have ceil(side / 4), then halve upwards, like mmdet's PVTv2.
    Each stage ends in its norm (``norm1`` ... ``norm4``); there is no position table but the
    focused attention's own.

    Args:
        arch: ``'b0'`` to ``'b5'`` or a dict of embed_dims, num_heads, mlp_ratios, depths.
        attn_type: see :class:`FLattenBackbone`; the released models are ``'LLLL'``,
            ``'SSSS'`` is PVTv2 itself.
        sr_ratios: spatial reduction of keys and values in softmax blocks, one a stage.
        la_sr_ratios: the same in linear blocks; the released models do not reduce.
        linear: the linear variant, PVTv2-Li: keys and values from the map pooled to 7x7.
        qkv_bias: bias of the q, k, v projections.
        drop_rate: dropout after projections.
        attn_drop_rate: dropout of the weights of softmax attention.
        (others): see :class:`FLattenBackbone`.
    """

    FAMILY = 'FLattenPVTv2'
    ARCHS = {
        name: dict(embed_dims=[32, 64, 160, 256] if name == 'b0' else [64, 128, 320, 512],
                   num_heads=[1, 2, 5, 8],
                   mlp_ratios=[4, 4, 4, 4] if name == 'b5' else [8, 8, 4, 4], depths=depths)
        for name, depths in (('b0', [2, 2, 2, 2]), ('b1', [2, 2, 2, 2]), ('b2', [3, 4, 6, 3]),
                             ('b3', [3, 4, 18, 3]), ('b4', [3, 8, 27, 3]), ('b5', [3, 6, 40, 3]))
    }

    def __init__(
        self,
        arch: str | dict = 'b0',
        attn_type: str = 'LLLL',
        in_channels: int = 3,
        pretrain_img_size: int | Size = 224,
        focusing_factor: float = 3,
        kernel_size: int = 5,
        attention: str = 'focused',
        rank_restoration: bool = True,
        sr_ratios: Sequence[int] = (8, 4, 2, 1),
        la_sr_ratios: Sequence[int] = (1, 1, 1, 1),
        linear: bool = False,
        qkv_bias: bool = True,
        out_indices: Sequence[int] = (0, 1, 2, 3),
        drop_rate: float = 0.,
        attn_drop_rate: float = 0.,
        drop_path_rate: float = 0.1,
        frozen_stages: int = -1,
        with_cp: bool = False,
        init_cfg: dict | list | None = None,
    ) -> None:
        self.linear = linear
        super().__init__(arch, attn_type, in_channels, pretrain_img_size, focusing_factor,
                         kernel_size, attention, rank_restoration, sr_ratios, la_sr_ratios,
                         linear, qkv_bias, out_indices, drop_rate, attn_drop_rate,
                         drop_path_rate, frozen_stages, with_cp, init_cfg)

    def make_patch_embed(self, stage: int, in_channels: int, embed_dims: int) -> PatchEmbed:
        kernel, stride = (3, 2) if stage else (7, 4)
        return PatchEmbed(in_channels, embed_dims, kernel, stride, kernel // 2)

    def make_mlp(self, embed_dims: int, hidden_dims: int, drop_rate: float) -> nn.Module:
        return ConvMlp(embed_dims, hidden_dims, drop_rate, self.linear)

    def add_stage_parts(self, stage: int, embed_dims: int, map_hw: Size) -> None:
        self.add_module(f'norm{stage + 1}', LayerNorm(embed_dims, eps=1e-6))

    def after_blocks(self, stage: int, x: Tensor) -> Tensor:
        return getattr(self, f'norm{stage + 1}')(x)

    def init_module(self, module: nn.Module) -> None:
        super().init_module(module)
        if isinstance(module, nn.Conv2d):
            init_conv_by_fan_out(module)
