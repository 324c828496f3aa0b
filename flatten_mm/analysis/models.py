"""Models and images for analysis: any config of ours, each image at its own size."""
from __future__ import annotations

import copy
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from mmengine.config import Config
from mmengine.registry import MODELS, init_default_scope
from torch import Tensor, nn

from ..backbones.base import FLattenBackbone
from ..engine.config import scope_of, stem_of
from ..engine.errors import reported_as
from ..engine.images import ImageReader, to_rgb
from ..engine.inference import build_model
from ..engine.weights import read_weights
from .observe import find_backbone

# Transforms of a test pipeline that change which pixels there are, or how many.
_GEOMETRIC = ('Resize', 'Crop', 'Pad', 'Flip', 'Rescale', 'Rotate')


def load_model(cfg: Config, checkpoint: str | os.PathLike | None = None,
               device: str = 'cpu') -> nn.Module:
    """The model of a config in eval mode.

    Args:
        cfg: a config from :func:`flatten_mm.engine.load_config`.
        checkpoint: of the whole model; without, the weights are those ``init_cfg`` names or
            random ones (seed 0).
        device: to put it on.

    Raises:
        UserError: it cannot be built, the checkpoint does not fit, or it has no FLatten backbone.
    """
    if checkpoint is not None:
        model = build_model(cfg, read_weights(checkpoint), device)
    else:
        init_default_scope(scope_of(cfg))
        model_cfg = copy.deepcopy(cfg.model)
        if cfg.get('data_preprocessor') is not None:
            model_cfg.setdefault('data_preprocessor', cfg.data_preprocessor)
        torch.manual_seed(0)
        with reported_as(f'cannot build the model of config {stem_of(cfg)}'):
            model = MODELS.build(model_cfg)
    with reported_as(f'config {stem_of(cfg)} cannot be analysed'):
        backbone = find_backbone(model)
        if checkpoint is None:
            # Only the backbone is looked at; a whole model's start logs a line a parameter.
            (model if model.init_cfg else backbone).init_weights()
    return model.to(device).eval()


@dataclass(frozen=True)
class LoadedImage:
    """An image as it is, and as a model's backbone takes it.

    Attributes:
        rgb: (H, W, 3) uint8.
        batch: (1, C, H', W') normalised; H' and W' may be padded at the end.
    """

    rgb: np.ndarray
    batch: Tensor


def load_image(cfg: Config, model: nn.Module, path: str | os.PathLike) -> LoadedImage:
    """Read an image at its own size: the config's test pipeline without resizing and cropping.

    Args:
        cfg: the config of ``model``.
        model: its data preprocessor normalises (and pads where it would in testing).
        path: of the image.

    Raises:
        UserError: the config has no test pipeline that loads images.
        UnreadableImage: the file is no image, or a damaged one.
    """
    cfg = copy.deepcopy(cfg)
    dataset = (cfg.get('test_dataloader') or {}).get('dataset') or {}
    while 'pipeline' not in dataset and dataset.get('dataset'):
        dataset = dataset['dataset']
    if dataset.get('pipeline'):
        dataset.pipeline = [step for step in dataset.pipeline
                            if not any(word in str(step.get('type')) for word in _GEOMETRIC)]
    init_default_scope(scope_of(cfg))
    reader = ImageReader(cfg)
    loaded = reader.read(Path(path))
    with torch.no_grad():
        batch = model.data_preprocessor(reader.prepare(loaded), False)['inputs']
    return LoadedImage(to_rgb(loaded['img']), batch)


def stride_of(backbone: FLattenBackbone, stage: int) -> int:
    """Pixels of the image that a cell of a stage's map is wide."""
    return backbone.arch_settings.get('patch_size') or 4 * 2**stage
