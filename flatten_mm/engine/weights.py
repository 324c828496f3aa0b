"""Loading a checkpoint so that nothing of the model is silently left out."""

from __future__ import annotations

import os
from dataclasses import dataclass

from torch import Tensor, nn

from ..checkpoint import Checkpoint, CheckpointError, identify, read_checkpoint
from ..checkpoint.load import check_finite
from .errors import UserError, one_line
from .preflight import class_counts
from .runner import warn

# Parts that exist in training only, so that a config for testing may lack or add them.
_OPTIONAL = ('data_preprocessor.', 'auxiliary_head.')


def read_weights(path: str | os.PathLike) -> Checkpoint:
    """Read a checkpoint file.

    Raises:
        UserError: The file is missing, damaged or no checkpoint.
    """
    try:
        return read_checkpoint(path)
    except (FileNotFoundError, CheckpointError) as error:
        raise UserError(one_line(error)) from error


def load_weights(model: nn.Module, checkpoint: Checkpoint) -> None:
    """Load every parameter of a whole model: backbone, neck and heads.

    Args:
        model: What the config describes.
        checkpoint: A file that mm saved; keys as in the model.

    Raises:
        UserError: The classes differ (both counts are named), the file is of another
            architecture (parameters are missing, left over or of another shape), or holds weights
            that are not finite or no floating-point numbers.
    """
    weights = {key.removeprefix('module.'): value for key, value in checkpoint.state_dict.items()}
    check_values(model, checkpoint, weights)
    mismatch = _load(model, weights)
    if not mismatch:
        return
    counts = _class_mismatch(model, checkpoint, weights, mismatch)
    if counts is not None:
        head, own, other = counts
        raise UserError(
            f'checkpoint {checkpoint.path} was trained for {other} classes, but {head} of the '
            f'config has num_classes={own}; use the config (or --classes) it was trained with')
    identity = identify(weights)
    if identity is not None and not any(key.startswith('backbone.') for key in weights):
        raise UserError(
            f'checkpoint {checkpoint.path} is a backbone or classifier ({identity}) as its authors '
            'save it, not a whole model of mm; convert it with tools/convert_checkpoint.py '
            '--to classifier, or name it in model.backbone.init_cfg.checkpoint to train from it')
    raise UserError(f'checkpoint {checkpoint.path} does not fit the model of the config: '
                    f'{mismatch}; use the config it was trained with')


def check_values(model: nn.Module, checkpoint: Checkpoint, weights: dict[str, Tensor]) -> None:
    """Check that weights are finite and of a floating-point type where the model's are.

    Args:
        model: Whose parameters count.
        checkpoint: The file, named in errors.
        weights: Its tensors under the names of the model.

    Raises:
        UserError: One is not; the sentence names it.
    """
    own = model.state_dict()
    used = {key: value for key, value in weights.items() if key in own}
    for key, value in used.items():
        if own[key].is_floating_point() and not value.is_floating_point():
            raise UserError(f'checkpoint {checkpoint.path}: {key} is {value.dtype}; expected '
                            f'{own[key].dtype} or another floating-point type')
    try:
        check_finite(used, checkpoint)
    except CheckpointError as error:
        raise UserError(one_line(error)) from error
    others = sorted({str(value.dtype).removeprefix('torch.') for key, value in used.items()
                     if value.dtype != own[key].dtype})
    if others:
        warn(f'checkpoint {checkpoint.path}: weights of type {", ".join(others)} are converted to '
             'those of the model')


def dataset_meta_of(checkpoint: Checkpoint) -> dict:
    """``dataset_meta`` that mm saved with the weights (classes, palette), {} without."""
    meta = checkpoint.meta.get('meta')
    found = meta.get('dataset_meta') if isinstance(meta, dict) else None
    return found if isinstance(found, dict) else {}


def warn_of_other_names(checkpoint: Checkpoint, metainfo: dict) -> None:
    """Log a warning where a data set and the checkpoint name equally many classes differently."""
    trained, own = dataset_meta_of(checkpoint).get('classes'), metainfo.get('classes')
    if trained and own and list(trained) != list(own):
        warn(f'the checkpoint was trained for classes {list(trained)[:10]}, the data set has '
             f'{list(own)[:10]}: results compare them by number')


@dataclass
class _Mismatch:
    """What keeps weights from fitting a model."""

    total: int
    missing: list[str]
    unexpected: list[str]
    shapes: dict[str, tuple[tuple, tuple]]  # key -> (model's, file's)

    def __bool__(self) -> bool:
        return bool(self.missing or self.unexpected or self.shapes)

    def __str__(self) -> str:
        parts = []
        if self.missing:
            parts.append(f'{len(self.missing)} of its {self.total} parameters are not in the file '
                         f'({_some(self.missing)})')
        if self.unexpected:
            parts.append(f'{len(self.unexpected)} of the file are not in the model '
                         f'({_some(self.unexpected)})')
        if self.shapes:
            key, (own, other) = next(iter(self.shapes.items()))
            parts.append(f'{len(self.shapes)} are of another shape ({key} is {other} in the file, '
                         f'{own} in the model)')
        return ', '.join(parts)


def _load(model: nn.Module, weights: dict[str, Tensor]) -> _Mismatch:
    """Load, and tell what does not fit once the model's own hooks have adapted the weights."""
    own = model.state_dict()
    shapes = {}
    try:
        result = model.load_state_dict(weights, strict=False)
        missing, unexpected = result.missing_keys, result.unexpected_keys
    except RuntimeError:  # sizes differ
        missing = [key for key in own if key not in weights]
        unexpected = [key for key in weights if key not in own]
        shapes = {key: (tuple(value.shape), tuple(weights[key].shape))
                  for key, value in own.items()
                  if key in weights and value.shape != weights[key].shape}
    return _Mismatch(len(own), _needed(missing), _needed(unexpected), shapes)


def _needed(keys: list[str]) -> list[str]:
    return [key for key in keys if not key.startswith(_OPTIONAL)]


def _class_mismatch(model: nn.Module, checkpoint: Checkpoint, weights: dict[str, Tensor],
                    mismatch: _Mismatch) -> tuple[str, int, int] | None:
    """(head, its classes, the file's) where heads differ by their number of classes alone."""
    counts = class_counts(model)
    if mismatch.missing or mismatch.unexpected:
        return None
    found = None
    for key, (own, other) in mismatch.shapes.items():
        head = next((name for name in counts if key.startswith(f'{name}.')), None)
        if head is None or own[1:] != other[1:]:
            return None
        trained = _scaled(own[0], other[0], counts[head])
        found = found or (trained and (head, counts[head], trained))
    classes = dataset_meta_of(checkpoint).get('classes')
    if found and classes:
        found = (*found[:2], len(classes))
    return found if found and found[1] != found[2] else None


def _scaled(own_rows: int, other_rows: int, own_classes: int) -> int | None:
    """Classes behind ``other_rows`` outputs, if ``own_classes`` give ``own_rows`` of them.

    A head has an output a class, one more for the background, or as many a class as boxes or
    anchors need.
    """
    for extra in (0, 1):
        each, rest = divmod(own_rows, own_classes + extra)
        if rest == 0 and each > 0 and other_rows % each == 0:
            return other_rows // each - extra
    return None


def _some(keys: list[str]) -> str:
    return ', '.join(keys[:3]) + (', …' if len(keys) > 3 else '')
