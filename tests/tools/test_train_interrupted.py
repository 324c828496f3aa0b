"""What tools/train.py says, and how it ends, when a training is interrupted."""
from __future__ import annotations

import errno
import functools
import importlib.util
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import mmengine.config.config
import mmpretrain.datasets
import mmpretrain.evaluation
import mmpretrain.models
import mmpretrain.visualization  # noqa: F401  once, before children fork
import pytest
import torch
from interrupted import in_child, interruptible_config, kill_at
from mmengine.visualization import LocalVisBackend
from yapf.yapflib import yapf_api

from flatten_mm.hooks.files import newest_checkpoint

TRAIN = Path(__file__).resolve().parents[2] / 'tools' / 'train.py'


@pytest.fixture
def tool(tmp_path, data, load_main):
    """Function that runs the tool in a child; gives its exit status and what it printed."""
    config = interruptible_config(tmp_path, data)
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # threads do not survive a fork
    log = tmp_path / 'log'

    def run(*argv, interrupt=lambda: None):
        log.write_bytes(b'')

        def work():
            interrupt()
            return load_main([str(item) for item in (config, '--work-dir', tmp_path / 'work',
                                                     *argv)])
        return in_child(work, log), log.read_text()
    yield run
    torch.set_num_threads(before)


@pytest.fixture
def load_main():
    """``main`` of the tool."""
    spec = importlib.util.spec_from_file_location('train_interrupted', TRAIN)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.main


at_step = functools.partial(kill_at, torch.optim.AdamW, 'step')


def last_line(said: str) -> str:
    assert 'Traceback' not in said, said
    return said.splitlines()[-1]


def test_ctrl_c_names_the_last_checkpoint(tool, tmp_path):
    code, said = tool(interrupt=lambda: at_step(5, number=signal.SIGINT))
    assert code == 130
    assert last_line(said) == (f'interrupted; the last checkpoint is {tmp_path}/work/iter_3.pth, '
                               '--resume goes on from there')


def test_ctrl_c_while_mmengine_formats_the_config(tool):
    """mmengine makes a SyntaxError of it that prints the whole config."""
    def interrupt():
        here = mmengine.config.config  # the onedl fork imports it where it calls it
        kill_at(here if hasattr(here, 'FormatCode') else yapf_api, 'FormatCode',
                number=signal.SIGINT)
    code, said = tool(interrupt=interrupt)
    assert code == 130
    assert last_line(said) == 'interrupted; no checkpoint was saved yet'


def test_a_full_disk(tool, tmp_path):
    """Simulated by a limit on the size of files, which a checkpoint meets and a log does not."""
    def limit(*args):
        resource.setrlimit(resource.RLIMIT_FSIZE, (500_000, 500_000))
    code, said = tool(interrupt=lambda: at_step(5, number=0, first=limit))
    assert code == 1
    work = tmp_path / 'work'
    error = last_line(said)
    assert error.startswith(f'error: checkpoint {work}/iter_6.pth cannot be written (File too '
                            'large): it needs 1.7 MB, ')
    assert error.endswith(f' are free in {work}; free some space or raise the limit, the last '
                          f'checkpoint is {work}/iter_3.pth, --resume goes on from there')
    assert sorted(path.name for path in work.glob('*.p*')) == [
        'best_accuracy_top1_iter_3.pth', 'iter_3.pth', 'iters.py']
    assert newest_checkpoint(work, pytest.fail).name == 'iter_3.pth'


def test_a_log_on_a_full_disk(tool, tmp_path):
    def full(*args):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    code, said = tool(interrupt=lambda: kill_at(
        LocalVisBackend, 'add_scalars', 5, number=0, first=full))
    assert code == 1
    assert last_line(said) == (
        f'error: a log in {tmp_path}/work cannot be written (No space left on device); free some '
        f'space or raise the limit, the last checkpoint is {tmp_path}/work/iter_3.pth, --resume '
        'goes on from there')


def test_a_damaged_checkpoint_is_passed_over(tool, tmp_path):
    keep = ('--cfg-options', 'default_hooks.checkpoint.max_keep_ckpts=3')
    assert tool(*keep, interrupt=lambda: at_step(8))[0] == -signal.SIGKILL
    newest = tmp_path / 'work' / 'iter_6.pth'
    os.truncate(newest, newest.stat().st_size // 2)
    code, said = tool('--resume', *keep)
    assert code == 0
    assert f'{newest} is truncated or damaged' in said
    assert f'resuming from {tmp_path}/work/iter_3.pth instead' in said
    for path in (tmp_path / 'work').glob('iter_*.pth'):
        os.truncate(path, 100)
    code, said = tool('--resume', *keep)
    assert code == 1
    assert last_line(said).startswith('error: ')
    assert 'holds no other checkpoint that is whole' in last_line(said)


def test_killed_before_the_first_checkpoint(tool, tmp_path):
    (tmp_path / 'work').mkdir()
    for name in ('iter_3.pth.partial', 'best_accuracy_top1_iter_2.pth'):
        (tmp_path / 'work' / name).write_bytes(b'')
    code, said = tool('--resume', '--cfg-options', 'train_cfg.max_iters=1')
    assert code == 0, said
    assert 'training starts from the beginning' in said
    assert not (tmp_path / 'work' / 'iter_3.pth.partial').exists()


def test_a_real_process_stops_with_its_own_status(tmp_path, data):
    config = interruptible_config(tmp_path, data)
    work = tmp_path / 'work'
    with (tmp_path / 'log').open('wb') as log:
        process = subprocess.Popen(
            [sys.executable, TRAIN, config, '--work-dir', work,
             '--cfg-options', 'train_cfg.max_iters=5000'],
            stdout=log, stderr=log, env={**os.environ, 'OMP_NUM_THREADS': '1'})
    try:
        deadline = time.monotonic() + 120
        while not (work / 'last_checkpoint').exists() and process.poll() is None:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 75, (tmp_path / 'log').read_text()
    finally:
        process.kill()
    newest = newest_checkpoint(work, pytest.fail)
    assert f'go on from {newest} with --resume' in (tmp_path / 'log').read_text()
