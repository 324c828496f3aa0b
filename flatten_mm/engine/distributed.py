"""Several processes on a machine without a GPU, which mmengine's launchers do not start.

For trying a distributed run out where it will not train for long. Processes talk through gloo;
torch's SyncBatchNorm, which the heads of many mm configs have, is given a forward pass that runs
there.
"""

from __future__ import annotations

import atexit

import torch
import torch.distributed as dist
from mmengine.config import Config
from mmengine.model import MMDistributedDataParallel
from mmengine.registry import MODEL_WRAPPERS
from torch import Tensor, nn
from torch.distributed.nn.functional import all_reduce
from torch.nn.modules.batchnorm import _BatchNorm


def connect_on_cpu(cfg: Config) -> None:
    """Join the processes that torchrun started, and let ``cfg`` wrap the model for the CPU."""
    if not dist.is_initialized():
        dist.init_process_group('gloo')
        # Left to the end of the interpreter, gloo's threads at times abort the process.
        atexit.register(_leave)
    cfg.model_wrapper_cfg = {
        'find_unused_parameters': cfg.get('find_unused_parameters', False),
        'broadcast_buffers': False,
        **(cfg.get('model_wrapper_cfg') or {}),
        'type': CPUDistributedDataParallel.__name__,
    }


def _leave() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


@MODEL_WRAPPERS.register_module()
class CPUDistributedDataParallel(MMDistributedDataParallel):
    """mmengine's data-parallel wrapper of a model on the CPU; synchronises its SyncBatchNorm."""

    def __init__(self, module: nn.Module, **kwargs) -> None:
        for child in module.modules():
            if isinstance(child, nn.SyncBatchNorm):
                child.__class__ = CPUSyncBatchNorm
        super().__init__(module, **{**kwargs, 'device_ids': None})


class CPUSyncBatchNorm(_BatchNorm):
    """Batch norm over the batches of all processes: statistics are summed by gloo.

    Not a SyncBatchNorm, which torch's data-parallel wrapper refuses on the CPU.
    """

    def _check_input_dim(self, x: Tensor) -> None:
        if x.dim() < 2:
            raise ValueError(f'expected (B, C, *), got a tensor of {x.dim()} dimensions')

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, *) -> (B, C, *)."""
        if not self.training:
            return super().forward(x)
        others = [axis for axis in range(x.dim()) if axis != 1]
        view = [1, -1] + [1] * (x.dim() - 2)
        count = all_reduce(x.new_tensor(x.numel() // x.shape[1]))
        mean = all_reduce(x.sum(others)) / count
        centred = x - mean.view(view)
        var = all_reduce(centred.square().sum(others)) / count
        if self.track_running_stats:
            self._track(mean.detach(), var.detach() * count / (count - 1))
        out = centred * (var + self.eps).rsqrt().view(view)
        return out * self.weight.view(view) + self.bias.view(view) if self.affine else out

    @torch.no_grad()
    def _track(self, mean: Tensor, var: Tensor) -> None:
        self.num_batches_tracked.add_(1)
        momentum = self.momentum
        if momentum is None:  # cumulative average
            momentum = 1 / self.num_batches_tracked.item()
        self.running_mean.lerp_(mean, momentum)
        self.running_var.lerp_(var, momentum)
