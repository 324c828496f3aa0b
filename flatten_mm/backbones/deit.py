"""FLatten-DeiT: a plain transformer over one grid, focused attention in every block.

The authors released no code for it; this is the design of the paper's section 4.1 read plainly:
DeiT with its attention replaced, over the 14x14 grid, without a class token (the depthwise
convolution needs a grid), classified from the mean token.
"""
from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from mmengine.registry import MODELS
from torch import Tensor, nn

from ..attention.grid import Size, TableResizer, conv_with_full_cell
from ..attention.linear import Linear, project
from ..attention.precision import LayerNorm
from ..attention.softmax import SoftmaxAttention
from .base import FOCUSED, SOFTMAX, Block, FLattenBackbone, to_map, to_tokens
from .feed_forward import Mlp
from .swin import FocusedWindowAttention, VariantWindowAttention

PYRAMID_SCALES = (4, 2, 1, 0.5)  # of the maps of the four quarters, with ``pyramid=True``


class SoftmaxGlobalAttention(SoftmaxAttention):
    """DeiT's attention: released ``attn.{qkv,proj}``."""

    def __init__(self, embed_dims: int, num_heads: int, qkv_bias: bool, drop_rate: float,
                 attn_drop_rate: float) -> None:
        super().__init__(num_heads, attn_drop_rate)
        self.qkv = Linear(embed_dims, 3 * embed_dims, bias=qkv_bias)
        self.proj = Linear(embed_dims, embed_dims)
        self.proj_drop = nn.Dropout(drop_rate)

    def forward(self, x: Tensor, hw: Size) -> Tensor:
        """(B, H * W, C) -> (B, H * W, C)."""
        q, k, v = project(self.qkv, x, 3)
        return self.proj_drop(self.proj(self.attend(q, k, v, hw, hw)))


class DeiTPatchEmbed(nn.Module):
    """Non-overlapping patches, the image padded (bottom, right) to a multiple of the patch."""

    def __init__(self, in_channels: int, embed_dims: int, patch_size: int) -> None:
        super().__init__()
        self.patch_size = patch_size
        self.proj = nn.Conv2d(in_channels, embed_dims, patch_size, patch_size)

    def forward(self, x: Tensor) -> tuple[Tensor, Size]:
        """(B, C, H, W) -> (B, ceil(H / p) * ceil(W / p), C') and its grid."""
        # As much as may be needed: the convolution drops cells that are not full.
        x = F.pad(x, (0, self.patch_size - 1, 0, self.patch_size - 1))
        return to_tokens(conv_with_full_cell(self.proj, x))


