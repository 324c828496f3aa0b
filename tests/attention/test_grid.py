"""Windows over maps of any size, and resizing tables that lie on a grid."""
from __future__ import annotations

import copy
import pickle
import sys
import threading

import pytest
import torch

from flatten_mm.attention.grid import (
    TableResizer,
    Windows,
    conv_with_full_cell,
    resize_grid_table,
)

SIZES = [(14, 14), (7, 7), (3, 20), (20, 3), (8, 15), (1, 1), (9, 7)]


@pytest.mark.parametrize('map_hw', SIZES)
@pytest.mark.parametrize('shifted', [False, True])
def test_merge_is_the_inverse_of_split(map_hw, shifted) -> None:
    windows = Windows.over(map_hw, (7, 7), shifted)
    x = torch.randn(2, map_hw[0] * map_hw[1], 3)
    parts = windows.split(x)
    assert parts.shape == (2 * windows.count, windows.window_hw[0] * windows.window_hw[1], 3)
    assert torch.equal(windows.merge(parts), x)


def test_a_short_side_is_one_unshifted_window() -> None:
    windows = Windows.over((5, 20), (7, 7), shifted=True)
    assert windows.window_hw == (5, 7) and windows.shift_hw == (0, 3)
    assert windows.padded_hw == (5, 21)


@pytest.mark.parametrize('map_hw', SIZES)
@pytest.mark.parametrize('shifted', [False, True])
def test_mask_joins_only_neighbours(map_hw, shifted) -> None:
    """A pair may see each other exactly if both lie on the map within one window's reach."""
    windows = Windows.over(map_hw, (7, 7), shifted)
    mask = windows.attention_mask(1, torch.device('cpu'))
    rows = torch.arange(map_hw[0]).repeat_interleave(map_hw[1])
    columns = torch.arange(map_hw[1]).repeat(map_hw[0])
    places = torch.stack([rows, columns, torch.zeros_like(rows)], -1)[None].double() + 1
    places = windows.split(places)  # (nW, N, 3); zeros where padded
    real = places.any(-1)
    gap = (places[:, :, None] - places[:, None, :]).abs()
    near = (gap[..., 0] < windows.window_hw[0]) & (gap[..., 1] < windows.window_hw[1])
    expected = near & (real[:, :, None] == real[:, None, :])
    if mask is None:
        assert expected.all()
    else:
        both_real = real[:, :, None] & real[:, None, :]
        assert torch.equal(mask & both_real, expected & both_real)
        assert not (mask & (real[:, :, None] != real[:, None, :])).any()
        assert mask.diagonal(dim1=1, dim2=2).all()


def test_same_grid_returns_the_table_itself() -> None:
    table = torch.randn(1, 12, 4)
    assert resize_grid_table(table, (3, 4), (3, 4)) is table


@pytest.mark.parametrize('mode', ['bicubic', 'bilinear'])
def test_resizing_is_separable(mode) -> None:
    rows = torch.randn(6, 1).expand(6, 9).reshape(1, 54, 1)
    resized = resize_grid_table(rows, (6, 9), (11, 4), mode).view(11, 4)
    torch.testing.assert_close(resized, resized[:, :1].expand(11, 4))
    columns = torch.randn(1, 9).expand(6, 9).reshape(1, 54, 1)
    resized = resize_grid_table(columns, (6, 9), (11, 4), mode).view(11, 4)
    torch.testing.assert_close(resized, resized[:1].expand(11, 4))
    constant = resize_grid_table(torch.full((1, 54, 1), 2.5), (6, 9), (11, 4), mode)
    torch.testing.assert_close(constant, torch.full((1, 44, 1), 2.5))


def test_resizing_uses_half_pixel_centres() -> None:
    ramp = torch.arange(4.).view(1, 4, 1)
    resized = resize_grid_table(ramp, (1, 4), (1, 8), 'bilinear').flatten()
    torch.testing.assert_close(resized, torch.tensor([0, .25, .75, 1.25, 1.75, 2.25, 2.75, 3]))


