"""Running a trained model on images: pictures of what it finds, and one JSON of results."""

from __future__ import annotations

import copy
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from mmengine.config import Config
from mmengine.device import get_device
from mmengine.model import revert_sync_batchnorm
from mmengine.registry import DATASETS, MODELS, init_default_scope
from mmengine.utils import ProgressBar
from PIL import Image
from torch import nn

from ..checkpoint import Checkpoint
from .config import scope_of, stem_of
from .errors import UserError, one_line, reported_as
from .folders import make_folder, refuse_used
from .images import ImageReader, UnreadableImage, find_images, to_rgb
from .preflight import class_counts
from .results import Describer, Result
from .runner import warn
from .weights import dataset_meta_of, load_weights, read_weights


@dataclass
class InferenceReport:
    """What :func:`infer` did.

    Attributes:
        results: Path of ``results.json``.
        done: Images with results.
        skipped: (file, reason) of images without.
    """

    results: Path
    done: int = 0
    skipped: list[tuple[Path, str]] = field(default_factory=list)


def infer(
    cfg: Config,
    checkpoint: str | os.PathLike,
    inputs: Sequence[str | os.PathLike],
    *,
    out_dir: str | os.PathLike | None = None,
    device: str | None = None,
    score_thr: float | None = None,
    overwrite: bool = False,
) -> InferenceReport:
    """Segment, detect or classify images, whichever the config's scope is for.

    Writes ``overlays/NAME.jpg``, for semantic segmentation also ``label_maps/NAME.png`` (pixel
    values are class numbers), and ``results.json``, where paths are relative to the folder.

    Args:
        cfg: A config from :func:`load_config`; its test pipeline reads the images.
        checkpoint: A checkpoint file of the config's model.
        inputs: Images, folders (searched in depth) and glob patterns.
        out_dir: Output folder; ``./outputs/<config name>`` by default. It must be empty unless
            ``overwrite``, which replaces files of the same names and leaves others.
        device: ``'cpu'``, ``'cuda'``, ``'cuda:1'``; the GPU where there is one by default.
        score_thr: Detections with a lower score are left out; 0.3 by default. mmdet only.
        overwrite: Write into a folder that holds something.

    Returns:
        What was done. An image that cannot be read, or for which the model fails, is skipped and
        reported; the others are not held up.

    Raises:
        UserError: Something the user can mend, before anything is written.
    """
    scope = scope_of(cfg)
    if score_thr is not None and scope != 'mmdet':
        raise UserError(f'--score-thr is for detections; config {cfg.filename} is of {scope}')
    device = resolve_device(device)
    images = find_images(inputs)
    folder = Path(out_dir or Path('outputs') / stem_of(cfg)).expanduser()
    if not overwrite or not folder.is_dir():
        refuse_used(folder, '--out-dir', 'choose another folder or give --overwrite')
    weights = read_weights(checkpoint)
    model = build_model(cfg, weights, device)
    meta = _dataset_meta(cfg, weights, model)
    describe = Describer(scope, meta['classes'], meta.get('palette'),
                         0.3 if score_thr is None else score_thr)
    reader = ImageReader(cfg)
    _make_folders(folder, scope, images)

    report = InferenceReport(folder / 'results.json')
    entries: list[dict] = []
    progress = ProgressBar(len(images), file=sys.stderr)
    try:
        for file, name in images.items():
            try:
                entries.append(_infer_image(model, reader, describe, file, folder, name))
            except UserError:
                raise
            except UnreadableImage as error:
                _skip(report, file, f'cannot be read: {error}')
            except Exception as error:  # one image, or a full memory, holds up no others
                _skip(report, file, f'the model failed: {type(error).__name__}: {one_line(error)}')
            progress.update()
    finally:  # an interrupted run keeps what it has
        sys.stderr.write('\n')
        report.done = len(entries)
        _write_json(report, entries, cfg, weights, meta['classes'])
    return report


