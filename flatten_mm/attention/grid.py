"""Maps of any (H, W): resizing a table that lies on a grid, windows and their padding.

Everything that turns a grid into another grid lives here, so the families only say *which* grid.
"""
from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Size = tuple[int, int]


def resize_grid_table(
    table: Tensor, src_hw: Size, dst_hw: Size, mode: str = 'bicubic'
) -> Tensor:
    """Resize a table with one row a grid position from one grid to another.

    The interpolation is separable with half-pixel centres (as the released models do it), so a
    table that is a function of the row only stays one. On the same grid the table itself is
    returned, which keeps results at the training size bit for bit.

    Args:
        table: (1, n, C), row-major over ``src_hw``.
        src_hw: grid (H, W) of the table, H * W = n.
        dst_hw: grid (H', W') wanted.
        mode: ``'bicubic'`` or ``'bilinear'``.

    Returns:
        (1, H' * W', C), dtype of ``table``.

    Raises:
        ValueError: the table does not have H * W rows.
    """
    if table.shape[1] != src_hw[0] * src_hw[1]:
        raise ValueError(
            f'a position table with {table.shape[1]} rows does not lie on a {src_hw[0]}x'
            f'{src_hw[1]} grid; expected {src_hw[0] * src_hw[1]} rows'
        )
    if tuple(src_hw) == tuple(dst_hw):
        return table
    # As two matrix products: the backward pass of F.interpolate takes five times its forward pass,
    # and half precision (of the table or of autocast) would round the weights of interpolation.
    with torch.autocast(table.device.type, enabled=False):
        grid = table if table.dtype == torch.float64 else table.float()
        rows, columns = (_interpolation(*sides, mode, grid) for sides in zip(src_hw, dst_hw))
        grid = (rows @ grid.view(src_hw[0], -1)).view(-1, src_hw[1], table.shape[2])
        return (columns @ grid).view(1, -1, table.shape[2]).to(table.dtype)


def _interpolation(src: int, dst: int, mode: str, like: Tensor) -> Tensor:
    """(dst, src): the matrix that interpolates along one side."""
    identity = torch.eye(src, dtype=like.dtype, device=like.device)
    return F.interpolate(identity[None, :, :, None], size=(dst, 1), mode=mode,
                         align_corners=False)[0, :, :, 0].t()


class TableResizer:
    """Resizes one position table and remembers the last result where no gradient is needed.

    The remembered result belongs to one state of the table: it is dropped when the table was
    written to in place (weights loaded, optimizer step), replaced (device, dtype) or when
    ``clear`` is called, as every backbone does on ``train()`` and ``eval()``.
    """

    def __init__(self, mode: str = 'bicubic') -> None:
        self.mode = mode
        self.clear()

    def clear(self) -> None:
        self._key: tuple | None = None
        self._source: Tensor | None = None  # held so that its address cannot be given again
        self._resized: Tensor | None = None

    def __deepcopy__(self, memo: dict) -> TableResizer:
        return TableResizer(self.mode)

    def __reduce__(self) -> tuple:
        return TableResizer, (self.mode,)

    def __call__(self, table: Tensor, src_hw: Size, dst_hw: Size) -> Tensor:
        """(1, n, C) on ``src_hw`` -> (1, n', C) on ``dst_hw``; see :func:`resize_grid_table`."""
        if tuple(src_hw) == tuple(dst_hw) or not self._may_remember(table):
            return resize_grid_table(table, src_hw, dst_hw, self.mode)
        key = (dst_hw, table.data_ptr(), table._version, table.dtype, table.device,
               torch.is_inference_mode_enabled())
        if key != self._key:
            self._resized = resize_grid_table(table, src_hw, dst_hw, self.mode)
            self._source, self._key = table.detach(), key
        return self._resized

    @staticmethod
    def _may_remember(table: Tensor) -> bool:
        if is_traced() or table.is_inference() or table.device.type == 'meta':
            return False
        return not (torch.is_grad_enabled() and table.requires_grad)


def is_traced() -> bool:
    """True inside torch.compile, torch.export and torch.jit.trace, where state must not be kept."""
    if hasattr(torch.compiler, 'is_compiling'):
        compiling = torch.compiler.is_compiling()
    else:  # torch 2.1
        compiling = torch._dynamo.is_compiling()
    return compiling or torch.jit.is_tracing()


def conv_with_full_cell(conv: nn.Conv2d, x: Tensor) -> Tensor:
    """Apply an unpadded strided convolution to a map that may be smaller than its kernel.

    (B, C, H, W) -> (B, C', floor(H / r), floor(W / r)) for kernel = stride = r; a side shorter
    than r is zero-padded (bottom, right) to r, so the result never is empty.
    """
    # Zeros where a padded kernel hangs over a single output cell change nothing, but for a torch
    # 2.9 that in bf16 on a CPU leaves gradients of such a weight unset, NaN by chance.
    sides = 2 if is_traced() else 1
    short_h = max(conv.kernel_size[0] - sides * conv.padding[0] - x.shape[-2], 0)
    short_w = max(conv.kernel_size[1] - sides * conv.padding[1] - x.shape[-1], 0)
    if short_h or short_w:
        x = F.pad(x, (0, short_w, 0, short_h))
    return conv(x)


