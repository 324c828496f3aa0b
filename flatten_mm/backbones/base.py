"""What all five families share: arguments, blocks, freezing, starting weights."""
from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
import torch.nn as nn
import torch.utils.checkpoint as cp
from mmcv.cnn.bricks import DropPath
from mmengine.model import BaseModule
from mmengine.utils import to_2tuple
from torch import Tensor

from ..attention.grid import Size, TableResizer, is_traced
from ..attention.precision import LayerNorm, add_branch, narrowed
from ..attention.streaming import add_streamed, is_streamed
from ..attention.variants import VARIANTS
from ..checkpoint import load_backbone
from .feed_forward import add_in_parts, passes_in_parts

FOCUSED, SOFTMAX = 'focused', 'softmax'
ATTENTIONS = (FOCUSED, *VARIANTS, SOFTMAX)  # what ``attention`` of a backbone may be


class Block(nn.Module):
    """Pre-norm block of every family: x += attn(norm1(x)); x += mlp(norm2(x)).

    Args:
        embed_dims: C.
        attn: ``attn(x, hw)`` on (B, H * W, C); None where a subclass has its own :meth:`mix`.
        mlp: ``mlp(x, hw)`` on (B, H * W, C).
        drop_path: chance to drop a branch for a whole image in training.
        eps: of both norms; the released families differ.
    """

    def __init__(self, embed_dims: int, attn: nn.Module | None, mlp: nn.Module, drop_path: float,
                 eps: float) -> None:
        super().__init__()
        self.norm1 = LayerNorm(embed_dims, eps=eps)
        self.attn = attn
        self.norm2 = LayerNorm(embed_dims, eps=eps)
        self.mlp = mlp
        self.drop_path = DropPath(drop_path) if drop_path else nn.Identity()

    def mix(self, x: Tensor, hw: Size) -> Tensor:
        """Attention with its projections: (B, H * W, C) -> (B, H * W, C)."""
        return self.attn(x, hw)

    def forward(self, x: Tensor, hw: Size) -> Tensor:
        # Added in place to what the branch has made: one large tensor less to allocate.
        if is_streamed(self.attn, self.norm1, x, hw):
            x = add_streamed(self.attn, self.norm1, x, hw)
        else:
            x = add_branch(self.drop_path(self.mix(narrowed(self.norm1(x)), hw)), x)
        if passes_in_parts(self.mlp, self.norm2, x):
            return add_in_parts(self.mlp, self.norm2, x)
        return add_branch(self.drop_path(self.mlp(narrowed(self.norm2(x)), hw)), x)


