"""Half precision: finite for whatever comes, near fp32 for what is ordinary.

The loss is a mean, as losses are: gradients of a sum over all outputs would pass fp16's 65504 by
themselves.
"""
from __future__ import annotations

import itertools

import pytest
import torch
from golden import BUILD, stage_blocks
from half import HALF
from test_behaviour import NAMES, build
from torch import Tensor, nn

from flatten_mm.attention import FocusedAttention
from flatten_mm.backbones import FLattenPVTv2

IMAGES = ('zeros', 'constant 1e-8', 'constant 1', 'constant 1e4', '1e-8', '1e-4', '1', '1e4')
SCALES = (-20., 0., 20., 'mixed')
SIZES = ((32, 40), (1, 1), (37, 21))
MODES = ('autocast', 'weights')


def make_image(kind: str, size: tuple[int, int]) -> Tensor:
    if kind == 'zeros':
        return torch.zeros(2, 3, *size)
    if kind.startswith('constant'):
        return torch.full((2, 3, *size), float(kind.split()[1]))
    return torch.randn(2, 3, *size) * float(kind)


def set_scales(model: nn.Module, scale: float | str) -> None:
    for name, parameter in model.named_parameters():
        if name.endswith('scale'):
            nn.init.uniform_(parameter, -20, 20)
            if scale != 'mixed':
                nn.init.constant_(parameter, scale)


def run(model: nn.Module, x: Tensor, dtype: torch.dtype, mode: str) -> tuple[Tensor, ...]:
    if mode == 'weights':
        model, x = model.to(dtype), x.to(dtype)
    with torch.autocast('cpu', dtype, enabled=mode == 'autocast'):
        return model(x)


@pytest.mark.parametrize('mode', MODES)
@pytest.mark.parametrize('dtype', HALF)
@pytest.mark.parametrize('name', NAMES)
def test_backbones_stay_finite(name, dtype, mode) -> None:
    cases = zip(IMAGES, itertools.cycle(SCALES), itertools.cycle(SIZES))
    for kind, scale, size in cases:
        model = build(name, drop_path_rate=0.)
        set_scales(model, scale)
        x = make_image(kind, size).requires_grad_()
        outs = run(model, x, dtype, mode)
        sum((o.float() * torch.randn(o.shape)).mean() for o in outs).backward()
        where = (kind, scale, size)
        assert all(o.isfinite().all() for o in outs), where
        for key, tensor in (('image', x), *model.named_parameters()):
            assert tensor.grad is None or tensor.grad.isfinite().all(), (key, where)


@pytest.mark.parametrize('dtype', HALF)
@pytest.mark.parametrize('p', [1, 3, 32])
def test_the_core_stays_finite(dtype, p) -> None:
    """Queries, keys and values of every size with every other, empty after ReLU, dead heads."""
    sizes, tried = (0., 1e-8, 1e-6, 1e-4, 1., 1e4), 0
    for i, (q, k, v) in enumerate(itertools.product(sizes, sizes[::2], (1e-8, 1., 1e4))):
        core = FocusedAttention(12, 3, (4, 5), focusing_factor=p)
        set_scales(core, SCALES[i % 4])
        core = core.to(dtype)
        inputs = [torch.randn(2, 20, 12) * size for size in (q, k, v)]
        kind = i // 3 % 4
        if kind == 0:
            inputs[i % 2] = -inputs[i % 2].abs()  # nothing after ReLU
        elif kind == 1:
            inputs[i % 2][..., :4] = -inputs[i % 2][..., :4].abs()  # a head of nothing ...
            inputs[i % 2][..., 0] = 1e-6  # ... but a trace
        inputs = [t.to(dtype).requires_grad_() for t in inputs]
        out = core.attend(*inputs, (4, 5), (4, 5))
        (out.float() * torch.randn(out.shape)).mean().backward()
        assert out.isfinite().all(), (q, k, v)
        for tensor in (*inputs, *core.parameters()):
            assert tensor.grad.isfinite().all(), (q, k, v)
        tried += 1
    assert tried == 54


@pytest.mark.parametrize('dtype', HALF)
@pytest.mark.parametrize('grid', [(1, 1), (1, 2), (7, 7), (512, 512)])
def test_from_one_token_to_many(dtype, grid) -> None:
    """Finite, and near fp64 where no element is beside zero."""
    tokens = grid[0] * grid[1]
    core = FocusedAttention(8, 2, (7, 7), kernel_size=3)
    set_scales(core, 0.)
    inputs = [torch.rand(1, tokens, 8) + 0.5 for _ in range(3)]
    with torch.no_grad():
        expected = core.double().attend(*(t.double() for t in inputs), grid, grid)
    core = core.to(dtype)
    inputs = [t.to(dtype).requires_grad_() for t in inputs]
    out = core.attend(*inputs, grid, grid)
    distance = (out.double() - expected).norm() / expected.norm()
    assert distance < {torch.float16: 2e-3, torch.bfloat16: 1e-2}[dtype]
    (out.float() * torch.randn(out.shape)).mean().backward()
    for tensor in (*inputs, *core.parameters()):
        assert tensor.grad.isfinite().all()


def test_padding_does_not_drown_the_gradient() -> None:
    """Without the rule of :class:`LayerNorm` it is 10^5 times as large, and NaN for zeros."""
    norms = {}
    for kind in ('full', 'half padded', 'zeros'):
        torch.manual_seed(0)
        model = FLattenPVTv2('b0')
        model.init_weights()
        x = torch.randn(1, 3, 64, 64)
        x[:, :, :, {'full': 64, 'half padded': 32, 'zeros': 0}[kind]:] = 0
        sum((o * torch.randn(o.shape)).mean() for o in model.eval()(x)).backward()
        norms[kind] = torch.stack([p.grad.norm() for p in model.parameters()
                                   if p.grad is not None]).norm()
    assert norms['zeros'].isfinite()
    assert norms['half padded'] < 100 * norms['full'], norms


def distances(low, outs) -> list[float]:
    """Norm of the difference over the norm, a stage."""
    return [((a.float() - b).norm() / b.norm()).item() for a, b in zip(low, outs)]


@pytest.mark.parametrize('mode', MODES)
@pytest.mark.parametrize('dtype', HALF)
@pytest.mark.parametrize('name', NAMES)
def test_near_fp32(name, dtype, mode) -> None:
    model, x = build(name).eval(), torch.randn(2, 3, 64, 96)
    with torch.no_grad():
        outs = model(x)
        assert max(distances(run(model, x, dtype, mode), outs)) < 2e-2


@pytest.mark.parametrize('mode', MODES)
@pytest.mark.parametrize('dtype', HALF)
@pytest.mark.parametrize('name', ['pvt_llll', 'swin_llss', 'swin_window14_llss', 'pvt_v2_llll',
                                  'pvt_v2_linear_llss', 'cswin_mixed_lmms1'])
def test_near_fp32_with_the_weights_of_the_records(name, dtype, mode, shared) -> None:
    record = torch.load(shared('golden', f'{name}.pt'), weights_only=True)
    model = BUILD[record['family']](record['kwargs']).eval()
    model.load_state_dict({k: v for k, v in record['state_dict'].items() if 'head.' not in k})
    stages = []
    for blocks in stage_blocks(model, record['family']):
        blocks[-1].register_forward_hook(lambda *args: stages.append(args[-1]))
    with torch.no_grad():
        model(record['input'])
        run(model, record['input'], dtype, mode)
    found = distances(stages[4:], stages[:4])
    assert max(found) < 2e-2, found
