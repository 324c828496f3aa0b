"""The training hook: what it logs, when, and that it leaves training as it is."""
from __future__ import annotations

import json
import math
from types import SimpleNamespace

import pytest
import torch
from mmengine.config import Config
from mmengine.registry import HOOKS
from mmengine.runner import Runner
from tiny import write_config, write_data

from flatten_mm import FLattenPVT
from flatten_mm.analysis.hook import FocusedAttentionStatsHook

ARCH = dict(embed_dims=[8, 8, 16, 16], num_heads=[1, 1, 2, 2], mlp_ratios=[2, 2, 2, 2],
            depths=[1, 1, 1, 1])


class Visualizer:
    def __init__(self):
        self.logged = []

    def add_scalars(self, scalars, step):
        self.logged.append((step, dict(scalars)))


def steps(hook, model, count, batch=2):
    """``count`` training steps on noise; returns what was logged."""
    runner = SimpleNamespace(model=model, visualizer=Visualizer(), iter=0)
    hook.before_train(runner)
    for _ in range(count):
        hook.before_train_iter(runner, runner.iter)
        sum(out.sum() for out in model(torch.randn(batch, 3, 64, 64))).backward()
        hook.after_train_iter(runner, runner.iter)
        runner.iter += 1
    return runner.visualizer.logged


def test_logs_each_focused_block_at_the_interval():
    model = FLattenPVT(ARCH, attn_type='LSLS', pretrain_img_size=64)
    with torch.no_grad():
        model.block1[0].attn.scale.copy_(torch.linspace(-1, 2, 8))
        model.block1[0].attn.q.weight.zero_()
        model.block1[0].attn.q.bias.fill_(-1.)  # every query dies
    logged = steps(HOOKS.build(dict(type='FocusedAttentionStatsHook', interval=2)), model, 5)
    assert [step for step, _ in logged] == [2, 4]
    values = logged[0][1]
    assert {key.rsplit('/', 1)[1] for key in values} == {'block1.0.attn', 'block3.0.attn'}
    first = {key.split('/')[1]: value for key, value in values.items() if 'block1' in key}
    assert first['dead_queries'] == 1 and 0 <= first['dead_keys'] < 1
    assert first['scale_min'] == pytest.approx(math.log1p(math.exp(-1)), abs=1e-5)
    assert first['scale_max'] == pytest.approx(math.log1p(math.exp(2)), abs=1e-5)
    assert 0 < first['entropy'] <= math.log(256) and 0 < first['relative_entropy'] <= 1
    assert all(not math.isnan(value) for value in values.values())


def test_is_unseen_between_intervals_and_afterwards():
    model = FLattenPVT(ARCH, pretrain_img_size=64)
    hook = FocusedAttentionStatsHook(interval=3)
    runner = SimpleNamespace(model=model, visualizer=Visualizer(), iter=0)
    hook.before_train_iter(runner, 0)
    assert all('attend' not in vars(module) for module in model.modules())
    steps(hook, model, 3)
    assert all('attend' not in vars(module) for module in model.modules())
    assert all(not module._forward_pre_hooks for module in model.modules())


def test_recomputed_blocks_count_once_and_gradients_stay():
    grads = []
    for with_cp, hook in ((False, None), (True, FocusedAttentionStatsHook(interval=1))):
        torch.manual_seed(0)
        model = FLattenPVT(ARCH, pretrain_img_size=64, with_cp=with_cp, drop_path_rate=0.).train()
        torch.manual_seed(1)
        if hook is None:
            sum(out.sum() for out in model(torch.randn(2, 3, 64, 64))).backward()
        else:
            assert len(steps(hook, model, 1)) == 1
        grads.append([p.grad for p in model.parameters() if p.grad is not None])
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(*grads))


@pytest.mark.skipif(not hasattr(torch.compiler, 'set_stance'), reason='torch before 2.6')
def test_a_compiled_model_is_not_compiled_again():
    graphs = []

    def count(graph, inputs):
        graphs.append(graph)
        return graph.forward

    model = torch.compile(FLattenPVT(ARCH, pretrain_img_size=64), backend=count)
    steps(FocusedAttentionStatsHook(interval=4), model, 2)  # compiles
    before = len(graphs)
    assert before > 0
    logged = steps(FocusedAttentionStatsHook(interval=2), model, 4)
    assert len(logged) == 2 and len(logged[0][1]) == 4 * 6
    assert len(graphs) == before


def test_mistakes_are_named():
    with pytest.raises(ValueError, match='interval=0; expected at least 1'):
        FocusedAttentionStatsHook(interval=0)
    runner = SimpleNamespace(model=FLattenPVT(ARCH, attn_type='SSSS'))
    with pytest.raises(ValueError, match='no block of the backbone is focused'):
        FocusedAttentionStatsHook().before_train(runner)
    runner.model = torch.nn.Linear(1, 1)
    with pytest.raises(ValueError, match='holds no FLatten backbone'):
        FocusedAttentionStatsHook().before_train(runner)


def test_scalars_reach_the_files_of_a_training(tmp_path):
    write_data(tmp_path / 'data')
    cfg = Config.fromfile(write_config('mmseg', tmp_path, tmp_path / 'data'))
    cfg.work_dir = str(tmp_path / 'work')
    cfg.custom_imports.imports.append('flatten_mm.analysis.hook')
    cfg.custom_hooks = [dict(type='FocusedAttentionStatsHook', interval=2)]
    Runner.from_cfg(cfg).train()
    file, = (tmp_path / 'work').glob('*/vis_data/scalars.json')
    entries = [json.loads(line) for line in file.read_text().splitlines()]
    found, = (entry for entry in entries if 'attention/entropy/block1.0.attn' in entry)
    assert found['step'] == 2
    assert len(found) == 1 + 4 * 6
