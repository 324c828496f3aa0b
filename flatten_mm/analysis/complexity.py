"""Parameters and FLOPs of any model an mm config describes, as the paper counts them.

One FLOP is a multiply-accumulate. The ops that count, and how much, are those of mmengine's
``get_model_complexity_info``, by which mmseg's and mmdet's own Swin models come out at the figures
the paper prints for its baselines. Two things differ from that tool:

* tensors are on the meta device, so nothing is computed and a 512x2048 UperNet takes a second;
* the attention of this package counts by its formula (equation 2 of the paper and the depthwise
  convolution, or what another linear attention has of them; q k^T and its product with v),
  however the core computes it, and the resizing of a position table as an interpolation.
"""
from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from math import prod
from types import MethodType
from typing import Any

import torch
import torch.nn.functional as F
from mmengine.config import Config
from mmengine.logging import print_log
from mmengine.registry import MODELS
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from ..attention import grid
from ..attention.focused import FocusedAttention
from ..attention.grid import Size, depthwise_conv
from ..attention.softmax import SoftmaxAttention
from ..attention.variants import VariantAttention
from ..backbones.base import FLattenBackbone

# (H, W) at which the paper reports FLOPs.
PAPER_SHAPES: dict[str, Size] = dict(mmseg=(512, 2048), mmdet=(800, 1280), mmpretrain=(224, 224))

aten = torch.ops.aten


@dataclass(frozen=True)
class Part:
    """Cost of one part of a model; ``flops`` are multiply-accumulates of one image."""

    name: str
    flops: int
    params: int


