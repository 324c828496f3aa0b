"""FLatten-CSwin: focused stages over the whole map, softmax ones in cross-shaped stripes."""
from __future__ import annotations

from collections.abc import Sequence

import torch
from mmengine.registry import MODELS
from torch import Tensor, nn

from ..attention.focused import FocusedAttention
from ..attention.grid import Size, Windows, conv_with_full_cell, depthwise_conv
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
)
from .feed_forward import Mlp

WHOLE_MAP, FULL_HEIGHT, FULL_WIDTH = 'whole map', 'full height', 'full width'


class Stripes:
    """Stripes of one branch and their LePE (a 3x3 depthwise convolution of V); mixed into a core.

    The released parameter is ``get_v``. Zero padding of the convolution is at the stripe's border.
    """

    def build_stripes(self, embed_dims: int, shape: str, stripe_width: int) -> None:
        self.shape = shape
        self.stripe_width = stripe_width
        self.get_v = nn.Conv2d(embed_dims, embed_dims, 3, padding=1, groups=embed_dims)

    def windows(self, map_hw: Size) -> Windows:
        return Windows.over(map_hw, stripe_hw(self.shape, self.stripe_width, map_hw), False)

    def attend_in_stripes(self, q: Tensor, k: Tensor, v: Tensor, hw: Size) -> Tensor:
        """(B, H * W, C) each -> (B, H * W, C)."""
        windows = self.windows(hw)
        side = windows.window_hw
        valid = windows.valid_tokens(q.shape[0], q.device)
        q, k, v = (windows.split(t) for t in (q, k, v))
        out = self.attend_stripe(q, k, v, side, valid)
        out = out + depthwise_conv(v, side, self.get_v.weight, self.get_v.bias)
        return windows.merge(out)


def stripe_hw(shape: str, width: int, map_hw: Size) -> Size:
    """(h, w) of a stripe on a map."""
    return {WHOLE_MAP: map_hw, FULL_HEIGHT: (map_hw[0], width), FULL_WIDTH: (width, map_hw[1])}[
        shape]


class LinearStripes(Stripes):
    """Stripes of a branch around a linear core, mixed into it."""

    def __init__(self, embed_dims: int, num_heads: int, map_hw: Size, shape: str,
                 stripe_width: int, **core_cfg) -> None:
        stripe = Windows.over(map_hw, stripe_hw(shape, stripe_width, map_hw), False).window_hw
        super().__init__(embed_dims, num_heads, stripe, **core_cfg)
        self.build_stripes(embed_dims, shape, stripe_width)

    def attend_stripe(self, q: Tensor, k: Tensor, v: Tensor, hw: Size,
                      valid: Tensor | None) -> Tensor:
        return self.attend(q, k, v, hw, hw, valid)


class FocusedStripeAttention(LinearStripes, FocusedAttention):
    """Focused attention within the stripes of a branch: released ``attns.{b}`` of L blocks."""


class VariantStripeAttention(LinearStripes, VariantAttention):
    """Another linear attention in its place."""


class SoftmaxStripeAttention(Stripes, SoftmaxAttention):
    """CSwin's own attention within the stripes of a branch: released ``attns.{b}`` of S blocks."""

    def __init__(self, embed_dims: int, num_heads: int, shape: str, stripe_width: int,
                 attn_drop_rate: float) -> None:
        SoftmaxAttention.__init__(self, num_heads, attn_drop_rate)
        self.build_stripes(embed_dims, shape, stripe_width)

    def attend_stripe(self, q: Tensor, k: Tensor, v: Tensor, hw: Size,
                      valid: Tensor | None) -> Tensor:
        # A padded key is hidden from every query: (B * nW, 1, 1, keys).
        mask = None if valid is None else valid.transpose(1, 2)[:, None]
        return self.attend(q, k, v, hw, hw, mask)


