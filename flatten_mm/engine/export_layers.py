"""Layers of torch and mmseg that exporters do not take at any size, and what replaces them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Size = tuple[int, int]


class AveragePool(nn.Module):
    """``nn.AdaptiveAvgPool2d`` as two products, which takes a map of any size in any exporter."""

    def __init__(self, output_size: Size) -> None:
        super().__init__()
        self.output_size = output_size

    def forward(self, x: Tensor) -> Tensor:
        if self.output_size == (1, 1):
            return x.mean(dim=(2, 3), keepdim=True)
        x = F.linear(x, self.weights(x, self.output_size[1], x.shape[3]))
        x = x.transpose(2, 3).clone(memory_format=torch.contiguous_format)
        return F.linear(x, self.weights(x, self.output_size[0], x.shape[3])).transpose(2, 3)

    @staticmethod
    def weights(x: Tensor, cells: int, side: int) -> Tensor:
        """(cells, side): the share of each position in the mean of each cell."""
        cell = torch.arange(cells, device=x.device)[:, None]
        position = torch.arange(side, device=x.device)
        first, end = cell * side // cells, ((cell + 1) * side + cells - 1) // cells
        return ((position >= first) & (position < end)).to(x.dtype) / (end - first)


class Upsample(nn.Module):
    """mmseg's ``Upsample`` by a whole factor; mmseg's own makes a constant of the size."""

    def __init__(self, factor: int, mode: str, align_corners: bool | None) -> None:
        super().__init__()
        self.factor, self.mode, self.align_corners = factor, mode, align_corners

    def forward(self, x: Tensor) -> Tensor:
        size = [side * self.factor for side in x.shape[2:]]
        return F.interpolate(x, size, mode=self.mode, align_corners=self.align_corners)


def _exportable_layer(layer: nn.Module) -> nn.Module | None:
    """What to put in place of a layer that exporters do not take at any size; None: nothing."""
    if isinstance(layer, nn.AdaptiveAvgPool2d):
        size = layer.output_size
        size = tuple(size) if isinstance(size, (tuple, list)) else (size, size)
        return None if None in size else AveragePool(size)
    if type(layer).__name__ == 'Upsample' and type(layer).__module__.startswith('mmseg.'):
        factor = layer.scale_factor
        if not layer.size and isinstance(factor, float) and factor.is_integer():
            return Upsample(int(factor), layer.mode, layer.align_corners)
    return None


@contextmanager
def exportable_layers(model: nn.Module) -> Iterator[None]:
    """Exchange layers for the time of the block."""
    places = [(parent, name, child, _exportable_layer(child))
              for parent in model.modules() for name, child in parent.named_children()]
    places = [place for place in places if place[3] is not None]
    for parent, name, _, new in places:
        setattr(parent, name, new)
    try:
        yield
    finally:
        for parent, name, child, _ in places:
            setattr(parent, name, child)
