"""Released files to mm checkpoints and back: only names change, never a weight."""
from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .identify import backbone_prefix, identify
from .load import RECOMPUTED, LoadReport, abbreviate, check_finite
from .read import Checkpoint, CheckpointError, read_checkpoint

TARGETS = {
    'backbone': 'mm backbone',
    'classifier': 'mmpretrain ImageClassifier',
    'released': 'released layout',
}
_CLASSIFIER_HEAD = 'head.fc.'
_RELEASED_HEAD = 'head.'
_HEAD = re.compile(r'head\.(fc\.)?(weight|bias)$')
_OUTPUT_NORM = re.compile(r'norm\d+\.')  # of Swin and CSwin backbones for dense prediction


def convert_checkpoint(source: str | Path, to: str) -> tuple[dict[str, Any], LoadReport]:
    """Rename the weights of a released, mm or plain checkpoint of one of our families.

    Args:
        source: the file; its layout and prefix are found by themselves.
        to: ``'backbone'``, weights as our backbones name them; ``'classifier'``, a whole
            mmpretrain ImageClassifier with a LinearClsHead; ``'released'``, what the authors'
            scripts read.

    Returns:
        What to save: ``{'meta': …, 'state_dict': …}`` for mm, ``{'model': …}`` for released; and
        the report of what was carried over.

    Raises:
        FileNotFoundError: there is no such file.
        CheckpointError: the file cannot be read, is of no family known here, holds NaN or infinite
            weights, or lacks the head that a classifier needs.
    """
    if to not in TARGETS:
        raise ValueError(f'to={to!r}; expected one of {", ".join(TARGETS)}')
    checkpoint = read_checkpoint(source)
    identity = identify(checkpoint.state_dict)
    if identity is None:
        raise CheckpointError(f'{checkpoint} is of none of the families DeiT, PVT, PVTv2, Swin '
                              'and CSwin, by the names of its weights')
    check_finite(checkpoint.state_dict, checkpoint)
    prefix = backbone_prefix(checkpoint.state_dict)
    report = LoadReport(str(checkpoint), prefix, TARGETS[to], str(identity))
    whole = [name for name, tensor in checkpoint.state_dict.items()
             if not tensor.is_floating_point() and not RECOMPUTED.search(name)]
    if whole:
        report.notes.append(f'not floating-point: {abbreviate(whole)}')
    backbone, head = _parts(checkpoint, prefix, report)
    if to == 'released' and identity.family in ('swin', 'cswin'):
        for name in [n for n in backbone if _OUTPUT_NORM.match(n)]:
            report.left_over.append(prefix + name)
            del backbone[name]
    if to == 'classifier' and not head:
        raise CheckpointError(f'{checkpoint} has no classification head (head.weight), which a '
                              'classifier needs; convert it with --to backbone')
    if to == 'classifier' and 'cls_token' in backbone:
        raise CheckpointError(f'{checkpoint} classifies by a class token, which no backbone here '
                              'has; convert it with --to backbone, for a warm start')
    if to == 'backbone':
        report.left_over += [name for name, _ in head.values()]
        weights = backbone
    elif to == 'classifier':
        weights = {f'backbone.{name}': t for name, t in backbone.items()}
        weights.update({_CLASSIFIER_HEAD + leaf: t for leaf, (_, t) in head.items()})
    else:
        weights = {**backbone, **{_RELEASED_HEAD + leaf: t for leaf, (_, t) in head.items()}}
    report.loaded = list(weights)
    if to == 'released':
        return {'model': weights}, report
    meta = {'converted_from': checkpoint.path.name, 'model': str(identity), **checkpoint.meta}
    return {'meta': meta, 'state_dict': weights}, report


def _parts(checkpoint: Checkpoint, prefix: str, report: LoadReport
           ) -> tuple[dict[str, Tensor], dict[str, tuple[str, Tensor]]]:
    """Backbone weights by name, head weights by 'weight' or 'bias' with their names in the file."""
    backbone: dict[str, Tensor] = {}
    head: dict[str, tuple[str, Tensor]] = {}
    beside = prefix.removesuffix('backbone.')  # a classifier's head lies beside its backbone
    for name, tensor in checkpoint.state_dict.items():
        match = _HEAD.fullmatch(name[len(beside):]) if name.startswith(beside) else None
        inner = name[len(prefix):]
        tensor = tensor.clone()  # saved by itself, not with the storage of the whole file
        if match:
            head[match[2]] = name, tensor
        elif not name.startswith(prefix) or inner.startswith('head'):
            report.left_over.append(name)
        elif RECOMPUTED.search(inner):
            report.recomputed.append(name)
        else:
            backbone[inner] = tensor
    return backbone, head


def save_atomically(content: Any, path: str | Path) -> None:
    """``torch.save`` that leaves either the whole file or what was there before.

    Raises:
        OSError: the folder is missing, full or not writable.
    """
    path = Path(path)
    partial = path.with_name(f'.{path.name}.{os.getpid()}.part')
    try:
        with partial.open('wb') as file:
            torch.save(content, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
