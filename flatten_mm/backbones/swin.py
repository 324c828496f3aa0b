"""FLatten-Swin: focused stages over the whole map (or large windows), softmax ones in windows."""
from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from mmengine.registry import MODELS
from torch import Tensor, nn

from ..attention.focused import FocusedAttention
from ..attention.grid import Size, TableResizer, Windows, conv_with_full_cell
from ..attention.linear import Linear, project
from ..attention.precision import LayerNorm
from ..attention.softmax import SoftmaxAttention
from ..attention.variants import VariantAttention
from .base import (
    FOCUSED,
    SOFTMAX,
    Block,
    FLattenBackbone,
    fresh_norm_name,
    to_map,
    to_tokens,
    trunc_normal,
)
from .feed_forward import Mlp

MASKED_LOGIT = -100.  # what Swin adds to the logits of pairs that may not see each other


class LinearWindows:
    """Projections and windows, or the whole map as one window; mixed into a linear core.

    Args:
        embed_dims: C.
        num_heads: heads.
        window_hw: (h, w) of a window at the training size.
        is_global: the window is the whole map at any size.
        shifted: roll by half a window first (only where windows are smaller than the map).
        qkv_bias: bias of the q, k, v projection.
        drop_rate: dropout after the output projection.
        core_cfg: further arguments of the core.
    """

    def __init__(self, embed_dims: int, num_heads: int, window_hw: Size, is_global: bool,
                 shifted: bool, qkv_bias: bool, drop_rate: float, **core_cfg) -> None:
        super().__init__(embed_dims, num_heads, window_hw, **core_cfg)
        self.window_hw = window_hw
        self.is_global = is_global
        self.shifted = shifted
        self.qkv = Linear(embed_dims, 3 * embed_dims, bias=qkv_bias)
        self.proj = Linear(embed_dims, embed_dims)
        self.proj_drop = nn.Dropout(drop_rate)

    def windows(self, map_hw: Size) -> Windows:
        window_hw = map_hw if self.is_global else self.window_hw
        return Windows.over(map_hw, window_hw, self.shifted).uncropped()

    def has_own_keys(self, hw: Size) -> bool:
        return self.windows(hw).is_whole

    def queries(self, x: Tensor) -> Tensor:
        """(B, N, C) -> q (B, N, C)."""
        return project(self.qkv, x, 3, slice(1))[0]

    def keys_values(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """(B, N, C) -> k, v (B, N, C)."""
        return project(self.qkv, x, 3, slice(1, 3))

    def forward(self, x: Tensor, hw: Size) -> Tensor:
        """(B, H * W, C) -> (B, H * W, C)."""
        windows = self.windows(hw)
        valid = windows.valid_tokens(x.shape[0], x.device)
        q, k, v = project(self.qkv, windows.split(x), 3)
        side = windows.window_hw
        return self.proj_drop(self.proj(windows.merge(self.attend(q, k, v, side, side, valid))))


class FocusedWindowAttention(LinearWindows, FocusedAttention):
    """Focused attention of Swin and DeiT: released ``attn.*`` of L blocks."""


class VariantWindowAttention(LinearWindows, VariantAttention):
    """Another linear attention in its place."""


class SoftmaxWindowAttention(SoftmaxAttention):
    """Swin's shifted-window attention with relative position bias.

    On a map with a side shorter than the window, the window is cropped to the map and reads the
    entries of the same bias table that belong to the offsets it has.
    """

    def __init__(self, embed_dims: int, num_heads: int, window_hw: Size, shifted: bool,
                 qkv_bias: bool, drop_rate: float, attn_drop_rate: float) -> None:
        super().__init__(num_heads, attn_drop_rate)
        self.window_hw = window_hw
        self.shifted = shifted
        self.qkv = Linear(embed_dims, 3 * embed_dims, bias=qkv_bias)
        self.proj = Linear(embed_dims, embed_dims)
        self.proj_drop = nn.Dropout(drop_rate)
        offsets = (2 * window_hw[0] - 1) * (2 * window_hw[1] - 1)
        self.relative_position_bias_table = nn.Parameter(torch.zeros(offsets, num_heads))

    def windows(self, map_hw: Size) -> Windows:
        return Windows.over(map_hw, self.window_hw, self.shifted)

    def relative_bias(self, window_hw: Size) -> Tensor:
        """(heads, h * w, h * w): a bias for each query and key of a window of ``window_hw``."""
        table, (h, w), (full_h, full_w) = (
            self.relative_position_bias_table, window_hw, self.window_hw)
        token = torch.arange(h * w, device=table.device)
        rows, columns = token // w, token % w
        row_offset = rows[:, None] - rows[None, :] + full_h - 1
        column_offset = columns[:, None] - columns[None, :] + full_w - 1
        index = row_offset * (2 * full_w - 1) + column_offset
        return table[index.flatten()].view(h * w, h * w, -1).permute(2, 0, 1)

    def forward(self, x: Tensor, hw: Size) -> Tensor:
        """(B, H * W, C) -> (B, H * W, C)."""
        windows = self.windows(hw)
        q, k, v = project(self.qkv, windows.split(x), 3)
        bias = self.relative_bias(windows.window_hw).to(q.dtype)
        visible = windows.attention_mask(x.shape[0], x.device)
        if visible is not None:
            bias = bias + MASKED_LOGIT * (~visible)[:, None].to(q.dtype)  # (B * nW, heads, N, N)
        side = windows.window_hw
        return self.proj_drop(self.proj(windows.merge(self.attend(q, k, v, side, side, bias))))


class PatchMerging(nn.Module):
    """2x2 cells to one token of twice the width; odd sides are padded, so sides halve upwards."""

    def __init__(self, embed_dims: int) -> None:
        super().__init__()
        self.norm = LayerNorm(4 * embed_dims)
        self.reduction = Linear(4 * embed_dims, 2 * embed_dims, bias=False)

    def forward(self, x: Tensor, hw: Size) -> tuple[Tensor, Size]:
        """(B, H * W, C) -> (B, ceil(H / 2) * ceil(W / 2), 2 C) and its grid."""
        H, W = hw
        x = F.pad(x.unflatten(1, hw), (0, 0, 0, 1, 0, 1))  # of use where a side is odd
        # Released order of the four pixels: (row, column) = (0,0), (1,0), (0,1), (1,1).
        x = torch.cat([x[:, r:H + r:2, c:W + c:2] for c in (0, 1) for r in (0, 1)], dim=-1)
        x, hw = to_tokens(x.permute(0, 3, 1, 2))
        return self.reduction(self.norm(x)), hw


class SwinPatchEmbed(nn.Module):
    """4x4 patches, the image padded (bottom, right) to a multiple: sides are ceil(side / 4)."""

    PATCH = 4

    def __init__(self, in_channels: int, embed_dims: int) -> None:
        super().__init__()
        self.proj = nn.Conv2d(in_channels, embed_dims, self.PATCH, self.PATCH)
        self.norm = LayerNorm(embed_dims)

    def forward(self, x: Tensor) -> tuple[Tensor, Size]:
        """(B, C, H, W) -> (B, h * w, C') and (h, w)."""
        # As much as may be needed: the convolution drops cells that are not full.
        x = F.pad(x, (0, self.PATCH - 1, 0, self.PATCH - 1))
        x, hw = to_tokens(conv_with_full_cell(self.proj, x))
        return self.norm(x), hw


class SwinStage(nn.Module):
    """Blocks of one resolution and the patch merging after them: released ``layers.{i}``."""

    def __init__(self, blocks: list[nn.Module], downsample: nn.Module | None) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)
        self.downsample = downsample


