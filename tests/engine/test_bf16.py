"""Mixed precision on a CPU: its wrapper, how it is chosen, and that it trains like fp32."""
from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from amp_curves import losses_of, smoothed
from mmengine.config import Config
from mmengine.optim import OptimWrapper
from mmengine.registry import MODELS
from tiny import SCOPES, write_config, write_data
from torch import nn

from flatten_mm.engine import UserError
from flatten_mm.engine.bf16 import Bf16OptimWrapper
from flatten_mm.engine.training import _set_amp, train

no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason='there is a GPU')


@pytest.fixture(scope='module')
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp('tiny') / 'data'
    write_data(folder)
    return folder


class Recording(nn.Linear):
    def forward(self, x):
        out = super().forward(x)
        self.seen = out.dtype
        return out


def step(wrapper: OptimWrapper, model: nn.Module) -> None:
    with wrapper.optim_context(model):
        loss = model(torch.ones(3, 4)).float().square().mean()
    wrapper.update_params(loss)


def test_forward_in_bf16_parameters_in_fp32() -> None:
    model = Recording(4, 2)
    wrapper = Bf16OptimWrapper(optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
                               clip_grad=dict(max_norm=1.), accumulative_counts=2)
    before = copy.deepcopy(model.weight)
    step(wrapper, model)
    assert model.seen == torch.bfloat16 and torch.equal(model.weight, before)
    assert model.weight.dtype == model.weight.grad.dtype == torch.float32
    step(wrapper, model)
    assert not torch.equal(model.weight, before)
    assert nn.functional.linear(torch.ones(1, 4), model.weight).dtype == torch.float32


def test_state_goes_to_and_from_other_wrappers() -> None:
    model = Recording(4, 2)

    def wrapper(kind):
        groups = [dict(params=[p]) for p in model.parameters()]
        return kind(optimizer=torch.optim.AdamW(groups, lr=0.1))

    first = wrapper(Bf16OptimWrapper)
    step(first, model)
    state = first.state_dict()
    assert set(state) == set(wrapper(OptimWrapper).state_dict())
    for kind, extra in ((OptimWrapper, {}), (Bf16OptimWrapper, dict(loss_scaler={'scale': 8.}))):
        other = wrapper(kind)
        other.load_state_dict(copy.deepcopy(state) | extra)
        assert other.optimizer.state_dict()['state'][0]['step'] == 1
        assert other.base_param_settings is not None


def trainable(**optim_wrapper) -> Config:
    return Config(dict(default_scope='mmseg', optim_wrapper=optim_wrapper))


@no_gpu
@pytest.mark.parametrize('amp, given', [
    (True, dict(type='OptimWrapper', clip_grad=dict(max_norm=1))),
    (True, dict()),
    (False, dict(type='AmpOptimWrapper', loss_scale='dynamic')),
    (True, dict(type='AmpOptimWrapper', loss_scale=512., dtype='bfloat16', use_fsdp=False)),
    (True, dict(type='Bf16OptimWrapper'))])
def test_amp_without_a_gpu_is_bf16(amp, given) -> None:
    cfg = trainable(**given)
    _set_amp(cfg, amp)
    assert cfg.optim_wrapper.type == 'Bf16OptimWrapper'
    assert set(cfg.optim_wrapper) <= {'type', 'clip_grad'}


@no_gpu
def test_fp16_without_a_gpu_is_refused() -> None:
    with pytest.raises(UserError, match='in float16 .optim_wrapper.dtype. needs a GPU.*bfloat16'):
        _set_amp(trainable(type='AmpOptimWrapper', dtype='float16'), False)


def test_with_a_gpu_it_is_mmengines(monkeypatch) -> None:
    monkeypatch.setattr('flatten_mm.engine.training.get_device', lambda: 'cuda')
    cfg = trainable(type='OptimWrapper')
    _set_amp(cfg, True)
    assert cfg.optim_wrapper == dict(type='AmpOptimWrapper', loss_scale='dynamic')


@no_gpu
@pytest.mark.parametrize('scope', SCOPES)
def test_loss_follows_fp32(scope, data, tmp_path) -> None:
    """20 steps of backbone, neck and heads of each scope; amp_curves.py runs hundreds by hand."""
    config = write_config(scope, tmp_path, data)
    fp32, amp = (losses_of(config, tmp_path / name, 20, name == 'amp') for name in ('fp32', 'amp'))
    assert np.isfinite(amp).all() and len(amp) == 20
    assert not np.array_equal(fp32, amp)
    gap = np.abs(smoothed(amp, 8) / smoothed(fp32, 8) - 1)
    assert gap.max() < 0.05, gap


@no_gpu
def test_resumed_training_equals_the_unbroken_one(data, tmp_path) -> None:
    def run(folder, steps, **kwargs):
        cfg = Config.fromfile(write_config('mmpretrain', tmp_path, data))
        cfg.train_cfg.max_iters = steps
        cfg.randomness = dict(seed=0)
        cfg.train_dataloader.sampler.shuffle = False
        return train(cfg, work_dir=tmp_path / folder, amp=True, **kwargs)

    whole = run('whole', 4)
    run('broken', 2)
    resumed = run('broken', 4, resume=True)
    assert isinstance(resumed.optim_wrapper, Bf16OptimWrapper)
    assert resumed.iter == 4
    for a, b in zip(whole.model.state_dict().values(), resumed.model.state_dict().values()):
        # The data start anew: an endless sampler of four images in batches of two is back where
        # it was after two steps.
        torch.testing.assert_close(a, b, rtol=0, atol=0)


def test_heads_of_a_detector_run_in_fp32(data, tmp_path) -> None:
    import mmdet.models  # noqa: F401  (registers)
    from mmengine.registry import DefaultScope

    cfg = Config.fromfile(write_config('mmdet', tmp_path, data))
    with DefaultScope.overwrite_default_scope('mmdet'):
        detector = MODELS.build(cfg.model)
    wrapper = Bf16OptimWrapper(optimizer=torch.optim.SGD(detector.parameters(), lr=0.1))
    seen = {}
    for name in ('backbone.layers.0.blocks.0.mlp.fc1', 'neck.fpn_convs.0.conv',
                 'rpn_head.rpn_conv'):
        detector.get_submodule(name).register_forward_hook(
            lambda module, args, out, name=name: seen.update({name.split('.')[0]: out.dtype}))
    with wrapper.optim_context(detector):
        detector.rpn_head(detector.extract_feat(torch.randn(1, 3, 64, 64)))
    assert seen == dict(backbone=torch.bfloat16, neck=torch.bfloat16, rpn_head=torch.float32)
    assert 'extract_feat' not in vars(detector)