@dataclass(frozen=True)
class Complexity:
    """Cost of a whole model at one input size, and of its parts.

    Attributes:
        shape: (H, W) of the image.
        flops: multiply-accumulates of one forward pass of one image. Heads that run in training
            only (auxiliary heads) cost none.
        params: parameters of everything the config builds.
        parts: backbone stages, neck, heads; what belongs to none of them is called ``other``.
    """

    shape: Size
    flops: int
    params: int
    parts: tuple[Part, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain types, for JSON."""
        return asdict(self)

    def table(self) -> str:
        """The parts and the total as aligned text."""
        rows = [('part', 'FLOPs', 'params')]
        rows += [(p.name, f'{p.flops / 1e9:.2f} G', f'{p.params / 1e6:.2f} M')
                 for p in (*self.parts, Part('total', self.flops, self.params))]
        widths = [max(len(row[i]) for row in rows) for i in range(3)]
        return '\n'.join(f'{name:<{widths[0]}}  {flops:>{widths[1]}}  {params:>{widths[2]}}'
                         for name, flops, params in rows)


def measure(cfg: Config, shape: Size | None = None) -> Complexity:
    """Count the model that a config describes.

    A two-stage detector counts its box heads on the ``test_cfg.rpn.max_per_img`` best proposals
    and its mask heads on ``test_cfg.rcnn.max_per_img`` boxes: the most an image costs, which does
    not depend on weights or content. RoIAlign and other operators of mmcv count nothing.

    Args:
        cfg: config with ``model`` and ``default_scope``; no checkpoint is read.
        shape: (H, W) of the image; by default the size the paper reports, for a classifier the
            size it is built for.

    Raises:
        ValueError: ``default_scope`` is no mm library.
    """
    scope = cfg.get('default_scope')
    if scope not in PAPER_SHAPES:
        raise ValueError(f'default_scope={scope!r}; expected one of {", ".join(PAPER_SHAPES)}')
    shape = tuple(shape or default_shape(cfg))
    channels = cfg.model.get('backbone', {}).get('in_channels', 3)
    model = _build(cfg).to('meta')
    try:
        return _measure(model, (channels, *shape))
    except (RuntimeError, TypeError, ValueError) as error:
        # A model may look at values, which tensors without data do not have.
        print_log(f'counting on real tensors, since the model does not run without data ({error})',
                  logger='current')
    return _measure(_build(cfg), (channels, *shape))


def default_shape(cfg: Config) -> Size:
    """(H, W) at which the paper reports FLOPs; a classifier's is its own training size."""
    backbone = cfg.model.get('backbone', {})
    size = None
    if cfg.default_scope == 'mmpretrain':
        size = backbone.get('pretrain_img_size') or backbone.get('img_size')
    if size is None:
        return PAPER_SHAPES[cfg.default_scope]
    return (size, size) if isinstance(size, int) else tuple(size)


def _build(cfg: Config) -> nn.Module:
    with MODELS.switch_scope_and_registry(cfg.default_scope) as registry:
        return registry.build(copy.deepcopy(cfg.model)).eval()  # building may change a config


def _measure(model: nn.Module, image_shape: tuple[int, int, int]) -> Complexity:
    image = next(model.parameters()).new_zeros(1, *image_shape)
    counter = FlopCounterMode(display=False, custom_mapping=_mmengine_ops())
    own = _OwnFlops(model, counter)
    with torch.no_grad(), _attention_by_formula(model), _tables_by_interpolation(), \
            _without_roi_align(model), counter, own:
        _run(model, image)
    return _by_part(model, image_shape[1:], own.flops)


class _OwnFlops:
    """Tells which module ran what: the innermost one in its forward when an op was counted.

    Attributes:
        flops: module -> multiply-accumulates of its own, without those of modules inside it.
    """

    def __init__(self, model: nn.Module, counter: FlopCounterMode) -> None:
        self.flops: dict[nn.Module, int] = dict.fromkeys(model.modules(), 0)
        self._counter = counter
        self._running = [model]
        self._seen = 0

    def __enter__(self) -> _OwnFlops:
        self._hooks = []
        for module in self.flops:
            self._hooks.append(module.register_forward_pre_hook(self._enter))
            self._hooks.append(module.register_forward_hook(self._leave))
        return self

    def __exit__(self, *error: Any) -> None:
        self._book()
        for hook in self._hooks:
            hook.remove()

    def _enter(self, module: nn.Module, inputs: Any) -> None:
        self._book()
        self._running.append(module)

    def _leave(self, module: nn.Module, inputs: Any, outputs: Any) -> None:
        self._book()
        self._running.pop()

    def _book(self) -> None:
        total = self._counter.get_total_flops() // 2  # torch counts both halves of a MAC
        self.flops[self._running[-1]] += total - self._seen
        self._seen = total


def _run(model: nn.Module, image: Tensor) -> None:
    """One forward pass without post-processing."""
    if isinstance(getattr(model, 'decode_head', None), nn.Module) and not isinstance(
            model.decode_head, nn.ModuleList):
        model.decode_head(model.extract_feat(image))
    elif type(getattr(model, 'roi_head', None)).__name__ in ('StandardRoIHead', 'CascadeRoIHead'):
        _run_two_stage(model, image)
    elif type(model).__module__.startswith('mmdet.'):
        model(image, [_data_sample(image)], mode='tensor')
    else:
        model(image, mode='tensor')


def _data_sample(image: Tensor) -> Any:
    from mmdet.structures import DetDataSample
    size = tuple(image.shape[-2:])
    return DetDataSample(metainfo=dict(
        img_shape=size, ori_shape=size, pad_shape=size, batch_input_shape=size,
        scale_factor=(1., 1.)))


def _run_two_stage(model: nn.Module, image: Tensor) -> None:
    """A detector with proposals: every head on as many boxes as it may get."""
    maps = model.extract_feat(image)
    if model.with_rpn:
        model.rpn_head(maps)
    head = model.roi_head
    proposals = image.new_zeros(_limit(model.test_cfg, 'rpn'), 5)
    detections = image.new_zeros(_limit(model.test_cfg, 'rcnn'), 5)
    stages = ((i,) for i in range(head.num_stages)) if hasattr(head, 'num_stages') else ((),)
    for stage in stages:
        head._bbox_forward(*stage, maps, proposals)
        if head.with_mask:
            head._mask_forward(*stage, maps, detections)


def _limit(test_cfg: dict, part: str) -> int:
    return (test_cfg.get(part) or {}).get('max_per_img', 1000 if part == 'rpn' else 100)


@contextmanager
def _without_roi_align(model: nn.Module) -> Iterator[None]:
    """RoI features of the right shape and no content: RoIAlign knows no meta tensors."""
    layers = [module for module in model.modules() if hasattr(module, 'roi_layers')]
    with _replaced((layer, 'forward', _empty_roi_features) for layer in layers):
        yield


def _empty_roi_features(self: nn.Module, maps: Sequence[Tensor], rois: Tensor,
                        roi_scale_factor: float | None = None) -> Tensor:
    return rois.new_zeros(len(rois), self.out_channels, *self.roi_layers[0].output_size)


# ---- attention by its formula


@contextmanager
def _attention_by_formula(model: nn.Module) -> Iterator[None]:
    """Every core of this package replaced by the plain products its cost is defined by."""
    with _replaced(
        (module, 'attend', formula)
        for kind, formula in ((FocusedAttention, linear_products),
                              (VariantAttention, linear_products),
                              (SoftmaxAttention, softmax_products))
        for module in model.modules() if isinstance(module, kind)
    ):
        yield


@contextmanager
def _tables_by_interpolation() -> Iterator[None]:
    """Position tables resized by torch's interpolation, which mmengine counts, and by no product.
    """
    resize = grid.resize_grid_table
    grid.resize_grid_table = _interpolated
    try:
        yield
    finally:
        grid.resize_grid_table = resize


def _interpolated(table: Tensor, src_hw: Size, dst_hw: Size, mode: str = 'bicubic') -> Tensor:
    if tuple(src_hw) == tuple(dst_hw):
        return table
    table = table.transpose(1, 2).unflatten(2, src_hw)  # (1, C, H, W)
    table = F.interpolate(table, size=dst_hw, mode=mode, align_corners=False)
    return table.flatten(2).transpose(1, 2)


def linear_products(self: FocusedAttention | VariantAttention, q: Tensor, k: Tensor, v: Tensor,
                    query_hw: Size, key_hw: Size, valid_keys: Tensor | None = None) -> Tensor:
    """The products of focused linear attention (equation 2 and the DWC), values aside.

    N C d + M C d for k^T v and q (k^T v), N C for the normaliser, ks^2 N C for the DWC. The other
    linear attentions have the same but for what they leave out; hydra's heads have d = 1.
    """
    B, N, C = q.shape
    variant = getattr(self, 'variant', None)
    heads = C if variant and variant.is_by_channel else self.num_heads
    heads_q, heads_k, heads_v = (_split_heads(t, heads) for t in (q, k, v))
    out = heads_q @ (heads_k.transpose(-2, -1) @ heads_v)
    if variant is None or variant.is_normalised:
        out = out + heads_q @ heads_k.sum(-2, keepdim=True).transpose(-2, -1)
    out = out.transpose(1, 2).reshape(B, N, C)
    if self.dwc is None:
        return out
    grid_v = v if v.shape[1] == N else v.new_zeros(B, N, C)
    weight, bias = (t.repeat(self.num_heads, *(1 for _ in t.shape[1:]))
                    for t in (self.dwc.weight, self.dwc.bias))
    return out + depthwise_conv(grid_v, query_hw, weight, bias)


def softmax_products(self: SoftmaxAttention, q: Tensor, k: Tensor, v: Tensor, query_hw: Size,
                     key_hw: Size, attn_mask: Tensor | None = None) -> Tensor:
    """The two products of softmax attention, N M C each, values aside."""
    heads_q, heads_k, heads_v = (_split_heads(t, self.num_heads) for t in (q, k, v))
    out = heads_q @ heads_k.transpose(-2, -1) @ heads_v
    return out.transpose(1, 2).flatten(2)


def _split_heads(x: Tensor, num_heads: int) -> Tensor:
    return x.unflatten(2, (num_heads, -1)).transpose(1, 2)


@contextmanager
def _replaced(methods: Iterator[tuple[nn.Module, str, Callable]]) -> Iterator[None]:
    """Methods of single modules replaced for the time of the block."""
    done = []
    for module, name, function in methods:
        setattr(module, name, MethodType(function, module))
        done.append((module, name))
    try:
        yield
    finally:
        for module, name in done:
            delattr(module, name)


# ---- what ops count beside convolutions and products, as mmengine has it


def _mmengine_ops() -> dict[Any, Callable]:
    """Op -> its count; twice the multiply-accumulates, as torch's counter counts.

    Beside mmengine's, the linear layers that this package sends to oneDNN.
    """
    counts = {
        'native_layer_norm': partial(_norm, weight_at=2, with_weight=5, without=4),
        'native_group_norm': partial(_norm, weight_at=1, with_weight=5, without=4),
        'upsample_nearest2d': partial(_per_output, scale=1),
        'upsample_bilinear2d': partial(_per_output, scale=4),
        'grid_sampler_2d': partial(_per_output, scale=4),
        '_adaptive_avg_pool2d': _per_input,
    }
    for name in ('native_batch_norm', 'cudnn_batch_norm', '_native_batch_norm_legit_no_training',
                 '_batch_norm_no_update'):
        counts[name] = partial(_norm, weight_at=1, with_weight=2, without=1)
    ops = {getattr(aten, name): count for name, count in counts.items() if hasattr(aten, name)}
    if hasattr(torch.ops.mkldnn, '_linear_pointwise'):
        ops[torch.ops.mkldnn._linear_pointwise] = _linear
    return ops


def _linear(shape: Size, weight_shape: Size, *args: Any, out_shape: Any = None,
            **kwargs: Any) -> int:
    return 2 * prod(shape) * weight_shape[0]


def _norm(shape: Size, *args: Any, weight_at: int, with_weight: int, without: int,
          out_shape: Any = None, **kwargs: Any) -> int:
    affine = len(args) >= weight_at and args[weight_at - 1] is not None
    return 2 * prod(shape) * (with_weight if affine else without)


def _per_output(shape: Size, *args: Any, scale: int, out_shape: Size, **kwargs: Any) -> int:
    return 2 * prod(out_shape) * scale


def _per_input(shape: Size, *args: Any, out_shape: Any = None, **kwargs: Any) -> int:
    return 2 * prod(shape)


# ---- parts


def _by_part(model: nn.Module, shape: Size, own: dict[nn.Module, int]) -> Complexity:
    total = Part('total', sum(own.values()), sum(p.numel() for p in model.parameters()))
    parts = []
    left = dict(own)  # what no part has taken yet: shared modules count once
    seen: set[nn.Parameter] = set()
    for name, items in _parts_of(model):
        modules = {m for item in items if isinstance(item, nn.Module) for m in item.modules()}
        params = {p for item in items
                  for p in ([item] if isinstance(item, nn.Parameter) else item.parameters())}
        parts.append(Part(name, sum(left.pop(m, 0) for m in modules),
                          sum(p.numel() for p in params - seen)))
        seen |= params
    rest = Part('other', sum(left.values()), total.params - sum(p.params for p in parts))
    if rest.flops or rest.params:
        parts.append(rest)
    return Complexity(shape, total.flops, total.params, tuple(parts))


def _parts_of(model: nn.Module) -> Iterator[tuple[str, list[nn.Module | nn.Parameter]]]:
    """(name, modules) of the parts of a model, top-down."""
    for name, child in model.named_children():
        if name == 'data_preprocessor':
            continue
        if isinstance(child, FLattenBackbone):
            for stage in range(child.num_stages + 1):
                label = f'stage{stage}' if stage else 'patch_embed'
                yield f'{name}.{label}', child.stage_modules(stage)
        elif name in ('backbone', 'roi_head'):
            for inner, part in child.named_children():
                members = part if isinstance(part, nn.ModuleList) and name == 'backbone' else [part]
                for i, member in enumerate(members):
                    yield f'{name}.{inner}' + (f'.{i}' if member is not part else ''), [member]
        else:
            yield name, [child]
