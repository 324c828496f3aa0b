"""Mixed precision where mmengine's wrapper has none: in bf16, on a CPU as well."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from mmengine.optim import OptimWrapper
from mmengine.registry import OPTIM_WRAPPERS
from mmengine.runner.amp import autocast
from torch import Tensor, nn


@OPTIM_WRAPPERS.register_module()
class Bf16OptimWrapper(OptimWrapper):
    """``OptimWrapper`` that runs the forward pass under bf16 autocast, on a CPU or a GPU.

    bf16 has the range of fp32, so there is no loss scaler, and the state is that of the optimizer
    alone: checkpoints go to and from ``OptimWrapper`` and mmengine's ``AmpOptimWrapper``, whose
    loss scaler is left out.

    In detectors of mmdet the backbone and the neck run in bf16, the heads in fp32: mmcv's
    operators (NMS, RoIAlign and others) do not know bf16.

    Args:
        **kwargs: Those of mmengine's ``OptimWrapper``: optimizer, accumulative_counts, clip_grad.
    """

    @contextmanager
    def optim_context(self, model: nn.Module) -> Iterator[None]:
        """The forward pass in bf16; gradients are accumulated as in ``OptimWrapper``."""
        own = getattr(model, 'module', model)
        in_bf16 = _features_in_bf16(own) if _is_detector(own) else autocast(dtype=torch.bfloat16)
        with super().optim_context(model), in_bf16:
            yield

    def load_state_dict(self, state_dict: dict) -> None:
        """Load the state of the optimizer."""
        super().load_state_dict({key: value for key, value in state_dict.items()
                                 if key != 'loss_scaler'})


def _is_detector(model: nn.Module) -> bool:
    module = sys.modules.get('mmdet.models.detectors.base')  # mmdet need not be installed
    return module is not None and isinstance(model, module.BaseDetector)


@contextmanager
def _features_in_bf16(detector: nn.Module) -> Iterator[None]:
    """Run ``extract_feat`` under autocast, and give its feature maps on in fp32."""
    extract_feat = detector.extract_feat

    def extract(*args, **kwargs) -> tuple[Tensor, ...]:
        with autocast(dtype=torch.bfloat16):
            return tuple(x.float() for x in extract_feat(*args, **kwargs))

    detector.extract_feat = extract  # hides the method for as long as the context lasts
    try:
        yield
    finally:
        del detector.extract_feat