class FLattenBackbone(BaseModule):
    """Base of the families. A subclass builds its stages and says how a stage runs.

    Subclasses set ``FAMILY`` (for messages) and ``ARCHS`` (settings by name) and implement
    ``forward`` and ``stage_modules``.

    Args:
        arch: name in ``ARCHS`` or a dict with the same keys.
        attn_type: a letter a stage: ``L`` linear attention, ``S`` the family's softmax
            attention, ``M`` mixed; with an ``M`` a number follows the letters, the count of
            leading linear blocks in each mixed stage (``'LMMS1'``).
        in_channels: channels of the input image.
        pretrain_img_size: training size of the position tables, a number or (H, W).
        focusing_factor: power p of the focused map; 1 switches the map off (ablation).
        kernel_size: of the depthwise convolution in linear blocks, odd.
        attention: which linear attention the linear blocks have: ``'focused'``, another of
            :data:`flatten_mm.attention.VARIANTS` (``'linear'``, ``'efficient'``, ``'hydra'``,
            ``'angular'``, ``'enhanced'``), or ``'softmax'``, which is an ``attn_type`` of S only.
        rank_restoration: False leaves the depthwise convolution out of the linear blocks, of the
            attentions that have one: focused (ablation), angular, enhanced.
        out_indices: stages to return, from 0, ascending. Stages after the last are not built,
            so that no parameter is left without a gradient.
        drop_path_rate: of the last block; grows linearly from 0 at the first.
        frozen_stages: stages 1..n and everything before them keep their weights and run in eval
            mode; 0 freezes the patch embedding alone, -1 nothing.
        with_cp: recompute each block in the backward pass to save memory.
        init_cfg: ``dict(type='Pretrained', checkpoint=PATH)`` reads a checkpoint through
            :func:`flatten_mm.checkpoint.load_backbone`.

    Raises:
        ValueError: an argument outside what the family allows.
    """

    FAMILY: ClassVar[str]
    ARCHS: ClassVar[dict[str, dict[str, Any]]]
    ARCH_ALIASES: ClassVar[dict[str, str]] = {}

    def __init__(
        self,
        arch: str | dict,
        attn_type: str,
        in_channels: int,
        pretrain_img_size: int | Size,
        focusing_factor: float,
        kernel_size: int,
        attention: str,
        rank_restoration: bool,
        out_indices: Sequence[int],
        drop_path_rate: float,
        frozen_stages: int,
        with_cp: bool,
        init_cfg: dict | list | None,
    ) -> None:
        if isinstance(init_cfg, dict) and 'checkpoint' in init_cfg:
            # --cfg-options model.backbone.init_cfg.checkpoint=FILE says all there is to say.
            init_cfg = dict(init_cfg, type=init_cfg.get('type', 'Pretrained'))
        super().__init__(init_cfg)
        self.arch_settings = self._resolve_arch(arch)
        self.depths: list[int] = list(self.arch_settings['depths'])
        self.attn_type = attn_type
        if attention not in ATTENTIONS:
            raise ValueError(f'{self.FAMILY}: unknown attention {attention!r}; expected one of '
                             f'{", ".join(ATTENTIONS)}')
        self.attention = attention
        self.block_kinds = parse_attn_type(self.FAMILY, attn_type, self.depths, attention)
        self.out_indices = self._check_out_indices(out_indices)
        self.num_stages = self.out_indices[-1] + 1
        if not -1 <= frozen_stages <= len(self.depths):
            raise ValueError(f'{self.FAMILY}: frozen_stages={frozen_stages}; expected -1 to '
                             f'{len(self.depths)}')
        if kernel_size < 1 or kernel_size % 2 == 0:
            raise ValueError(f'{self.FAMILY}: kernel_size={kernel_size} of the depthwise '
                             'convolution; expected an odd number such as 3, 5 or 7')
        if focusing_factor <= 0:
            raise ValueError(f'{self.FAMILY}: focusing_factor={focusing_factor}; expected a '
                             'positive power such as 3')
        if in_channels < 1:
            raise ValueError(f'{self.FAMILY}: in_channels={in_channels}; expected at least 1')
        self.in_channels = in_channels
        self.frozen_stages = frozen_stages
        self.with_cp = with_cp
        self.pretrain_hw: Size = to_2tuple(pretrain_img_size)
        if min(self.pretrain_hw) < 1:
            raise ValueError(f'{self.FAMILY}: pretrain_img_size={pretrain_img_size}; expected '
                             'sides of at least 1')
        # Of the core of a linear block, beside what the family gives it.
        self.linear_cfg: dict[str, Any] = dict(kernel_size=kernel_size,
                                               rank_restoration=rank_restoration)
        if attention == FOCUSED:
            self.linear_cfg['focusing_factor'] = focusing_factor
        else:
            self.linear_cfg['attention'] = attention
        self.drop_path_rates = self._drop_path_schedule(drop_path_rate)

    # ---- arguments

    def _resolve_arch(self, arch: str | dict) -> dict[str, Any]:
        required = set(next(iter(self.ARCHS.values())))
        if isinstance(arch, str):
            name = self.ARCH_ALIASES.get(arch, arch)
            if name not in self.ARCHS:
                raise ValueError(f'{self.FAMILY}: unknown arch {arch!r}; expected one of '
                                 f'{sorted(self.ARCHS)} or a dict with the keys {sorted(required)}')
            return self.ARCHS[name]
        if not isinstance(arch, dict) or set(arch) != required:
            raise ValueError(f'{self.FAMILY}: arch={arch!r}; a dict arch needs exactly the keys '
                             f'{sorted(required)}')
        return arch

    def _check_out_indices(self, out_indices: Sequence[int]) -> tuple[int, ...]:
        indices = (out_indices,) if isinstance(out_indices, int) else tuple(out_indices)
        allowed = range(len(self.depths))
        if not indices or any(i not in allowed for i in indices) or sorted(set(indices)) != list(
                indices):
            raise ValueError(f'{self.FAMILY}: out_indices={tuple(indices)}; expected ascending '
                             f'stage numbers from 0 to {allowed[-1]}')
        return indices

    def check_widths(self, embed_dims: Sequence[int], num_heads: Sequence[int]) -> None:
        """Raise ValueError unless there is a width and a dividing head count for each stage."""
        if not len(embed_dims) == len(num_heads) == len(self.depths):
            raise ValueError(f'{self.FAMILY}: {len(embed_dims)} widths, {len(num_heads)} head '
                             f'counts and {len(self.depths)} depths; expected one each a stage')
        for stage, (dims, heads) in enumerate(zip(embed_dims, num_heads)):
            if heads < 1 or dims % heads:
                raise ValueError(f'{self.FAMILY}: num_heads={heads} of stage {stage} does not '
                                 f'divide its width {dims}')

    def _drop_path_schedule(self, rate: float) -> list[list[float]]:
        if not 0 <= rate < 1:
            raise ValueError(f'{self.FAMILY}: drop_path_rate={rate}; expected 0 <= rate < 1')
        last = max(sum(self.depths) - 1, 1)
        flat = [rate * block / last for block in range(sum(self.depths))]
        starts = [sum(self.depths[:i]) for i in range(len(self.depths))]
        return [flat[s:s + d] for s, d in zip(starts, self.depths)]

    # ---- running

    def check_images(self, x: Tensor) -> None:
        """Raise ValueError unless ``x`` is a batch of images: float (B, in_channels, H, W)."""
        if not isinstance(x, Tensor):
            raise ValueError(f'{self.FAMILY}: input of type {type(x).__name__}; expected a tensor '
                             f'(B, {self.in_channels}, H, W)')
        expected = f'expected floating point images (B, {self.in_channels}, H, W)'
        if x.ndim != 4:
            raise ValueError(f'{self.FAMILY}: input of shape {tuple(x.shape)}; {expected}'
                             + (', so x[None] for one image' if x.ndim == 3 else ''))
        if x.shape[1] != self.in_channels:
            raise ValueError(f'{self.FAMILY}: input of shape {tuple(x.shape)} with {x.shape[1]} '
                             f'channels; {expected}, or set in_channels={x.shape[1]}')
        if not x.is_floating_point():
            raise ValueError(f'{self.FAMILY}: input of {x.dtype}; {expected}, normalised as by '
                             'the data_preprocessor of a config')
        if not is_traced() and 0 in x.shape:
            raise ValueError(f'{self.FAMILY}: input of shape {tuple(x.shape)} is empty; '
                             f'{expected} with something in it')

    def run_block(self, block: nn.Module, x: Tensor, hw: Size) -> Tensor:
        """One block on (B, H * W, C) tokens, recomputed in the backward pass with ``with_cp``."""
        if self.with_cp and self.training and torch.is_grad_enabled():
            return cp.checkpoint(block, x, hw, use_reentrant=False)
        return block(x, hw)

    # ---- mm behaviour

    def stage_modules(self, stage: int) -> list[nn.Module | nn.Parameter]:
        """What ``frozen_stages`` freezes at ``stage``; 0 is the patch embedding before stage 1."""
        raise NotImplementedError

    def freeze_stages(self) -> None:
        """Stop gradients and random layers in the stages that ``frozen_stages`` names."""
        for stage in range(min(self.frozen_stages, self.num_stages) + 1):
            for item in self.stage_modules(stage):
                if isinstance(item, nn.Parameter):
                    item.requires_grad_(False)
                else:
                    item.eval().requires_grad_(False)

    def train(self, mode: bool = True) -> FLattenBackbone:
        """Set the mode, keep frozen stages in eval mode, forget resized tables; returns self."""
        super().train(mode)
        self.freeze_stages()
        for module in self.modules():
            for value in vars(module).values():
                if isinstance(value, TableResizer):
                    value.clear()
        return self

    def init_weights(self) -> None:
        """Start as the family's authors do, then read the checkpoint that ``init_cfg`` names.

        Raises:
            flatten_mm.checkpoint.CheckpointError: the file is not this backbone's.
        """
        pretrained = isinstance(self.init_cfg, dict) and self.init_cfg.get('type') == 'Pretrained'
        if self.init_cfg and not pretrained:
            super().init_weights()
            return
        for name, parameter in self.named_parameters(recurse=False):
            if 'pos_embed' in name:
                trunc_normal(parameter)
        for module in self.modules():
            self.init_module(module)
        if pretrained:
            load_backbone(self, self.init_cfg['checkpoint'])
        self._is_init = True

    def init_module(self, module: nn.Module) -> None:
        """Start one module: linear layers truncated normal, norms at 1 and 0."""
        if isinstance(module, nn.Linear):
            trunc_normal(module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, nn.LayerNorm):
            nn.init.ones_(module.weight)
            nn.init.zeros_(module.bias)


