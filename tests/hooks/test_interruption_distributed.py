"""A signal to one process of two stops both at one step, from which they go on exactly."""
from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from interrupted import STEPS, differences, interruptible_config, outcome
from tiny import write_data

from flatten_mm.hooks.files import newest_checkpoint

SCRIPT = Path(__file__).resolve().parents[2] / 'tools' / 'dist_train.sh'
# Writes where each process is, and leaves time to send a signal.
SLOW = '''
import os
import time

from mmengine.dist import get_rank
from mmengine.hooks import Hook
from mmengine.registry import HOOKS


@HOOKS.register_module()
class Slow(Hook):
    def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None):
        with open(f'{runner.work_dir}/at.{get_rank()}', 'w') as file:
            file.write(f'{os.getpid()} {runner.iter + 1} ')
        time.sleep(0.2)
'''


@pytest.mark.slow
def test_one_process_is_told(tmp_path):
    write_data(tmp_path / 'data')
    (tmp_path / 'slow.py').write_text(SLOW)
    config = interruptible_config(tmp_path, tmp_path / 'data', **{
        "imports=['flatten_mm']": "imports=['flatten_mm', 'slow']",
        'custom_hooks = [': "custom_hooks = [dict(type='Slow'), "})

    def start(work, *options):
        with socket.socket() as free:
            free.bind(('127.0.0.1', 0))
            port = str(free.getsockname()[1])
        with (tmp_path / f'{work}.log').open('ab') as log:
            return subprocess.Popen(
                ['bash', SCRIPT, config, '2', '--work-dir', tmp_path / work, *options],
                stdout=log, stderr=log, cwd=tmp_path, env={
                    **os.environ, 'OMP_NUM_THREADS': '1', 'PORT': port, 'PYTHON': sys.executable,
                    'PYTHONPATH': str(tmp_path)})

    def at(rank):
        """Process id and step of a process."""
        try:
            pid, step, _ = (tmp_path / 'stopped' / f'at.{rank}').read_text().split(' ')
            return int(pid), int(step)
        except (FileNotFoundError, ValueError):
            return 0, 0

    assert start('whole').wait(300) == 0, (tmp_path / 'whole.log').read_text()
    process = start('stopped')
    deadline = time.monotonic() + 240
    while at(1)[1] < 4:
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)
    os.kill(at(1)[0], signal.SIGTERM)
    assert process.wait(120) == 1  # torchrun's own status
    log = (tmp_path / 'stopped.log').read_text()
    assert 'exitcode  : 75' in log
    newest = newest_checkpoint(tmp_path / 'stopped', pytest.fail)
    content = torch.load(newest)
    assert at(0)[1] == at(1)[1] == content['meta']['iter'] < STEPS
    assert len(content['resume_state']['processes']) == 2
    assert start('stopped', '--resume').wait(300) == 0, (tmp_path / 'stopped.log').read_text()
    last = f'iter_{STEPS}.pth'
    assert list(differences(outcome(tmp_path / 'whole', last),
                            outcome(tmp_path / 'stopped', last))) == []