def test_wrong_row_count_is_named() -> None:
    with pytest.raises(ValueError, match='10 rows does not lie on a 3x4 grid; expected 12'):
        resize_grid_table(torch.zeros(1, 10, 2), (3, 4), (5, 5))


class TestTableResizer:
    def setup_method(self) -> None:
        self.table = torch.nn.Parameter(torch.randn(1, 12, 4))
        self.resize = TableResizer()

    def resized(self) -> torch.Tensor:
        with torch.no_grad():
            return self.resize(self.table, (3, 4), (5, 6))

    def test_remembers_without_gradients(self) -> None:
        assert self.resized() is self.resized()

    def test_never_remembers_a_graph(self) -> None:
        first = self.resize(self.table, (3, 4), (5, 6))
        assert first.requires_grad and first is not self.resize(self.table, (3, 4), (5, 6))

    @pytest.mark.parametrize('change', ['inplace', 'load', 'dtype', 'roundtrip', 'replaced'])
    def test_forgets_when_the_table_changes(self, change) -> None:
        module = torch.nn.Module()
        module.table = self.table
        before = self.resized()
        if change == 'inplace':
            with torch.no_grad():
                self.table.mul_(2)
        elif change == 'load':
            module.load_state_dict({'table': torch.randn(1, 12, 4)})
        elif change == 'dtype':
            module.double()
        elif change == 'roundtrip':
            module.bfloat16().float()
        else:
            self.table = torch.nn.Parameter(torch.randn(1, 12, 4))
        after = self.resized()
        assert after is not before
        assert torch.equal(after, resize_grid_table(self.table.detach(), (3, 4), (5, 6)))

    def test_a_write_that_leaves_no_trace_is_seen(self) -> None:
        before = self.resized()
        self.table.data.mul_(2)
        torch.testing.assert_close(self.resized(), 2 * before)

    def test_threads_get_the_size_they_asked_for(self) -> None:
        grids, wrong = ((4, 8), (8, 4), (5, 5)), []
        expected = {hw: resize_grid_table(self.table.detach(), (3, 4), hw) for hw in grids}

        def ask(hw: tuple[int, int]) -> None:
            for _ in range(300):
                with torch.no_grad():
                    result = self.resize(self.table, (3, 4), hw)
                if not torch.equal(result, expected[hw]):
                    wrong.append(hw)

        interval = sys.getswitchinterval()
        sys.setswitchinterval(1e-6)
        try:
            threads = [threading.Thread(target=ask, args=(hw,)) for hw in grids]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        finally:
            sys.setswitchinterval(interval)
        assert not wrong

    def test_inference_mode_result_is_not_used_for_training(self) -> None:
        with torch.inference_mode():
            self.resize(self.table, (3, 4), (5, 6))
        assert not self.resized().is_inference()

    def test_copies_start_empty(self) -> None:
        self.resized()
        for twin in (copy.deepcopy(self.resize), pickle.loads(pickle.dumps(self.resize))):
            assert twin._remembered is None and twin.mode == 'bicubic'


@pytest.mark.parametrize('dtype', [torch.float32, torch.bfloat16])
@pytest.mark.parametrize('kernel', [2, 4, 8])
@pytest.mark.parametrize('cells', [(1, 1), (3, 1), (1, 3), (2, 2)])
def test_convolution_of_a_narrow_map(cells, kernel, dtype) -> None:
    """Torch 2.9 makes nonsense of bf16 channels-last maps where one column comes out."""
    conv = torch.nn.Conv2d(16, 8, kernel, kernel).to(dtype)
    tokens = torch.randn(2, cells[0] * cells[1] * kernel**2, 16).to(dtype)
    x = tokens.transpose(1, 2).unflatten(2, (cells[0] * kernel, cells[1] * kernel))
    for layout in (torch.contiguous_format, torch.channels_last):
        with torch.no_grad():
            ours = conv_with_full_cell(conv, x.contiguous(memory_format=layout))
        theirs = torch.nn.functional.conv2d(x.double(), conv.weight.double(), conv.bias.double(),
                                            stride=kernel)
        assert (ours - theirs).norm() < (1e-5 if dtype == torch.float32 else 2e-2) * theirs.norm()