class CSwinBlock(Block):
    """A block with its projections beside the norms, as the released names have it.

    Args:
        embed_dims: C.
        branches: one attention over the whole map or two on half the channels each.
        (others): see :class:`Block`.
    """

    def __init__(self, embed_dims: int, branches: list[nn.Module], mlp: nn.Module,
                 qkv_bias: bool, drop_rate: float, drop_path: float) -> None:
        super().__init__(embed_dims, None, mlp, drop_path, eps=1e-5)
        self.qkv = Linear(embed_dims, 3 * embed_dims, bias=qkv_bias)
        self.attns = nn.ModuleList(branches)
        self.proj = Linear(embed_dims, embed_dims)
        self.proj_drop = nn.Dropout(drop_rate)

    def mix(self, x: Tensor, hw: Size) -> Tensor:
        """(B, H * W, C) -> (B, H * W, C): each branch on its run of the channels of q, k and v."""
        count = len(self.attns)
        parts = project(self.qkv, x, 3 * count)  # q of each branch, k of each, v of each
        out = [attn.attend_in_stripes(*parts[i::count], hw) for i, attn in enumerate(self.attns)]
        return self.proj_drop(self.proj(torch.cat(out, dim=-1)))


class ConvNorm(nn.Module):
    """3x3 convolution of stride 2, then LayerNorm: released ``merge{i}``."""

    def __init__(self, embed_dims: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(embed_dims, 2 * embed_dims, 3, stride=2, padding=1)
        self.norm = LayerNorm(2 * embed_dims)

    def forward(self, x: Tensor, hw: Size) -> tuple[Tensor, Size]:
        """(B, H * W, C) -> (B, ceil(H / 2) * ceil(W / 2), 2 C) and its grid."""
        x = x.unflatten(1, hw).permute(0, 3, 1, 2)
        x, hw = to_tokens(conv_with_full_cell(self.conv, x))
        return self.norm(x), hw


class ConvEmbed(nn.Sequential):
    """7x7 convolution of stride 4 and LayerNorm: released ``stage1_conv_embed.{0,2}``."""

    def __init__(self, in_channels: int, embed_dims: int) -> None:
        # The module between is the released model's reshape; it only keeps the numbering.
        super().__init__(nn.Conv2d(in_channels, embed_dims, 7, stride=4, padding=2),
                         nn.Identity(), LayerNorm(embed_dims))

    def forward(self, x: Tensor) -> tuple[Tensor, Size]:
        """(B, C, H, W) -> (B, h * w, C') and (h, w)."""
        x, hw = to_tokens(conv_with_full_cell(self[0], x))
        return self[2](x), hw


@MODELS.register_module()
class FLattenCSwin(FLattenBackbone):
    """FLatten-CSwin of the paper: CSwin Transformer with focused linear attention.

    The first map has floor((side + 1) / 4) cells (at least one; 224 -> 56), as released; then
    sides halve upwards. The last stage's output passes the released final ``norm``; earlier
    outputs pass norms of their own (``norm0`` ...), which start fresh.

    A block has one branch over the whole map in the last stage and where its stripe is as wide as
    the map at the training size, else two branches (full-height and full-width stripes).

    Args:
        arch: ``'tiny'``, ``'small'``, ``'base'`` or a dict of embed_dims (of the first stage),
            depths, num_heads, mlp_ratio.
        attn_type: see :class:`FLattenBackbone`; the released models are ``'LLSS'``,
            ``'SSSS'`` is CSwin itself.
        split_size: stripe width of softmax blocks, one a stage (the released 384 models have
            1, 2, 12, 12).
        focused_split_size: stripe width of linear blocks, one a stage; None (default) attends to
            the whole map at every size, as the released models do at their training size.
        qkv_bias: bias of the q, k, v projections.
        drop_rate: dropout after projections.
        attn_drop_rate: dropout of the weights of softmax attention.
        (others): see :class:`FLattenBackbone`.
    """

    FAMILY = 'FLattenCSwin'
    ARCHS = dict(
        tiny=dict(embed_dims=64, depths=[2, 4, 18, 1], num_heads=[2, 4, 8, 16], mlp_ratio=4.),
        small=dict(embed_dims=64, depths=[2, 4, 32, 2], num_heads=[2, 4, 8, 16], mlp_ratio=4.),
        base=dict(embed_dims=96, depths=[3, 6, 29, 2], num_heads=[4, 8, 16, 32], mlp_ratio=4.),
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
        split_size: Sequence[int] = (1, 2, 7, 7),
        focused_split_size: Sequence[int] | None = None,
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
        for name, sizes in (('split_size', split_size), ('focused_split_size', focused_split_size)):
            if sizes is not None and (len(sizes) != len(self.depths) or min(sizes) < 1):
                raise ValueError(f'{self.FAMILY}: {name}={tuple(sizes)}; expected a stripe width '
                                 f'of at least 1 for each of the {len(self.depths)} stages')
        settings = self.arch_settings
        dims, mlp_ratio = settings['embed_dims'], settings['mlp_ratio']
        self.embed_dims = [dims * 2**i for i in range(len(self.depths))]
        self.check_widths(self.embed_dims, settings['num_heads'])
        self.attn_drop_rate = attn_drop_rate

        self.stage1_conv_embed = ConvEmbed(in_channels, dims)
        map_hw = tuple(max((side + 1) // 4, 1) for side in self.pretrain_hw)
        for i in range(self.num_stages):
            dims = self.embed_dims[i]
            blocks = nn.ModuleList()
            for kind, drop_path in zip(self.block_kinds[i], self.drop_path_rates[i]):
                sizes = split_size if kind == SOFTMAX else focused_split_size
                width = max(map_hw) if sizes is None else sizes[i]
                branches = self.make_branches(i, kind, dims, settings['num_heads'][i], map_hw,
                                              width)
                mlp = Mlp(dims, int(dims * mlp_ratio), drop_rate)
                blocks.append(CSwinBlock(dims, branches, mlp, qkv_bias, drop_rate, drop_path))
            self.add_module(f'stage{i + 1}', blocks)
            if i < self.num_stages - 1:
                self.add_module(f'merge{i + 1}', ConvNorm(dims))
            map_hw = tuple(-(-side // 2) for side in map_hw)
        for i in self.out_indices:
            self.add_module(self.norm_name(i), LayerNorm(self.embed_dims[i]))
        self.freeze_stages()

    def make_branches(self, stage: int, kind: str, embed_dims: int, num_heads: int, map_hw: Size,
                      width: int) -> list[nn.Module]:
        """The attention branches of one block."""
        if width >= max(map_hw) or stage == len(self.depths) - 1:
            shapes = [WHOLE_MAP]
        else:
            shapes = [FULL_HEIGHT, FULL_WIDTH]
            if num_heads % 2:
                raise ValueError(f'{self.FAMILY}: num_heads={num_heads} of stage {stage} cannot '
                                 'be shared by two branches of stripes; expected an even number')
        share = dict(embed_dims=embed_dims // len(shapes), num_heads=num_heads // len(shapes),
                     stripe_width=width)
        if kind == SOFTMAX:
            return [SoftmaxStripeAttention(shape=s, attn_drop_rate=self.attn_drop_rate, **share)
                    for s in shapes]
        attention = FocusedStripeAttention if kind == FOCUSED else VariantStripeAttention
        return [attention(shape=s, map_hw=map_hw, **share, **self.linear_cfg) for s in shapes]

    def norm_name(self, stage: int) -> str:
        return fresh_norm_name(stage, len(self.depths))

    def stage_modules(self, stage: int) -> list[nn.Module | nn.Parameter]:
        if stage == 0:
            return [self.stage1_conv_embed]
        names = (f'stage{stage}', f'merge{stage}', self.norm_name(stage - 1))
        return [getattr(self, name) for name in names if hasattr(self, name)]

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """(B, in_channels, H, W) -> a (B, C_i, H_i, W_i) for each of ``out_indices``."""
        self.check_images(x)
        x, hw = self.stage1_conv_embed(x)
        outs = []
        for i in range(self.num_stages):
            for block in getattr(self, f'stage{i + 1}'):
                x = self.run_block(block, x, hw)
            if i in self.out_indices:
                outs.append(to_map(getattr(self, self.norm_name(i))(x), hw).contiguous())
            if i < self.num_stages - 1:
                x, hw = getattr(self, f'merge{i + 1}')(x, hw)
        return tuple(outs)
