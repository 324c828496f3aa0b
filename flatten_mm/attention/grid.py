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
    if is_fixed(dst_hw) and tuple(src_hw) == tuple(dst_hw):
        return table
    # As two matrix products: the backward pass of F.interpolate takes five times its forward pass,
    # and half precision (of the table or of autocast) would round the weights of interpolation.
    with torch.autocast(table.device.type, enabled=False):
        grid = table if table.dtype == torch.float64 else table.float()
        rows = _interpolation(src_hw[0], dst_hw[0], mode, grid)
        columns = _interpolation(src_hw[1], dst_hw[1], mode, grid)
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
    ``clear`` is called, as every backbone does on ``train()`` and ``eval()``. Writing through
    ``.data`` leaves no trace; on a CPU, where that costs little, the content is compared as well.
    """

    def __init__(self, mode: str = 'bicubic') -> None:
        self.mode = mode
        self.clear()

    def clear(self) -> None:
        # One tuple, so that threads that share a model never see half of another's.
        # The table is held, so that its address cannot be given again.
        self._remembered: tuple[tuple, Tensor, Tensor | None, Tensor] | None = None

    def __deepcopy__(self, memo: dict) -> TableResizer:
        return TableResizer(self.mode)

    def __reduce__(self) -> tuple:
        return TableResizer, (self.mode,)

    def __call__(self, table: Tensor, src_hw: Size, dst_hw: Size) -> Tensor:
        """(1, n, C) on ``src_hw`` -> (1, n', C) on ``dst_hw``; see :func:`resize_grid_table`."""
        if not self._may_remember(table) or tuple(src_hw) == tuple(dst_hw):
            return resize_grid_table(table, src_hw, dst_hw, self.mode)
        key = (dst_hw, table.data_ptr(), table._version, table.dtype, table.device,
               torch.is_inference_mode_enabled())
        remembered = self._remembered
        if remembered is not None and remembered[0] == key and _same(table, remembered[2]):
            return remembered[3]
        content = table.detach().clone() if table.device.type == 'cpu' else None
        resized = resize_grid_table(table, src_hw, dst_hw, self.mode)
        self._remembered = (key, table.detach(), content, resized)
        return resized

    @staticmethod
    def _may_remember(table: Tensor) -> bool:
        if is_traced() or table.is_inference() or table.device.type == 'meta':
            return False
        return not (torch.is_grad_enabled() and table.requires_grad)


def _same(table: Tensor, content: Tensor | None) -> bool:
    return content is None or torch.equal(table, content)


def is_traced() -> bool:
    """True inside torch.compile, torch.export and torch.jit.trace, where state must not be kept."""
    if hasattr(torch.compiler, 'is_compiling'):
        compiling = torch.compiler.is_compiling()
    else:  # torch 2.1
        compiling = torch._dynamo.is_compiling()
    return compiling or torch.jit.is_tracing()


def is_fixed(hw: Size) -> bool:
    """False where a side is a symbol: torch.export of a graph for images of any size.

    The graph holds one branch of an ``if``, so nothing may depend on how such a side compares.
    """
    return all(isinstance(side, int) for side in hw)


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
    if x.device.type == 'cpu' and not is_traced():
        # An image is not channels-last; the result then is, its tokens dense without another copy.
        # But torch 2.9 gets a result of one column wrong there, in bf16 with kernels of 4 and more.
        has_one_column = x.shape[-1] + 2 * conv.padding[1] < conv.kernel_size[1] + conv.stride[1]
        x = x.contiguous(memory_format=(torch.contiguous_format if has_one_column
                                        else torch.channels_last))
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
    by_index = is_fixed(hw[:1]) != is_fixed(hw[1:])
    if by_index:  # torch.export cannot tell that 7 * H of an unknown H is divisible by it
        token = torch.arange(hw[0] * hw[1], device=x.device)
        row, column = (torch.arange(side, device=x.device) for side in hw)
        x = x[:, row[:, None] * hw[1] + column]
    else:
        x = x.unflatten(1, hw)
    x = x.permute(0, 3, 1, 2)  # (B, C, H, W), channels last in memory
    # int: a number that torch.jit.trace has not made a tensor of
    x = F.conv2d(x, weight, bias, padding=int(weight.shape[-1]) // 2, groups=int(weight.shape[0]))
    x = x.permute(0, 2, 3, 1)
    return x[:, token // hw[1], token % hw[1]] if by_index else x.flatten(1, 2)


@dataclass(frozen=True)
class Windows:
    """Equal windows over a map of any size: pad, roll, cut, and the way back.

    A side of the map that is not longer than the window's is one window without shift (and the
    window is cropped to it); a longer side is padded at its end to a multiple of the window.

    Attributes:
        map_hw: (H, W) of the map.
        window_hw: (h, w) of a window after cropping.
        shift_hw: pixels rolled before cutting, per side.
        count_hw: windows along each side.
    """

    map_hw: Size
    window_hw: Size
    shift_hw: Size
    count_hw: Size

    @classmethod
    def over(cls, map_hw: Size, window_hw: Size, shifted: bool) -> Windows:
        """Windows of at most ``window_hw`` over ``map_hw``; ``shifted`` rolls by half a window."""
        sides = (_cut_side(m, w, shifted) for m, w in zip(map_hw, window_hw))
        return cls(tuple(map_hw), *zip(*sides))

    def uncropped(self) -> Windows:
        """These, for attention whose result depends on the size of the window.

        A side that is a symbol then must be as long as the window at least; torch.export says
        from which size of the image on that is so.
        """
        for side, window in zip(self.map_hw, self.window_hw):
            if not is_fixed((side,)) and _differ(side, window):
                torch._check(side >= window)
        return self

    @property
    def count(self) -> int:
        """Number of windows an image."""
        return self.count_hw[0] * self.count_hw[1]

    @property
    def padded_hw(self) -> Size:
        """(H', W') multiples of the window."""
        return tuple(n * w for n, w in zip(self.count_hw, self.window_hw))

    @property
    def is_whole(self) -> bool:
        """The only window is the map."""
        return not any(map(_differ, self.window_hw, self.map_hw))

    @property
    def is_padded(self) -> bool:
        return any(map(_differ, self.padded_hw, self.map_hw))

    @property
    def is_shifted(self) -> bool:
        return any(map(_differ, self.shift_hw, (0, 0)))

    def split(self, x: Tensor) -> Tensor:
        """(B, H * W, C) -> (B * nW, h * w, C), windows row-major within an image."""
        if self.is_whole:
            return x
        if not is_fixed(self.padded_hw):
            return self._gather_windows(x)
        (H, W), (h, w), (PH, PW) = self.map_hw, self.window_hw, self.padded_hw
        rows, columns = self.count_hw
        B, _, C = x.shape
        x = x.view(B, H, W, C)
        if self.is_padded:
            x = F.pad(x, (0, 0, 0, PW - W, 0, PH - H))
        if self.is_shifted:
            x = torch.roll(x, (-self.shift_hw[0], -self.shift_hw[1]), (1, 2))
        x = x.view(B, rows, h, columns, w, C).transpose(2, 3)
        return x.reshape(-1, h * w, C)

    def merge(self, x: Tensor) -> Tensor:
        """(B * nW, h * w, C) -> (B, H * W, C), the inverse of :meth:`split`."""
        if self.is_whole:
            return x
        if not is_fixed(self.padded_hw):
            return self._gather_tokens(x)
        (H, W), (h, w), (PH, PW) = self.map_hw, self.window_hw, self.padded_hw
        C = x.shape[-1]
        x = x.view(-1, *self.count_hw, h, w, C).transpose(2, 3).reshape(-1, PH, PW, C)
        if self.is_shifted:
            x = torch.roll(x, self.shift_hw, (1, 2))
        return x[:, :H, :W].reshape(-1, H * W, C)

    def valid_tokens(self, batch: int, device: torch.device) -> Tensor | None:
        """(B * nW, h * w, 1) bool, False on padding; None where nothing is padded."""
        if not self.is_padded:
            return None
        row, column = self._sources(*self._places(batch, device))
        return ((row < self.map_hw[0]) & (column < self.map_hw[1])).unsqueeze(-1)

    def attention_mask(self, batch: int, device: torch.device) -> Tensor | None:
        """(B * nW, h * w, h * w) bool, True where a query may see a key; None where all may.

        After a roll, pixels from different regions of the map share the last windows; the
        regions are those Swin compares (the 3x3 split at the window's and the shift's border).
        Padding is a region of its own.
        """
        if not (self.is_padded or self.is_shifted):
            return None
        places = self._places(batch, device)
        label = 0
        for axis, (place, source) in enumerate(zip(places, self._sources(*places))):
            side, window, shift = (s[axis] for s in (self.padded_hw, self.window_hw, self.shift_hw))
            region = torch.zeros_like(place)
            if _differ(shift, 0):
                region = (place >= side - window).long() + (place >= side - shift).long()
            label = label * 4 + torch.where(source >= self.map_hw[axis], 3, region)
        return label[:, :, None] == label[:, None, :]

    def _places(self, batch: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """Row and column of every token of every window on the rolled map: (B * nW, h * w) each.

        Of the whole batch, whose images have the same: an axis of nW tokens may be a single one,
        which torch.export would have to know.
        """
        (h, w), columns = self.window_hw, self.count_hw[1]
        window = torch.arange(batch * self.count, device=device)[:, None] % self.count
        token = torch.arange(h * w, device=device)
        return window // columns * h + token // w, window % columns * w + token % w

    def _sources(self, row: Tensor, column: Tensor) -> tuple[Tensor, Tensor]:
        """Where a row and a column of the rolled map come from."""
        (PH, PW), (down, right) = self.padded_hw, self.shift_hw
        return (row + down) % PH, (column + right) % PW

    # Windows by index: a graph for maps of any size need not know what is padded, rolled or cut.

    def _gather_windows(self, x: Tensor) -> Tensor:
        (H, W), B = self.map_hw, x.shape[0]
        row, column = self._sources(*self._places(B, x.device))
        image = torch.arange(B * self.count, device=x.device)[:, None] // self.count
        x = x[image, row.clamp(max=H - 1) * W + column.clamp(max=W - 1)]
        valid = self.valid_tokens(B, x.device)
        return x if valid is None else x * valid

    def _gather_tokens(self, x: Tensor) -> Tensor:
        (H, W), (h, w), (PH, PW), (down, right) = (
            self.map_hw, self.window_hw, self.padded_hw, self.shift_hw)
        token = torch.arange(H * W, device=x.device)
        row, column = (token // W + PH - down) % PH, (token % W + PW - right) % PW
        window = row // h * self.count_hw[1] + column // w
        first = torch.arange(x.shape[0] // self.count, device=x.device) * self.count
        return x[first[:, None] + window, row % h * w + column % w]


class WholeMap:
    """What every attention core begins with; families that cut a map override it."""

    def windows(self, map_hw: Size) -> Windows:
        """What a map of ``map_hw`` is cut into around ``attend``; one window by default."""
        return Windows.over(map_hw, map_hw, shifted=False)


def _cut_side(side: int, window: int, shifted: bool) -> tuple[int, int, int]:
    """Window, shift and number of windows along one side of a map.

    A window longer than a side that is a symbol is not cropped: the side is padded to it, and the
    padding is masked, which gives the same results.
    """
    if not _differ(side, window):
        return side, 0, 1
    if isinstance(side, int):
        window = min(side, window)
        shift = window // 2 if shifted and side > window else 0
        return window, shift, -(-side // window)
    is_longer = torch.sym_max(torch.sym_min(side - window, 1), 0)
    return window, window // 2 * is_longer if shifted else 0, (side + window - 1) // window


def _differ(a: int, b: int) -> bool:
    """Whether two sides differ; a symbol is like itself only, whatever its value may be."""
    return a != b if is_fixed((a, b)) else a is not b