def trunc_normal(tensor: Tensor, std: float = 0.02) -> None:
    """Truncated normal start in place, cut at +-2 as the released models do."""
    nn.init.trunc_normal_(tensor, std=std, a=-2., b=2.)


def init_conv_by_fan_out(conv: nn.Conv2d) -> None:
    """Normal with std sqrt(2 / fan_out), fan_out a group; bias 0 (PVTv2)."""
    fan_out = conv.kernel_size[0] * conv.kernel_size[1] * conv.out_channels // conv.groups
    nn.init.normal_(conv.weight, 0, math.sqrt(2. / fan_out))
    if conv.bias is not None:
        nn.init.zeros_(conv.bias)


def fresh_norm_name(stage: int, num_stages: int) -> str:
    """Name of an output norm: the released final ``norm`` last, ``norm{stage}`` before it."""
    return 'norm' if stage == num_stages - 1 else f'norm{stage}'


def to_map(x: Tensor, hw: Size) -> Tensor:
    """(B, H * W, C) tokens -> (B, C, H, W), a view that is channels last in memory."""
    return x.transpose(1, 2).reshape(x.shape[0], -1, *hw)


def to_tokens(x: Tensor) -> tuple[Tensor, Size]:
    """(B, C, H, W) -> (B, H * W, C) and (H, W)."""
    hw = x.shape[2], x.shape[3]
    if torch.jit.is_tracing():  # which makes tensors of sides, though its graph is of one size
        hw = int(hw[0]), int(hw[1])
    return x.flatten(2).transpose(1, 2), hw


