"""Two processes do what one does with twice the batch; the scripts start them."""
from __future__ import annotations

import json
import os
import re
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tiny import write_config, write_data

from flatten_mm.compat import load_from_local

REPO = Path(__file__).resolve().parents[1]
STEPS = 3
# Losses as each process has them: the log holds those of the first alone.
RECORDER = '''
from mmengine.dist import get_rank
from mmengine.hooks import Hook
from mmengine.registry import HOOKS


@HOOKS.register_module()
class RecordLosses(Hook):
    def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None):
        with open(f'{runner.work_dir}/losses.{get_rank()}', 'a') as file:
            file.write(f'{outputs["loss"].item()!r}\\n')
'''
# Plain SGD: Adam divides a gradient by its size, so one of rounding noise alone moves a weight as
# far as any other.
CHANGES = {
    "dict(type='AdamW', lr=1e-3)": "dict(type='SGD', lr=0.1)",
    'max_iters=2, val_interval=2': f'max_iters={STEPS}, val_interval={STEPS}',
    'by_epoch=False, interval=2': f'by_epoch=False, interval={STEPS}',
    "imports=['flatten_mm']": "imports=['flatten_mm', 'record_losses']",
    "log_processor = dict": "custom_hooks = [dict(type='RecordLosses')]\n"
                            "randomness = dict(seed=0)\nlog_processor = dict",
}
SCOPE_CHANGES = {
    'mmseg': {"norm_cfg=dict(type='BN')": "dropout_ratio=0.0, norm_cfg=dict(type='SyncBN')"},
    'mmpretrain': {},
}


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp('distributed')
    write_data(path / 'data')
    (path / 'record_losses.py').write_text(RECORDER)
    return path


@pytest.fixture(scope='module')
def runs(folder):
    """Function of a scope: work folders of the run in one process and of that in two."""
    done = {}

    def run(scope):
        if scope not in done:
            config = write_config(scope, folder, folder / 'data', f'run_{scope}', **CHANGES,
                                  **SCOPE_CHANGES[scope])
            one, two = folder / f'{scope}_one', folder / f'{scope}_two'
            _run(folder, sys.executable, REPO / 'tools/train.py', config, '--work-dir', one,
                 '--cfg-options', 'train_dataloader.batch_size=4')
            _run(folder, 'bash', REPO / 'tools/dist_train.sh', config, 2, '--work-dir', two)
            done[scope] = config, one, two
        return done[scope]
    return run


@pytest.mark.slow
@pytest.mark.parametrize('scope', SCOPE_CHANGES)
def test_two_processes_train_as_one(scope, runs):
    _, one, two = runs(scope)
    losses = {path: [float(line) for line in path.read_text().split()]
              for path in (one / 'losses.0', two / 'losses.0', two / 'losses.1')}
    single, *shares = losses.values()
    assert len(single) == STEPS
    assert shares[0] != shares[1], 'both processes saw the same images'
    mean = torch.tensor(shares, dtype=torch.float64).mean(dim=0)
    torch.testing.assert_close(mean, torch.tensor(single, dtype=torch.float64), rtol=0, atol=1e-5)

    weights, others = (load_from_local(str(path / f'iter_{STEPS}.pth'), 'cpu')['state_dict']
                       for path in (one, two))
    assert weights.keys() == others.keys()
    for name, value in weights.items():
        torch.testing.assert_close(others[name], value, rtol=0, atol=1e-5, msg=name)


@pytest.mark.slow
@pytest.mark.parametrize('scope', SCOPE_CHANGES)
def test_two_processes_evaluate_as_one(scope, runs):
    """Each process has half of the images; the metric is that of all."""
    metrics = []
    for work_dir in runs(scope)[1:]:
        log, = work_dir.glob('*/vis_data/scalars.json')
        last = json.loads(log.read_text().splitlines()[-1])
        metrics.append({key: value for key, value in last.items() if 'time' not in key})
    assert any(key in metrics[0] for key in ('mIoU', 'accuracy/top1'))
    assert metrics[1] == pytest.approx(metrics[0], abs=1e-5)


@pytest.mark.slow
def test_dist_test_reports_the_metric_of_one_process(runs, folder):
    config, one, _ = runs('mmseg')
    checkpoint = one / f'iter_{STEPS}.pth'
    found = []
    for command in (['bash', REPO / 'tools/dist_test.sh', config, checkpoint, 2],
                    [sys.executable, REPO / 'tools/test.py', config, checkpoint]):
        out = _run(folder, *command, '--work-dir', folder / f'test_{len(found)}')
        found.append([float(value) for value in re.findall(r'^mIoU: (\S+)$', out, re.M)])
    assert len(found[0]) == 1, 'one process tells the result'
    assert found[0] == pytest.approx(found[1], abs=1e-5)


@pytest.mark.parametrize('script, arguments', [
    ('dist_train.sh', ['config.py']), ('dist_test.sh', ['config.py', 'file.pth']),
    ('slurm_train.sh', ['partition', 'job'])])
def test_scripts_say_what_they_need(script, arguments):
    done = subprocess.run(['bash', REPO / 'tools' / script, *arguments], capture_output=True,
                          text=True)
    assert done.returncode == 2
    assert f'tools/{script}' in done.stderr and 'CONFIG' in done.stderr


def test_slurm_script_asks_for_the_job(tmp_path):
    """srun is a stand-in that writes down how it is called."""
    srun = tmp_path / 'srun'
    srun.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    srun.chmod(srun.stat().st_mode | stat.S_IXUSR)
    done = subprocess.run(
        ['bash', REPO / 'tools/slurm_train.sh', 'gpu', 'a job', 'config.py', '--amp'],
        capture_output=True, text=True, check=True,
        env={**os.environ, 'PATH': f'{tmp_path}:{os.environ["PATH"]}', 'GPUS': '4',
             'SRUN_ARGS': '--time=1 --quiet', 'PYTHON': 'python3'})
    arguments = done.stdout.splitlines()
    assert arguments[:8] == ['-p', 'gpu', '--job-name=a job', '--gres=gpu:4', '--ntasks=4',
                             '--ntasks-per-node=4', '--cpus-per-task=5', '--kill-on-bad-exit=1']
    assert arguments[8:12] == ['--time=1', '--quiet', 'python3', '-u']
    assert Path(arguments[12]).name == 'train.py'
    assert arguments[13:] == ['config.py', '--launcher', 'slurm', '--amp']


def _run(folder: Path, *command) -> str:
    """Run a command in ``folder`` without a GPU; returns its output."""
    with socket.socket() as probe:
        probe.bind(('127.0.0.1', 0))
        port = probe.getsockname()[1]
    environment = {**os.environ, 'CUDA_VISIBLE_DEVICES': '', 'OMP_NUM_THREADS': '1',
                   'PYTHON': sys.executable, 'PORT': str(port),
                   'PYTHONPATH': os.pathsep.join([str(folder), str(REPO)])}
    done = subprocess.run([str(part) for part in command], cwd=folder, env=environment,
                          capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout
