"""Trainings of 12 steps in child processes, killed where a test says."""
from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from mmengine.logging import MMLogger
from tiny import write_config

from flatten_mm.compat import load_from_local

STEPS = 12
CHECKPOINT = 'ResumableCheckpointHook'

# Everything that draws random numbers or keeps a state of its own: augmentation, drop path, EMA,
# a warm-up, the best checkpoint so far.
_CHANGES = {
    'drop_path_rate=0.0': 'drop_path_rate=0.3',
    "dict(type='Resize', scale=(32, 32))":
        "dict(type='RandomResizedCrop', scale=32), dict(type='RandomFlip', prob=0.5)",
    ",\n    visualization=dict(type='VisualizationHook')": '',
    'log_processor = dict': f"""randomness = dict(seed=0)
custom_hooks = [dict(type='EMAHook', momentum=0.1)]
param_scheduler = [
    dict(type='LinearLR', start_factor=0.1, by_epoch=False, begin=0, end=5),
    dict(type='CosineAnnealingLR', by_epoch=False, begin=5, end={STEPS})]
log_processor = dict""",
}
_BY_ITER = {
    'max_iters=2, val_interval=2': f'max_iters={STEPS}, val_interval=3',
    "type='CheckpointHook', by_epoch=False, interval=2":
        f"type='{CHECKPOINT}', by_epoch=False, interval=3, max_keep_ckpts=1, "
        "save_best='accuracy/top1'",
}
_BY_EPOCH = {
    "type='IterBasedTrainLoop', max_iters=2, val_interval=2": 'by_epoch=True, max_epochs=3',
    "type='CheckpointHook', by_epoch=False, interval=2":
        f"type='{CHECKPOINT}', interval=1, max_keep_ckpts=1, save_best='accuracy/top1'",
    'InfiniteSampler': 'DefaultSampler',
    'log_processor = dict(by_epoch=False)': '',
    ', log_metric_by_epoch=False': '',
}
LAST = {False: f'iter_{STEPS}.pth', True: 'epoch_3.pth'}


def interruptible_config(folder: Path, data: Path, by_epoch: bool = False,
                         **replaced: str) -> Path:
    """Write a classifier's config; an epoch has four steps. ``replaced`` are more such texts."""
    folder.mkdir(parents=True, exist_ok=True)
    return write_config('mmpretrain', folder, data, 'epochs' if by_epoch else 'iters',
                        **{**_CHANGES, **(_BY_EPOCH if by_epoch else _BY_ITER), **replaced})


def in_child(work: Callable[[], Any], log: Path) -> int:
    """Run ``work`` in a fork of this process, its output going to ``log``.

    Returns:
        Its exit status; minus the signal that killed it; 99 after an exception.
    """
    pid = os.fork()
    if pid == 0:
        code = 99
        try:
            with log.open('ab') as file:
                os.dup2(file.fileno(), 1)
                os.dup2(file.fileno(), 2)
            sys.stdout = open(1, 'w', 1, closefd=False)  # noqa: SIM115 - until the child ends
            sys.stderr = open(2, 'w', 1, closefd=False)  # noqa: SIM115
            MMLogger._instance_dict.clear()  # those of tests before write to their own output
            code = work() or 0
        except SystemExit as stop:
            code = stop.code
        except BaseException:
            os.write(2, traceback.format_exc().encode())
        finally:
            sys.stdout.flush()
            os._exit(code)
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status)


def kill_at(owner: Any, name: str, count: int = 1, *, after: bool = False,
            number: int = signal.SIGKILL, first: Callable = lambda *args: None) -> None:
    """Replace a function: its ``count``-th call sends this process a signal, before or after it.

    ``first`` is called with the arguments before the signal.
    """
    original = getattr(owner, name)
    calls = 0

    def wrapper(*args, **kwargs):
        nonlocal calls
        calls += 1
        if calls == count and not after:
            first(*args)
            os.kill(os.getpid(), number)
        result = original(*args, **kwargs)
        if calls == count and after:
            first(*args)
            os.kill(os.getpid(), number)
        return result
    setattr(owner, name, wrapper)


def cut_in_half(descriptor: int) -> None:
    """Make the file look as if the process died half-way through writing it."""
    os.ftruncate(descriptor, os.fstat(descriptor).st_size // 2)


def differences(one: Any, other: Any, place: str = '') -> Iterator[str]:
    """Places at which nested dicts, lists and tensors differ, in any bit."""
    if isinstance(one, dict) and isinstance(other, dict):
        if list(one) != list(other):
            yield f'{place}: keys {list(one)} != {list(other)}'
        for key in one.keys() & other.keys():
            yield from differences(one[key], other[key], f'{place}.{key}')
    elif isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        if len(one) != len(other):
            yield f'{place}: {len(one)} != {len(other)} entries'
        for number, pair in enumerate(zip(one, other)):
            yield from differences(*pair, f'{place}.{number}')
    elif isinstance(one, torch.Tensor):
        if not torch.equal(one, other):
            yield f'{place}: {int((one != other).sum())} of {one.numel()} elements'
    elif one != other and not (one != one and other != other):
        yield f'{place}: {one!r} != {other!r}'


def outcome(work: Path, name: str) -> dict:
    """What a training leaves: names of its checkpoints, and the last one without times."""
    content = load_from_local(str(work / name), 'cpu')
    hub = content['message_hub']['runtime_info']
    return dict(
        files=sorted(path.name for path in work.glob('*.pth*')),
        named=Path((work / 'last_checkpoint').read_text()).name,
        position=(content['meta']['epoch'], content['meta']['iter']),
        best=(hub.get('best_score'), Path(hub.get('best_ckpt') or '').name),
        kept=hub.get('keep_ckpt_ids'),
        **{key: content.get(key) for key in ('state_dict', 'ema_state_dict', 'optimizer',
                                             'param_schedulers', 'resume_state')})