def build_model(cfg: Config, weights: Checkpoint, device: str = 'cpu') -> nn.Module:
    """The model of a config with the weights of a checkpoint, ready for ``test_step``.

    Raises:
        UserError: The model cannot be built or the checkpoint does not fit it.
    """
    init_default_scope(scope_of(cfg))
    model_cfg = copy.deepcopy(cfg.model)
    if cfg.get('data_preprocessor') is not None:
        model_cfg.setdefault('data_preprocessor', cfg.data_preprocessor)
    with reported_as(f'cannot build the model of config {stem_of(cfg)}'):
        model = MODELS.build(model_cfg)
    load_weights(model, weights)
    return revert_sync_batchnorm(model).to(device).eval()


def resolve_device(device: str | None) -> str:
    """``device``, or the best there is.

    Raises:
        UserError: It is no device, or this machine has none of the kind.
    """
    if device is None:
        return get_device()
    try:
        wanted = torch.device(device)
    except RuntimeError as error:
        raise UserError(f'--device {device} is no device; expected cpu, cuda or cuda:N') from error
    if wanted.type == 'cuda':
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if (wanted.index or 0) >= count:
            raise UserError(f'--device {device}: torch finds {count or "no"} CUDA device'
                            f'{"s" if count > 1 else ""} here; use --device cpu')
    return device


def _infer_image(model: nn.Module, reader: ImageReader, describe: Describer, file: Path,
                 folder: Path, name: Path) -> dict:
    loaded = reader.read(file)
    with torch.no_grad():
        sample = model.test_step(reader.prepare(loaded))[0]
    image = to_rgb(loaded['img'])
    result = describe(image, sample)
    entry = dict(file=str(file), height=image.shape[0], width=image.shape[1])
    entry.update(_write(result, folder, name))
    entry.update(result.entry)
    return entry


def _write(result: Result, folder: Path, name: Path) -> dict:
    """Write the pictures of a result; returns their paths in ``folder``."""
    overlay = Path('overlays', f'{name}.jpg')
    result.overlay.save(folder / overlay, quality=92)
    if result.label_map is None:
        return dict(overlay=str(overlay))
    label_map = Path('label_maps', f'{name}.png')
    kind = np.uint8 if result.label_map.max() < 256 else np.uint16
    Image.fromarray(result.label_map.astype(kind)).save(folder / label_map)
    return dict(overlay=str(overlay), label_map=str(label_map))


def _make_folders(folder: Path, scope: str, images: dict[Path, Path]) -> None:
    kinds = ['overlays'] + ['label_maps'] * (scope == 'mmseg')
    for parent in {name.parent for name in images.values()}:
        for kind in kinds:
            make_folder(folder / kind / parent, '--out-dir')
    written = {(folder / kind / name.parent).resolve() / name.name
               for kind in kinds for name in images.values()}
    for file in images:
        if file.resolve().with_suffix('') in written:
            raise UserError(f'results would be written over the input {file}; choose another '
                            '--out-dir')


def _skip(report: InferenceReport, file: Path, reason: str) -> None:
    report.skipped.append((file, reason))
    sys.stderr.write('\n')  # ends the progress line
    warn(f'skipped {file}: {reason}')


def _write_json(report: InferenceReport, entries: list[dict], cfg: Config, weights: Checkpoint,
                classes: Sequence[str]) -> None:
    content = dict(
        config=str(cfg.filename), checkpoint=str(weights.path), classes=list(classes),
        images=entries,
        skipped=[dict(file=str(file), reason=reason) for file, reason in report.skipped])
    part = report.results.with_suffix('.json.part')
    part.write_text(json.dumps(content, indent=1), encoding='utf-8')
    part.replace(report.results)


def _dataset_meta(cfg: Config, weights: Checkpoint, model: nn.Module) -> dict:
    """Class names and palette: the checkpoint's, the config's, else numbers."""
    meta = dataset_meta_of(weights)
    if meta.get('classes'):
        return meta
    dataset = (cfg.get('test_dataloader') or {}).get('dataset') or {}
    while dataset.get('dataset'):
        dataset = dataset['dataset']
    with DATASETS.switch_scope_and_registry(scope_of(cfg)) as registry:
        kind = registry.get(dataset['type']) if isinstance(dataset.get('type'), str) else None
    meta = {**(getattr(kind, 'METAINFO', None) or {}), **(dataset.get('metainfo') or {})}
    if meta.get('classes'):
        return meta
    count = max(class_counts(model).values(), default=0)
    warn('neither the checkpoint nor the config names the classes; results number them')
    return dict(classes=[f'class {i}' for i in range(count)])
