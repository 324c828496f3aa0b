"""Export: one graph of a trained model for images of any size, as ExportedProgram and as ONNX.

A graph of ``torch.export`` has height, width and batch size as symbols, and refuses to be made
where a result would depend on how they compare; what it accepts it computes for every size from
``min_side`` on. ONNX files are made of that graph and compared with the model in ONNX Runtime.
"""

from __future__ import annotations

import importlib
import json
import logging
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path

import torch
from mmengine.config import Config
from mmengine.registry import MODELS, init_default_scope
from mmengine.utils import digit_version
from torch import Tensor, nn

from .. import __version__
from ..checkpoint import CheckpointError, load_backbone
from .config import scope_of, stem_of
from .errors import UserError, one_line, reported_as
from .export_layers import exportable_layers
from .inference import build_model
from .preflight import class_counts
from .weights import dataset_meta_of, read_weights

PARTS = ('model', 'backbone')
TOLERANCE = 1e-4  # of results, relative to the largest of them
MIN_SIDE = 64  # two cells of the last map, whose single cell torch would make a case of its own
MAX_SIDE = 16384  # torch wants the number of tokens below 2^31
OLDEST_TORCH = '2.9'
MIN_OPSET = 18  # older ones torch.onnx raises to it without a word
PACKAGES = ('onnx', 'onnxruntime', 'onnxscript')

Size = tuple[int, int]


@dataclass(frozen=True)
class Check:
    """A comparison of a graph with the model it was made of.

    Attributes:
        batch: images at once.
        height, width: of the images, in pixels.
        difference: the largest, relative to the largest result; of the worst output.
    """

    batch: int
    height: int
    width: int
    difference: float

    @property
    def passed(self) -> bool:
        return self.difference <= TOLERANCE  # False for NaN too


@dataclass
class ExportReport:
    """What :func:`export_onnx` wrote.

    Attributes:
        path: of the file.
        outputs: their names.
        opset: of the file.
        checks: a comparison with PyTorch for each size, all passed.
        metadata: what was written into the file beside the graph.
    """

    path: Path
    outputs: list[str]
    opset: int
    checks: list[Check] = field(default_factory=list)
    metadata: dict[str, str] = field(default_factory=dict)


class ExportableModel(nn.Module):
    """The tensors of an mm model: (B, C, H, W) images -> a tuple.

    Args:
        model: a whole model of a scope, or a backbone.
        scope: ``'mmseg'`` for logits (B, classes, H, W) at the size of the image, before the
            argmax; ``'mmpretrain'`` for logits (B, classes), before the softmax; ``'mmdet'`` for
            the maps of the neck (or the backbone where there is none); None for a backbone's maps.
        normalize: (mean, std) a channel, to take pixels from 0 to 255; None to take what the
            model's data preprocessor gives.
    """

    def __init__(self, model: nn.Module, scope: str | None,
                 normalize: tuple[Sequence[float], Sequence[float]] | None = None) -> None:
        super().__init__()
        self.model = model
        self.scope = scope
        self.normalizes = normalize is not None
        for name, values in zip(('mean', 'std'), normalize or ()):
            self.register_buffer(name, torch.tensor(values).view(1, -1, 1, 1))

    def forward(self, image: Tensor) -> tuple[Tensor, ...]:
        if self.normalizes:
            image = (image - self.mean) / self.std
        if self.scope == 'mmseg':
            meta = dict(img_shape=image.shape[2:], pad_shape=image.shape[2:],
                        ori_shape=image.shape[2:])
            out = self.model.encode_decode(image, [meta])
        elif self.scope == 'mmdet':
            out = self.model.extract_feat(image)
        elif self.scope == 'mmpretrain':
            out = self.model(image, mode='tensor')
        else:
            out = self.model(image)
        return (out,) if isinstance(out, Tensor) else tuple(out)

    def output_names(self) -> list[str]:
        """``logits``, or ``map0``, ``map1`` … from the finest on."""
        if self.scope in ('mmseg', 'mmpretrain'):
            return ['logits']
        with torch.no_grad():
            maps = self(torch.zeros(1, self.in_channels, MIN_SIDE, MIN_SIDE))
        return [f'map{i}' for i in range(len(maps))]

    @property
    def in_channels(self) -> int:
        backbone = getattr(self.model, 'backbone', self.model)
        return getattr(backbone, 'in_channels', 3)