def parse_attn_type(family: str, attn_type: str, depths: Sequence[int],
                    attention: str = FOCUSED) -> list[list[str]]:
    """``'LLSS'`` or ``'LMMS1'`` -> ``attention`` or ``'softmax'`` for every block of every stage.

    Raises:
        ValueError: wrong length, unknown letter, or an M without its number.
    """
    if not isinstance(attn_type, str):
        raise ValueError(f'{family}: attn_type={attn_type!r}; expected a letter a stage, such as '
                         f'{"L" * len(depths)!r}')
    letters, number = attn_type[:len(depths)], attn_type[len(depths):]
    if len(letters) != len(depths) or set(letters) - set('LSM') or (number and not
                                                                   number.isdecimal()):
        raise ValueError(
            f'{family}: attn_type={attn_type!r}; expected {len(depths)} letters of L '
            '(linear), S (softmax) and M (mixed), and after an M one number, as in '
            f'{"L" * len(depths)!r} or {"M" * len(depths) + "1"!r}')
    if ('M' in letters) != bool(number):
        raise ValueError(
            f'{family}: attn_type={attn_type!r}; a number after the letters, the count of leading '
            'linear blocks, goes with M stages and M stages need it, as in '
            f'{"L" + "M" * (len(depths) - 1) + "1"!r}')
    kinds = []
    for letter, depth in zip(letters, depths):
        linear = {'L': depth, 'S': 0, 'M': min(int(number or 0), depth)}[letter]
        kinds.append([attention] * linear + [SOFTMAX] * (depth - linear))
    return kinds
