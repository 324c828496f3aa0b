"""FLatten-PVT, and the attention with spatial reduction that PVTv2 shares with it."""
from __future__ import annotations

from collections.abc import Sequence

import torch
from mmengine.registry import MODELS
from torch import Tensor, nn

from ..attention.focused import FocusedAttention
from ..attention.grid import Size, TableResizer, conv_with_full_cell
from ..attention.linear import Linear, project
from ..attention.precision import LayerNorm
from ..attention.softmax import SoftmaxAttention
from ..attention.variants import VariantAttention
from .base import FOCUSED, SOFTMAX, Block, FLattenBackbone, to_map, to_tokens
from .feed_forward import Mlp

POOLED_HW: Size = (7, 7)  # key grid of PVTv2's linear variant, whatever the map


class SpatialReduction:
    """Projections of PVT attention, keys and values from a reduced map; mixed into a core.

    Parameter names of the released models: ``q``, ``kv``, ``proj`` and, where the map is reduced,
    ``sr`` (convolution) and ``norm``.
    """

    def build_projections(self, embed_dims: int, sr_ratio: int, linear: bool, qkv_bias: bool,
                          drop_rate: float) -> None:
        self.q = Linear(embed_dims, embed_dims, bias=qkv_bias)
        self.kv = Linear(embed_dims, 2 * embed_dims, bias=qkv_bias)
        self.proj = Linear(embed_dims, embed_dims)
        self.proj_drop = nn.Dropout(drop_rate)
        self.pooled = linear
        if linear:
            self.pool = nn.AdaptiveAvgPool2d(POOLED_HW)
            self.sr = nn.Conv2d(embed_dims, embed_dims, 1)
            self.act = nn.GELU()
        elif sr_ratio > 1:
            self.sr = nn.Conv2d(embed_dims, embed_dims, sr_ratio, stride=sr_ratio)
        else:
            self.sr = None
        if self.sr is not None:
            self.norm = LayerNorm(embed_dims, eps=1e-5)

    def reduce(self, x: Tensor, hw: Size) -> tuple[Tensor, Size]:
        """(B, H * W, C) -> tokens of the reduced map that keys and values come from, its grid."""
        if self.sr is None:
            return x, hw
        x = to_map(x, hw)
        x = self.sr(self.pool(x)) if self.pooled else conv_with_full_cell(self.sr, x)
        x, hw = to_tokens(x)
        x = self.norm(x)
        return (self.act(x) if self.pooled else x), hw

    def queries(self, x: Tensor) -> Tensor:
        """(B, N, C) -> q (B, N, C)."""
        return self.q(x)

    def keys_values(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """(B, M, C) -> k, v (B, M, C)."""
        return project(self.kv, x, 2)

    def forward(self, x: Tensor, hw: Size) -> Tensor:
        """(B, H * W, C) -> (B, H * W, C)."""
        q = self.queries(x)
        source, key_hw = self.reduce(x, hw)
        k, v = self.keys_values(source)
        return self.proj_drop(self.proj(self.attend(q, k, v, hw, key_hw)))


class LinearReduction(SpatialReduction):
    """Projections of PVT attention around a linear core, mixed into it."""

    def __init__(self, embed_dims: int, num_heads: int, map_hw: Size, sr_ratio: int, linear: bool,
                 qkv_bias: bool, drop_rate: float, **core_cfg) -> None:
        key_grid = POOLED_HW if linear else tuple(max(s // sr_ratio, 1) for s in map_hw)
        super().__init__(embed_dims, num_heads, key_grid, **core_cfg)
        self.build_projections(embed_dims, sr_ratio, linear, qkv_bias, drop_rate)

    def has_own_keys(self, hw: Size) -> bool:
        return self.sr is None


class FocusedReducedAttention(LinearReduction, FocusedAttention):
    """Focused linear attention of PVT and PVTv2: released ``attn.*`` of L stages."""


class VariantReducedAttention(LinearReduction, VariantAttention):
    """Another linear attention in its place."""


class SoftmaxReducedAttention(SpatialReduction, SoftmaxAttention):
    """Softmax attention of PVT and PVTv2: released ``attn.*`` of S stages."""

    def __init__(self, embed_dims: int, num_heads: int, sr_ratio: int, linear: bool,
                 qkv_bias: bool, drop_rate: float, attn_drop_rate: float) -> None:
        SoftmaxAttention.__init__(self, num_heads, attn_drop_rate)
        self.build_projections(embed_dims, sr_ratio, linear, qkv_bias, drop_rate)


class PatchEmbed(nn.Module):
    """Strided convolution and LayerNorm: (B, C, H, W) -> (B, N, C') and its grid (h, w).

    Without padding the grid is floor(side / stride), at least 1; with padding kernel // 2 it is
    ceil(side / stride).
    """

    def __init__(self, in_channels: int, embed_dims: int, kernel_size: int, stride: int,
                 padding: int = 0) -> None:
        super().__init__()
        self.proj = nn.Conv2d(in_channels, embed_dims, kernel_size, stride, padding)
        self.norm = LayerNorm(embed_dims, eps=1e-5)

    def forward(self, x: Tensor) -> tuple[Tensor, Size]:
        x, hw = to_tokens(conv_with_full_cell(self.proj, x))
        return self.norm(x), hw


class PVTPyramid(FLattenBackbone):
    """The pyramid PVT and PVTv2 have in common; a subclass says how its parts differ."""

    def __init__(self, arch, attn_type, in_channels, pretrain_img_size, focusing_factor,
                 kernel_size, attention, rank_restoration, sr_ratios, la_sr_ratios, linear,
                 qkv_bias, out_indices, drop_rate, attn_drop_rate, drop_path_rate, frozen_stages,
                 with_cp, init_cfg) -> None:
        super().__init__(arch, attn_type, in_channels, pretrain_img_size, focusing_factor,
                         kernel_size, attention, rank_restoration, out_indices, drop_path_rate,
                         frozen_stages, with_cp, init_cfg)
        settings = self.arch_settings
        self.embed_dims, num_heads = list(settings['embed_dims']), settings['num_heads']
        self.check_widths(self.embed_dims, num_heads)
        for name, ratios in (('sr_ratios', sr_ratios), ('la_sr_ratios', la_sr_ratios)):
            if len(ratios) != len(self.depths) or min(ratios) < 1:
                raise ValueError(f'{self.FAMILY}: {name}={tuple(ratios)}; expected a ratio of at '
                                 f'least 1 for each of the {len(self.depths)} stages')
        linear_attention = (
            FocusedReducedAttention if attention == FOCUSED else VariantReducedAttention)
        map_hw = self.pretrain_hw
        for i in range(self.num_stages):
            dims, heads = self.embed_dims[i], num_heads[i]
            embed = self.make_patch_embed(i, self.embed_dims[i - 1] if i else in_channels, dims)
            map_hw = self.next_grid(map_hw, embed.proj)
            common = dict(linear=linear, qkv_bias=qkv_bias, drop_rate=drop_rate)
            blocks = nn.ModuleList()
            for kind, drop_path in zip(self.block_kinds[i], self.drop_path_rates[i]):
                if kind == SOFTMAX:
                    attn = SoftmaxReducedAttention(dims, heads, sr_ratios[i], **common,
                                                   attn_drop_rate=attn_drop_rate)
                else:
                    attn = linear_attention(dims, heads, map_hw, la_sr_ratios[i], **common,
                                            **self.linear_cfg)
                mlp = self.make_mlp(dims, int(dims * settings['mlp_ratios'][i]), drop_rate)
                blocks.append(Block(dims, attn, mlp, drop_path, eps=1e-6))
            self.add_module(f'patch_embed{i + 1}', embed)
            self.add_module(f'block{i + 1}', blocks)
            self.add_stage_parts(i, dims, map_hw)
        self.freeze_stages()

    @staticmethod
    def next_grid(hw: Size, conv: nn.Conv2d) -> Size:
        """Grid of ``conv`` on a map of ``hw``."""
        sides = zip(hw, conv.kernel_size, conv.stride, conv.padding)
        return tuple(max((side + 2 * p - k) // s + 1, 1) for side, k, s, p in sides)

    def make_patch_embed(self, stage: int, in_channels: int, embed_dims: int) -> PatchEmbed:
        raise NotImplementedError

    def make_mlp(self, embed_dims: int, hidden_dims: int, drop_rate: float) -> nn.Module:
        raise NotImplementedError

    def add_stage_parts(self, stage: int, embed_dims: int, map_hw: Size) -> None:
        raise NotImplementedError

    def before_blocks(self, stage: int, x: Tensor, hw: Size) -> Tensor:
        return x

    def after_blocks(self, stage: int, x: Tensor) -> Tensor:
        return x

    def stage_modules(self, stage: int) -> list[nn.Module | nn.Parameter]:
        if stage == 0:
            return [self.patch_embed1]
        names = (f'patch_embed{stage}', f'pos_embed{stage}', f'block{stage}', f'norm{stage}')
        return [getattr(self, name) for name in names if hasattr(self, name)]

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """(B, in_channels, H, W) -> a (B, C_i, H_i, W_i) for each of ``out_indices``."""
        self.check_images(x)
        outs = []
        for i in range(self.num_stages):
            x, hw = getattr(self, f'patch_embed{i + 1}')(x)
            x = self.before_blocks(i, x, hw)
            for block in getattr(self, f'block{i + 1}'):
                x = self.run_block(block, x, hw)
            x = to_map(self.after_blocks(i, x), hw)
            if i in self.out_indices:
                outs.append(x.contiguous())
        return tuple(outs)


@MODELS.register_module()
class FLattenPVT(PVTPyramid):
    """FLatten-PVT of the paper: Pyramid Vision Transformer with focused linear attention.

    Patch embedding without overlap, so the maps have floor(side / 4), / 8, / 16, / 32 cells (at
    least one), like mmdet's PVT. Outputs are the stages' own, without a norm, as in PVT.

    Args:
        arch: ``'tiny'``, ``'small'``, ``'medium'``, ``'large'`` (released as
            ``flatten_pvt_{t,s,m,b}``) or a dict of embed_dims, num_heads, mlp_ratios, depths.
        attn_type: see :class:`FLattenBackbone`; the released models are ``'LLLL'``,
            ``'SSSS'`` is PVT itself.
        sr_ratios: spatial reduction of keys and values in softmax blocks, one a stage.
        la_sr_ratios: the same in linear blocks; the released models do not reduce.
        qkv_bias: bias of the q, k, v projections.
        drop_rate: dropout after projections and position embeddings.
        attn_drop_rate: dropout of the weights of softmax attention.
        (others): see :class:`FLattenBackbone`.
    """

    FAMILY = 'FLattenPVT'
    ARCHS = {
        name: dict(embed_dims=[64, 128, 320, 512], num_heads=[1, 2, 5, 8],
                   mlp_ratios=[8, 8, 4, 4], depths=depths)
        for name, depths in (('tiny', [2, 2, 2, 2]), ('small', [3, 4, 6, 3]),
                             ('medium', [3, 4, 18, 3]), ('large', [3, 8, 27, 3]))
    }
    ARCH_ALIASES = dict(t='tiny', s='small', m='medium', l='large')

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
        sr_ratios: Sequence[int] = (8, 4, 2, 1),
        la_sr_ratios: Sequence[int] = (1, 1, 1, 1),
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
                         kernel_size, attention, rank_restoration, sr_ratios, la_sr_ratios,
                         False, qkv_bias, out_indices, drop_rate, attn_drop_rate,
                         drop_path_rate, frozen_stages, with_cp, init_cfg)
        self.pos_drop = nn.Dropout(drop_rate)
        if self.num_stages == len(self.depths):
            # The released files hold a final norm that the released forward never applies.
            self.norm = LayerNorm(self.embed_dims[-1], eps=1e-6).requires_grad_(False)

    def make_patch_embed(self, stage: int, in_channels: int, embed_dims: int) -> PatchEmbed:
        stride = 2 if stage else 4
        return PatchEmbed(in_channels, embed_dims, stride, stride)

    def make_mlp(self, embed_dims: int, hidden_dims: int, drop_rate: float) -> nn.Module:
        return Mlp(embed_dims, hidden_dims, drop_rate)

    def add_stage_parts(self, stage: int, embed_dims: int, map_hw: Size) -> None:
        table = nn.Parameter(torch.zeros(1, map_hw[0] * map_hw[1], embed_dims))
        setattr(self, f'pos_embed{stage + 1}', table)
        setattr(self, f'resize_pos_embed{stage + 1}', TableResizer('bilinear'))
        setattr(self, f'pos_grid{stage + 1}', map_hw)

    def before_blocks(self, stage: int, x: Tensor, hw: Size) -> Tensor:
        table, grid = getattr(self, f'pos_embed{stage + 1}'), getattr(self, f'pos_grid{stage + 1}')
        resize = getattr(self, f'resize_pos_embed{stage + 1}')
        return self.pos_drop(x.add_(resize(table, grid, hw)))

    def stage_modules(self, stage: int) -> list[nn.Module | nn.Parameter]:
        return super().stage_modules(stage) + ([self.pos_embed1] if stage == 0 else [])