def load_exportable(cfg: Config, checkpoint: str | os.PathLike | None, part: str = 'model',
                    normalize: bool = False) -> tuple[ExportableModel, dict[str, str]]:
    """The model of a config for export, and what a user of its graph has to know.

    Args:
        cfg: a config from :func:`load_config`; its model may be a backbone alone.
        checkpoint: of the whole model; for a backbone alone any file that ``init_cfg`` takes.
            None: random weights.
        part: ``'model'`` or ``'backbone'``.
        normalize: take pixels from 0 to 255 in place of normalised images.

    Raises:
        UserError: the model cannot be built, the checkpoint does not fit, or there is nothing to
            normalise with.
    """
    scope: str | None = scope_of(cfg)
    meta: dict = {}
    if checkpoint is None or _is_backbone(cfg):
        init_default_scope(scope)
        model_cfg = cfg.model.copy()
        if cfg.get('data_preprocessor') is not None and not _is_backbone(cfg):
            model_cfg.setdefault('data_preprocessor', cfg.data_preprocessor)
        torch.manual_seed(0)
        with reported_as(f'cannot build the model of config {stem_of(cfg)}'):
            model = MODELS.build(model_cfg).eval()
        if checkpoint is not None:
            _load_backbone(model, checkpoint)
    else:
        weights = read_weights(checkpoint)
        meta = dataset_meta_of(weights)
        model = build_model(cfg, weights)
    input_info = _input_info(model, cfg)
    classes = list(meta.get('classes') or []) or max(class_counts(model).values(), default=0)
    if part == 'backbone' and hasattr(model, 'backbone'):
        model = model.backbone
    if not hasattr(model, 'backbone'):
        scope = None
    constants = None
    if normalize:
        if 'mean' not in input_info:
            raise UserError(f'--normalize: config {cfg.filename} has no data_preprocessor with '
                            'mean and std; leave it out and normalise before the graph')
        constants = input_info['mean'], input_info['std']
    info = dict(config=stem_of(cfg), part='backbone' if scope is None else 'model',
                pixels='0 to 255' if normalize else 'normalised: (pixel - mean) / std',
                min_side=MIN_SIDE, flatten_mm=__version__, **input_info)
    if scope in ('mmseg', 'mmpretrain') and classes:
        info['classes'] = classes
    metadata = {key: value if isinstance(value, str) else json.dumps(value)
                for key, value in info.items()}
    return ExportableModel(model, scope, constants).eval(), metadata


def _is_backbone(cfg: Config) -> bool:
    return 'backbone' not in cfg.model and 'head' not in cfg.model


def _load_backbone(model: nn.Module, checkpoint: str | os.PathLike) -> None:
    try:
        report = load_backbone(model, checkpoint)
    except (FileNotFoundError, CheckpointError) as error:
        raise UserError(one_line(error)) from error
    lacking = report.missing + report.fresh
    if lacking:
        raise UserError(
            f'checkpoint {checkpoint} lacks {len(lacking)} parameters of the backbone '
            f'({", ".join(lacking[:3])}), which would be exported untrained; use the config it was '
            'trained with, or leave out those outputs (out_indices)')


def _input_info(model: nn.Module, cfg: Config) -> dict:
    """How an image becomes the input of the graph."""
    preprocessor = getattr(model, 'data_preprocessor', None)
    if not isinstance(getattr(preprocessor, 'mean', None), Tensor):
        return {}
    # mm reads images as BGR; the names of the switch differ between the libraries.
    swaps = any(getattr(preprocessor, name, False)
                for name in ('channel_conversion', '_channel_conversion', 'to_rgb'))
    info = dict(mean=preprocessor.mean.flatten().tolist(), std=preprocessor.std.flatten().tolist(),
                channel_order='RGB' if swaps else 'BGR')
    divisor = getattr(preprocessor, 'pad_size_divisor', 1)
    if divisor > 1:
        info['pad_size_divisor'] = divisor
    return info


