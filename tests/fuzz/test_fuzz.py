"""A short run of the fuzz, and that it sees what it is for."""
from __future__ import annotations

import fuzz_backbones as fuzz
import pytest
import torch

from flatten_mm.attention import focused, grid


def test_forty_cases() -> None:
    tried, failures, _ = fuzz.run(range(40))
    assert not failures, '\n'.join(
        f'{message}\n{case}\npython tests/fuzz/fuzz_backbones.py --only {case.seed}'
        for case, message in failures)
    assert len(tried) == 6  # every family, PVTv2's linear variant among them


def test_a_seed_is_a_case() -> None:
    assert fuzz.draw_case(7) == fuzz.draw_case(7) != fuzz.draw_case(8)


def first(**wanted) -> fuzz.Case:
    """The first case with these properties of ``kwargs`` or of the case."""
    return next(case for case in map(fuzz.draw_case, range(10**4)) if all(
        test(case.kwargs.get(name, getattr(case, name, None))) for name, test in wanted.items()))


def broken_eps(monkeypatch) -> None:
    monkeypatch.setattr(focused, 'EPS', 1e-5)


def broken_padding(monkeypatch) -> None:
    """Padded tokens count as keys."""
    monkeypatch.setattr(grid.Windows, 'valid_tokens', lambda self, *args: None)


def broken_gradient(monkeypatch) -> None:
    backward = focused._FocusedLinearAttention.backward

    def half(ctx, grad):
        d_q, *others = backward(ctx, grad)
        return (d_q / 2, *others)

    monkeypatch.setattr(focused._FocusedLinearAttention, 'backward', staticmethod(half))


@pytest.mark.parametrize('breaks, case, message', [
    (broken_eps, first(attn_type=lambda t: t[:4] == 'LLLL', batch=lambda b: b > 1),
     'differs from the oracle'),
    (broken_padding, first(family=lambda f: f == 'FLattenSwin', size=lambda s: min(s) > 40,
                           attn_type=lambda t: t[0] == 'L', window_size=lambda w: w in (3, 6)),
     'differs from the oracle'),
    (broken_gradient, first(attn_type=lambda t: t[:4] == 'LLLL', with_gradients=bool),
     'differs from autograd'),
])
def test_a_fault_is_found(breaks, case, message, monkeypatch) -> None:
    torch.set_num_threads(1)
    fuzz.check(case)
    breaks(monkeypatch)
    with pytest.raises(AssertionError, match=message):
        fuzz.check(case)
