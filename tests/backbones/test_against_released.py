"""The fast PVT against the eager restatement of the released computation."""
from __future__ import annotations

import pytest
import torch
from released import as_released

from flatten_mm import FLattenPVT
from flatten_mm.analysis.benchmark import saved_bytes

SAVED = {'LLLL': 0.65, 'SSSS': 0.8}  # bytes for the backward pass, at most, of the released ones


@pytest.fixture(scope='module', params=SAVED)
def models(request) -> tuple[torch.nn.Module, torch.nn.Module]:
    torch.manual_seed(0)
    ours = FLattenPVT('tiny', request.param, drop_path_rate=0.)
    ours.init_weights()
    with torch.no_grad():
        for name, parameter in ours.named_parameters():
            if name.endswith(('scale', 'positional_encoding')):
                parameter.normal_(std=0.1)
    theirs = as_released(FLattenPVT('tiny', request.param, drop_path_rate=0.))
    theirs.load_state_dict(ours.state_dict())
    return ours, theirs


def relative(a: torch.Tensor, b: torch.Tensor) -> float:
    return ((a - b).abs().max() / b.abs().max()).item()


@pytest.mark.parametrize('size', [(224, 224), (160, 256)])
def test_outputs_to_1e_5(models, size) -> None:
    x = torch.randn(2, 3, *size)
    with torch.inference_mode():
        assert max(relative(a, b) for a, b in zip(*(m.eval()(x) for m in models))) < 1e-5


def test_gradients_to_1e_5_and_less_memory(models, request) -> None:
    x = torch.randn(1, 3, 256, 256)
    saved, weights = [], None
    for model in models:
        model.train().zero_grad()
        saved.append(saved_bytes(lambda model=model: model(x)))
        outs = model(x)
        weights = weights or [torch.randn_like(out) for out in outs]
        sum((out * weight).sum() for out, weight in zip(outs, weights)).backward()
    assert saved[0] < SAVED[request.node.callspec.params['models']] * saved[1]
    for (name, a), b in zip(models[0].named_parameters(), models[1].parameters()):
        if a.requires_grad:
            assert relative(a.grad, b.grad) < 1e-5, name


def test_focused_saves_less_than_the_plain_softmax_twin() -> None:
    x = torch.randn(1, 3, 512, 512)
    ours, twin = (model.train() for model in (FLattenPVT('tiny'),
                                              as_released(FLattenPVT('tiny', 'SSSS'))))
    assert saved_bytes(lambda: ours(x)) < 0.8 * saved_bytes(lambda: twin(x))