# ---- torch.export


def export_program(model: nn.Module, shape: Size = (224, 224), *, in_channels: int = 3,
                   fixed_size: bool = False, min_side: int = MIN_SIDE
                   ) -> torch.export.ExportedProgram:
    """``torch.export.export`` of a model for any batch size, height and width.

    Args:
        model: takes (B, C, H, W) images; in eval mode.
        shape: (H, W) of the images it is traced with.
        in_channels: C.
        fixed_size: a graph for images of ``shape`` alone.
        min_side: smallest height and width of the graph.

    Returns:
        The program. ``program.module()(images)`` runs it, and refuses smaller images.

    Raises:
        UserError: torch is older than 2.9, or the model's results depend on the size in a way that
            one graph does not hold.
    """
    _check_torch()
    # Not square, so that height and width are not taken for one; a batch of 1 would be a constant.
    height, width = shape if fixed_size else (max(s, min_side) for s in (shape[0], shape[1] + 64))
    dims = {0: torch.export.Dim('batch', min=1)}
    if not fixed_size:
        dims |= {axis: torch.export.Dim(name, min=min_side, max=MAX_SIDE)
                 for axis, name in ((2, 'height'), (3, 'width'))}
    images = torch.zeros(3, in_channels, height, width)
    with torch.no_grad(), exportable_layers(model):
        try:
            return torch.export.export(model, (images,), dynamic_shapes=(dims,), strict=False)
        except Exception as error:  # a dozen kinds, of torch's own
            raise UserError(
                'torch.export cannot make one graph for all sizes of this model '
                f'({one_line(error)[:600]}); export it for one size with --fixed-size') from error


def _check_torch() -> None:
    if digit_version(torch.__version__) < digit_version(OLDEST_TORCH):
        raise UserError(f'export needs torch {OLDEST_TORCH} or later; this is {torch.__version__}')


# ---- ONNX


def export_onnx(model: ExportableModel, path: str | os.PathLike, shape: Size = (224, 224), *,
                metadata: dict[str, str] | None = None, opset: int | None = None,
                fixed_size: bool = False, verify_sizes: Sequence[Size] | None = None
                ) -> ExportReport:
    """Write a model as ONNX, after comparing the file with the model in ONNX Runtime.

    Args:
        model: from :func:`load_exportable`.
        path: of the file; an existing one is replaced.
        shape: (H, W) of the images it is traced with.
        metadata: texts for the ``metadata_props`` of the file.
        opset: version of the operators; torch's choice by default.
        fixed_size: a graph for images of ``shape`` alone; the batch stays free.
        verify_sizes: (H, W) to compare at, batches of 1 and 2 in turn; by default the shape and
            five others: smaller, larger, odd, not square, the smallest.

    Raises:
        UserError: a package is missing, the model has no such graph, or the file's results differ
            from the model's by more than ``TOLERANCE``; no file is left then.
    """
    onnx, runtime = _packages()
    newest = onnx.defs.onnx_opset_version()
    if opset is not None and not MIN_OPSET <= opset <= newest:
        raise UserError(f'opset {opset}: expected {MIN_OPSET} (the oldest torch.onnx writes) to '
                        f'{newest} (the newest of onnx {onnx.__version__})')
    path = Path(path)
    metadata = dict(metadata or {}, traced_size=f'{shape[0]}x{shape[1]}',
                    dynamic='batch' if fixed_size else 'batch, height, width')
    names = model.output_names()
    program = export_program(model, shape, in_channels=model.in_channels, fixed_size=fixed_size)
    with _quiet(), reported_as('torch.onnx cannot write this graph'):
        # Not optimize: with a fixed size its constant folding interpolates the position tables in
        # Python, for minutes. ONNX Runtime folds what is constant when it loads the file.
        proto = torch.onnx.export(program, input_names=['image'], output_names=names, dynamo=True,
                                  opset_version=opset, optimize=not fixed_size,
                                  verbose=False).model_proto
    version = max(item.version for item in proto.opset_import if item.domain in ('', 'ai.onnx'))
    if opset not in (None, version):
        raise UserError(f'opset {opset}: torch.onnx made {version} of this graph; '
                        'give that or leave it out')
    _name_axes(proto, fixed_size)
    for key, value in metadata.items():
        proto.metadata_props.add(key=key, value=value)
    part = path.with_name(path.name + '.part')
    with reported_as(f'cannot write {path}'):
        onnx.save(proto, part)
    try:
        with reported_as(f'ONNX Runtime does not load the graph of {path}'):
            session = runtime.InferenceSession(part, providers=['CPUExecutionProvider'])
        sizes = verify_sizes or ([shape] if fixed_size else default_sizes(shape))
        checks = verify(lambda images: session.run(None, {'image': images.numpy()}), model, sizes)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    return ExportReport(path, names, version, checks, metadata)