@MODELS.register_module()
class FLattenDeiT(FLattenBackbone):
    """FLatten-DeiT of the paper: DeiT with focused linear attention.

    The blocks form four quarters, each with its letter in ``attn_type`` and its index in
    ``out_indices``: with 12 blocks the outputs are those of blocks 3, 6, 9 and 12, which mm's ViT
    recipes take. All maps have ceil(side / 16) cells, for necks such as mmseg's MultiLevelNeck
    or Feature2Pyramid; ``pyramid=True`` instead rescales them to strides 4, 8, 16, 32 (bilinear,
    nothing learned) for necks that expect a pyramid. The last output passes the final ``norm``.

    Args:
        arch: ``'tiny'``, ``'small'``, ``'base'`` or a dict of embed_dims, depths (four
            quarters), num_heads, mlp_ratio, patch_size.
        attn_type: see :class:`FLattenBackbone`; ``'LLLL'`` is the paper's, ``'SSSS'`` is DeiT
            itself (without its class token).
        pyramid: rescale the outputs to strides 4, 8, 16 and 32.
        qkv_bias: bias of the q, k, v projections.
        drop_rate: dropout after projections and the position table.
        attn_drop_rate: dropout of the weights of softmax attention.
        (others): see :class:`FLattenBackbone`.
    """

    FAMILY = 'FLattenDeiT'
    ARCHS = {
        name: dict(embed_dims=dims, depths=[3, 3, 3, 3], num_heads=heads, mlp_ratio=4.,
                   patch_size=16)
        for name, dims, heads in (('tiny', 192, 3), ('small', 384, 6), ('base', 768, 12))
    }
    ARCH_ALIASES = dict(t='tiny', s='small', b='base')

    def __init__(
        self,
        arch: str | dict = 'tiny',
        attn_type: str = 'LLLL',
        in_channels: int = 3,
        pretrain_img_size: int | Size = 224,
        focusing_factor: float = 3,
        kernel_size: int = 5,
        attention: str = 'focused',
        rank_restoration: bool = True,
        pyramid: bool = False,
        qkv_bias: bool = True,
        out_indices: Sequence[int] = (0, 1, 2, 3),
        drop_rate: float = 0.,
        attn_drop_rate: float = 0.,
        drop_path_rate: float = 0.1,
        frozen_stages: int = -1,
        with_cp: bool = False,
        init_cfg: dict | list | None = None,
    ) -> None:
        super().__init__(arch, attn_type, in_channels, pretrain_img_size, focusing_factor,
                         kernel_size, attention, rank_restoration, out_indices, drop_path_rate,
                         frozen_stages, with_cp, init_cfg)
        settings = self.arch_settings
        dims, heads, patch = (settings[key] for key in ('embed_dims', 'num_heads', 'patch_size'))
        self.embed_dims = [dims] * len(self.depths)
        self.check_widths(self.embed_dims, [heads] * len(self.depths))
        self.pyramid = pyramid

        self.patch_embed = DeiTPatchEmbed(in_channels, dims, patch)
        self.pos_grid: Size = tuple(-(-side // patch) for side in self.pretrain_hw)
        self.pos_embed = nn.Parameter(torch.zeros(1, self.pos_grid[0] * self.pos_grid[1], dims))
        self.resize_pos_embed = TableResizer('bicubic')
        self.pos_drop = nn.Dropout(drop_rate)
        self.blocks = nn.ModuleList()
        linear_attention = (
            FocusedWindowAttention if attention == FOCUSED else VariantWindowAttention)
        common = dict(embed_dims=dims, num_heads=heads, qkv_bias=qkv_bias, drop_rate=drop_rate)
        for i in range(self.num_stages):
            for kind, drop_path in zip(self.block_kinds[i], self.drop_path_rates[i]):
                attn = (
                    SoftmaxGlobalAttention(attn_drop_rate=attn_drop_rate, **common)
                    if kind == SOFTMAX
                    else linear_attention(window_hw=self.pos_grid, is_global=True, shifted=False,
                                          **common, **self.linear_cfg)
                )
                mlp = Mlp(dims, int(dims * settings['mlp_ratio']), drop_rate)
                self.blocks.append(Block(dims, attn, mlp, drop_path, eps=1e-6))
        if self.num_stages == len(self.depths):
            self.norm = LayerNorm(dims, eps=1e-6)
        self.freeze_stages()

    def quarter(self, stage: int) -> nn.ModuleList:
        """Blocks of one quarter."""
        start = sum(self.depths[:stage])
        return self.blocks[start:start + self.depths[stage]]

    def stage_modules(self, stage: int) -> list[nn.Module | nn.Parameter]:
        if stage == 0:
            return [self.patch_embed, self.pos_embed]
        return [self.quarter(stage - 1)] + ([self.norm] if stage == len(self.depths) else [])

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """(B, in_channels, H, W) -> a (B, C, H_i, W_i) for each of ``out_indices``."""
        self.check_images(x)
        x, hw = self.patch_embed(x)
        x = self.pos_drop(x + self.resize_pos_embed(self.pos_embed, self.pos_grid, hw))
        outs = []
        for i in range(self.num_stages):
            for block in self.quarter(i):
                x = self.run_block(block, x, hw)
            if i in self.out_indices:
                last = i == len(self.depths) - 1
                x_map = to_map(self.norm(x) if last else x, hw)
                outs.append(self.rescale(x_map, i).contiguous())
        return tuple(outs)

    def rescale(self, x: Tensor, stage: int) -> Tensor:
        """(B, C, h, w) at stride 16 -> the stage's stride with ``pyramid=True``."""
        scale = PYRAMID_SCALES[stage]
        if not self.pyramid or scale == 1:
            return x
        if scale < 1:
            return F.max_pool2d(x, 2, ceil_mode=True)
        return F.interpolate(x, scale_factor=scale, mode='bilinear')