def depthwise_conv(x: Tensor, hw: Size, weight: Tensor, bias: Tensor) -> Tensor:
    """Depthwise convolution of tokens on their grid, zero-padded to keep it.

    Args:
        x: (B, H * W, C).
        hw: (H, W).
        weight: (C, 1, ks, ks), ks odd.
        bias: (C,).

    Returns:
        (B, H * W, C).
    """
    x = x.unflatten(1, hw).permute(0, 3, 1, 2)  # (B, C, H, W), channels last in memory
    x = F.conv2d(x, weight, bias, padding=weight.shape[-1] // 2, groups=weight.shape[0])
    return x.permute(0, 2, 3, 1).flatten(1, 2)


@dataclass(frozen=True)
class Windows:
    """Equal windows over a map of any size: pad, roll, cut, and the way back.

    A side of the map that is not longer than the window's is one window without shift (and the
    window is cropped to it); a longer side is padded at its end to a multiple of the window.

    Attributes:
        map_hw: (H, W) of the map.
        window_hw: (h, w) of a window after cropping.
        shift_hw: pixels rolled before cutting, per side.
        padded_hw: (H', W') multiples of the window.
    """

    map_hw: Size
    window_hw: Size
    shift_hw: Size
    padded_hw: Size

    @classmethod
    def over(cls, map_hw: Size, window_hw: Size, shifted: bool) -> Windows:
        """Windows of at most ``window_hw`` over ``map_hw``; ``shifted`` rolls by half a window."""
        sides = tuple(min(m, w) for m, w in zip(map_hw, window_hw))
        shift = tuple(
            s // 2 if shifted and m > w else 0 for m, w, s in zip(map_hw, window_hw, sides)
        )
        padded = tuple(-(-m // s) * s for m, s in zip(map_hw, sides))
        return cls(map_hw, sides, shift, padded)

    @property
    def count(self) -> int:
        """Number of windows an image."""
        return (self.padded_hw[0] // self.window_hw[0]) * (self.padded_hw[1] // self.window_hw[1])

    @property
    def is_padded(self) -> bool:
        return self.padded_hw != self.map_hw

    @property
    def is_shifted(self) -> bool:
        return self.shift_hw != (0, 0)

    def split(self, x: Tensor) -> Tensor:
        """(B, H * W, C) -> (B * nW, h * w, C), windows row-major within an image."""
        if self.window_hw == self.map_hw:
            return x
        (H, W), (h, w), (PH, PW) = self.map_hw, self.window_hw, self.padded_hw
        B, _, C = x.shape
        x = x.view(B, H, W, C)
        if self.is_padded:
            x = F.pad(x, (0, 0, 0, PW - W, 0, PH - H))
        if self.is_shifted:
            x = torch.roll(x, (-self.shift_hw[0], -self.shift_hw[1]), (1, 2))
        x = x.view(B, PH // h, h, PW // w, w, C).transpose(2, 3)
        return x.reshape(-1, h * w, C)

    def merge(self, x: Tensor) -> Tensor:
        """(B * nW, h * w, C) -> (B, H * W, C), the inverse of :meth:`split`."""
        if self.window_hw == self.map_hw:
            return x
        (H, W), (h, w), (PH, PW) = self.map_hw, self.window_hw, self.padded_hw
        C = x.shape[-1]
        x = x.view(-1, PH // h, PW // w, h, w, C).transpose(2, 3).reshape(-1, PH, PW, C)
        if self.is_shifted:
            x = torch.roll(x, self.shift_hw, (1, 2))
        return x[:, :H, :W].reshape(-1, H * W, C)

    def valid_tokens(self, device: torch.device) -> Tensor | None:
        """(nW, h * w, 1) bool, False on padding; None where nothing is padded."""
        if not self.is_padded:
            return None
        ones = torch.ones(1, self.map_hw[0] * self.map_hw[1], 1, dtype=torch.bool, device=device)
        return self.split(ones)

    def attention_mask(self, device: torch.device) -> Tensor | None:
        """(nW, h * w, h * w) bool, True where a query may see a key; None where all may.

        After a roll, pixels from different regions of the map share the last windows; the
        regions are those Swin compares (the 3x3 split at the window's and the shift's border).
        Padding is a region of its own.
        """
        if not (self.is_padded or self.is_shifted):
            return None
        label = 0
        for axis in (0, 1):
            label = label * 4 + self._axis_regions(axis, device).view((-1, 1) if axis == 0 else -1)
        (PH, PW), (h, w) = self.padded_hw, self.window_hw
        label = label.view(PH // h, h, PW // w, w).transpose(1, 2).reshape(-1, h * w)
        return label[:, :, None] == label[:, None, :]

    def _axis_regions(self, axis: int, device: torch.device) -> Tensor:
        """Region number (0, 1, 2; 3 for padding) of every rolled position along one axis."""
        side, window, shift = (s[axis] for s in (self.padded_hw, self.window_hw, self.shift_hw))
        position = torch.arange(side, device=device)
        region = torch.zeros_like(position)
        if shift:
            region = (position >= side - window).long() + (position >= side - shift).long()
        source = (position + shift) % side
        return torch.where(source >= self.map_hw[axis], 3, region)