def verify(run: Callable[[Tensor], Sequence], model: ExportableModel, sizes: Sequence[Size]
           ) -> list[Check]:
    """Compare what ``run`` gives with the model, on random images.

    Args:
        run: takes (B, C, H, W), gives the outputs of the model as arrays or tensors.
        model: the model.
        sizes: (H, W), each compared once; batches of 1 and 2 take turns.

    Raises:
        UserError: they differ; the sentence names the first size and its difference.
    """
    checks = []
    generator = torch.Generator().manual_seed(0)
    for number, (height, width) in enumerate(sizes):
        images = torch.randn(1 + number % 2, model.in_channels, height, width, generator=generator)
        if model.normalizes:
            images = (images * 60 + 120).clamp(0, 255)
        with torch.no_grad():
            expected = model(images)
        with reported_as(f'the graph fails on images of {height}x{width}'):
            got = [torch.as_tensor(out) for out in run(images)]
        check = Check(len(images), height, width, _difference(got, expected))
        if not check.passed:
            raise UserError(
                f'the graph differs from the model by {check.difference:.1e} (relative) on '
                f'{check.batch} images of {height}x{width}, above {TOLERANCE:.0e}; nothing was '
                'written')
        checks.append(check)
    return checks


def _difference(got: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    if [out.shape for out in got] != [out.shape for out in expected]:
        return float('inf')
    differences = [((a - b).abs().max() / b.abs().max().clamp(min=1e-12)).item()
                   for a, b in zip(got, expected)]
    return max(differences, key=lambda d: float('inf') if d != d else d)  # NaN is the worst


def default_sizes(shape: Size) -> list[Size]:
    """The traced size and others: odd and smaller, odd and larger, not square, the smallest."""
    def odd(side: int, factor: float) -> int:
        return max(round(side * factor), MIN_SIDE) | 1

    height, width = shape
    return [(height, width), (odd(height, .6), odd(width, .8)), (odd(height, 1.2), width + 2),
            (odd(height, .8), odd(width, 1.5)), (max(height - 1, MIN_SIDE), odd(width, 1.1)),
            (MIN_SIDE, MIN_SIDE)]


def _packages() -> list:
    """The modules onnx and onnxruntime, and that onnxscript is there."""
    modules, missing = [], []
    for name in PACKAGES:
        try:
            modules.append(importlib.import_module(name))
        except ImportError:
            missing.append(name)
    if missing:
        raise UserError(f'ONNX export needs {", ".join(missing)}: pip install {" ".join(PACKAGES)}')
    return modules[:2]


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep what exporters tell about every rewrite out of the way."""
    logger = logging.getLogger('onnxscript')
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with open(os.devnull, 'w') as nowhere, redirect_stdout(nowhere):
            yield
    finally:
        logger.setLevel(level)
        sys.stdout.flush()


def _name_axes(proto, fixed_size: bool) -> None:
    """Call the free axes of the input batch, height and width."""
    axes = proto.graph.input[0].type.tensor_type.shape.dim
    for axis, name in ((0, 'batch'), (2, 'height'), (3, 'width')):
        if axis == 0 or not fixed_size:
            axes[axis].dim_param = name
