"""Which half precisions this torch can train in on a CPU."""
from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F


def _fp16_on_cpu() -> bool:
    try:
        with torch.autocast('cpu', torch.float16):
            x = torch.ones(1, 1, 3, 3, requires_grad=True)
            out = F.linear(F.conv2d(x, torch.ones(1, 1, 3, 3)).flatten(1), torch.ones(2, 1))
        out.sum().backward()
    except RuntimeError:
        return False
    return out.dtype == torch.float16  # torch 2.1 leaves it at fp32, with a warning


HAS_FP16 = _fp16_on_cpu()
FP16 = pytest.param(torch.float16, marks=pytest.mark.skipif(
    not HAS_FP16, reason='this torch has no fp16 convolution and autocast on the CPU'))
HALF = [FP16, torch.bfloat16]