@MODELS.register_module()
class FLattenSwin(FLattenBackbone):
    """FLatten-Swin of the paper: Swin Transformer with focused linear attention in early stages.

    Maps have ceil(side / 4), then halve upwards, like mmdet's Swin. The last stage's output
    passes the released final ``norm``; earlier outputs pass norms of their own (``norm0`` ...),
    which start fresh, as in mmdet's Swin.

    Args:
        arch: ``'tiny'``, ``'small'``, ``'base'`` or a dict of embed_dims (of the first stage),
            depths, num_heads, mlp_ratio.
        attn_type: see :class:`FLattenBackbone`; the released models are ``'LLSS'``,
            ``'SSSS'`` is Swin itself.
        window_size: of linear blocks, in cells of their map. None (default) attends to the whole
            map at every size, which is what the released 56 (224x224) and 96 (384x384) do at
            their training size.
        softmax_window_size: of softmax blocks (the released 384 models have 12).
        use_abs_pos_embed: add a learned position table after the patch embedding.
        qkv_bias: bias of the q, k, v projections.
        drop_rate: dropout after projections and the patch embedding.
        attn_drop_rate: dropout of the weights of softmax attention.
        (others): see :class:`FLattenBackbone`.
    """

    FAMILY = 'FLattenSwin'
    ARCHS = dict(
        tiny=dict(embed_dims=96, depths=[2, 2, 6, 2], num_heads=[3, 6, 12, 24], mlp_ratio=4.),
        small=dict(embed_dims=96, depths=[2, 2, 18, 2], num_heads=[3, 6, 12, 24], mlp_ratio=4.),
        base=dict(embed_dims=128, depths=[2, 2, 18, 2], num_heads=[4, 8, 16, 32], mlp_ratio=4.),
    )
    ARCH_ALIASES = dict(t='tiny', s='small', b='base')

    def __init__(
        self,
        arch: str | dict = 'tiny',
        attn_type: str = 'LLSS',
        in_channels: int = 3,
        pretrain_img_size: int | Size = 224,
        focusing_factor: float = 3,
        kernel_size: int = 5,
        attention: str = 'focused',
        rank_restoration: bool = True,
        window_size: int | None = None,
        softmax_window_size: int = 7,
        use_abs_pos_embed: bool = False,
        qkv_bias: bool = True,
        out_indices: Sequence[int] = (0, 1, 2, 3),
        drop_rate: float = 0.,
        attn_drop_rate: float = 0.,
        drop_path_rate: float = 0.2,
        frozen_stages: int = -1,
        with_cp: bool = False,
        init_cfg: dict | list | None = None,
    ) -> None:
        super().__init__(arch, attn_type, in_channels, pretrain_img_size, focusing_factor,
                         kernel_size, attention, rank_restoration, out_indices, drop_path_rate,
                         frozen_stages, with_cp, init_cfg)
        for name, size in (('window_size', window_size),
                           ('softmax_window_size', softmax_window_size)):
            if size is not None and size < 1:
                raise ValueError(f'{self.FAMILY}: {name}={size}; expected at least 1'
                                 + (' or None for the whole map' if name == 'window_size' else ''))
        settings = self.arch_settings
        dims, mlp_ratio = settings['embed_dims'], settings['mlp_ratio']
        self.embed_dims = [dims * 2**i for i in range(len(self.depths))]
        self.check_widths(self.embed_dims, settings['num_heads'])

        self.patch_embed = SwinPatchEmbed(in_channels, dims)
        map_hw = tuple(-(-side // SwinPatchEmbed.PATCH) for side in self.pretrain_hw)
        self.pos_grid = map_hw
        self.absolute_pos_embed = (
            nn.Parameter(torch.zeros(1, map_hw[0] * map_hw[1], dims)) if use_abs_pos_embed else None
        )
        self.resize_pos_embed = TableResizer('bicubic')
        self.pos_drop = nn.Dropout(drop_rate)

        linear_attention = (
            FocusedWindowAttention if attention == FOCUSED else VariantWindowAttention)
        self.layers = nn.ModuleList()
        for i in range(self.num_stages):
            common = dict(embed_dims=self.embed_dims[i], num_heads=settings['num_heads'][i],
                          qkv_bias=qkv_bias, drop_rate=drop_rate)
            blocks = []
            for j, (kind, drop_path) in enumerate(
                    zip(self.block_kinds[i], self.drop_path_rates[i])):
                size = softmax_window_size if kind == SOFTMAX else window_size
                window_hw = map_hw if size is None else (min(size, *map_hw),) * 2
                common.update(window_hw=window_hw, shifted=j % 2 == 1)
                attn = (
                    SoftmaxWindowAttention(attn_drop_rate=attn_drop_rate, **common)
                    if kind == SOFTMAX
                    else linear_attention(is_global=size is None, **common, **self.linear_cfg)
                )
                mlp = Mlp(self.embed_dims[i], int(self.embed_dims[i] * mlp_ratio), drop_rate)
                blocks.append(Block(self.embed_dims[i], attn, mlp, drop_path, eps=1e-5))
            merging = PatchMerging(self.embed_dims[i]) if i < self.num_stages - 1 else None
            self.layers.append(SwinStage(blocks, merging))
            map_hw = tuple(-(-side // 2) for side in map_hw)
        for i in self.out_indices:
            self.add_module(self.norm_name(i), LayerNorm(self.embed_dims[i]))
        self.freeze_stages()

    def norm_name(self, stage: int) -> str:
        return fresh_norm_name(stage, len(self.depths))

    def init_module(self, module: nn.Module) -> None:
        super().init_module(module)
        if isinstance(module, SoftmaxWindowAttention):
            trunc_normal(module.relative_position_bias_table)

    def stage_modules(self, stage: int) -> list[nn.Module | nn.Parameter]:
        if stage == 0:
            table = self.absolute_pos_embed
            return [self.patch_embed] + ([] if table is None else [table])
        norm = getattr(self, self.norm_name(stage - 1), None)
        return [self.layers[stage - 1]] + ([] if norm is None else [norm])

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """(B, in_channels, H, W) -> a (B, C_i, H_i, W_i) for each of ``out_indices``."""
        self.check_images(x)
        x, hw = self.patch_embed(x)
        if self.absolute_pos_embed is not None:
            x = x + self.resize_pos_embed(self.absolute_pos_embed, self.pos_grid, hw)
        x = self.pos_drop(x)
        outs = []
        for i, stage in enumerate(self.layers):
            for block in stage.blocks:
                x = self.run_block(block, x, hw)
            if i in self.out_indices:
                outs.append(to_map(getattr(self, self.norm_name(i))(x), hw).contiguous())
            if stage.downsample is not None:
                x, hw = stage.downsample(x, hw)
        return tuple(outs)
