"""Trainings killed and stopped at random moments, resumed until they end, compared bit for bit.

    python tests/fuzz/fuzz_interruption.py --trainings 20 --seed 0     # by hand: minutes
    python tests/fuzz/fuzz_interruption.py --only 7                    # one training again

Each training draws from its own seed: iterations or epochs, 0 to 2 worker processes, the intervals
of checkpoints and validation, then up to eight interruptions, each after a random time
(SIGKILL, mostly, or SIGTERM and SIGUSR1) or at a random call of a step, of validation or of the
system calls that write a checkpoint. Those at calls happen again with the same seed, those by the
clock need not. Checked are

* the files, weights, averages, optimizer and random state at the end: those of a training of the
  same settings without a break;
* after each interruption: the newest checkpoint is whole, is not older than the one before, and
  every ``*.pth`` can be read;
* a stopped process ends with status 75, a resumed one never with an error.

Processes are forks of this one, so that each costs a second and not the imports.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import mmpretrain.datasets
import mmpretrain.evaluation
import mmpretrain.models
import mmpretrain.visualization  # noqa: F401  once, before children fork
import torch
from interrupted import (
    LAST,
    cut_in_half,
    differences,
    in_child,
    interruptible_config,
    kill_at,
    outcome,
)
from mmengine.evaluator import Evaluator
from tiny import write_data

from flatten_mm.checkpoint import read_checkpoint
from flatten_mm.engine import load_config, train
from flatten_mm.hooks import EXIT_STOPPED, files

CALLS = {
    'step': (torch.optim.AdamW, 'step', 10, {}),
    'validation': (Evaluator, 'process', 12, {}),
    'half written': (files.os, 'fsync', 12, dict(first=cut_in_half)),
    'written': (files.os, 'fsync', 12, dict(after=True)),
    'not renamed': (files.os, 'replace', 7, {}),
    'renamed': (files.os, 'replace', 7, dict(after=True)),
    'before removal': (files.WholeFilesBackend, 'remove', 3, {}),
    'after removal': (files.WholeFilesBackend, 'remove', 3, dict(after=True)),
}


class Settings:
    """One training: its config and how it ends without a break."""

    def __init__(self, seed: int, folder: Path, data: Path) -> None:
        self.random = random.Random(seed)
        self.folder = folder
        self.by_epoch = self.random.random() < 0.4
        workers = self.random.choice((0, 0, 1, 2))
        every = self.random.choice((1, 2)) if self.by_epoch else self.random.choice((2, 3, 4, 5))
        changes = {'num_workers=0': f'num_workers={workers}, '
                                    f'persistent_workers={workers > 0 and seed % 2 == 0}',
                   'max_keep_ckpts=1': f'max_keep_ckpts={self.random.choice((1, 2, -1))}'}
        if self.by_epoch:
            changes['interval=1, max'] = f'interval={every}, max'
        else:
            changes['by_epoch=False, interval=3'] = f'by_epoch=False, interval={every}'
            changes['val_interval=3'] = f'val_interval={self.random.choice((2, 3, 4, 6))}'
        self.config = interruptible_config(folder, data, self.by_epoch, **changes)
        self.name = f'{"epochs" if self.by_epoch else "steps"}, {workers} workers, {every}'

    def run(self, name: str, interrupt=lambda: None) -> int:
        """Begin or resume the training in a folder; its exit status."""
        def work():
            os.setpgid(0, 0)
            interrupt()
            cfg = load_config(self.config)
            cfg.experiment_name = str(os.getpid())
            train(cfg, work_dir=self.folder / name, resume=True)
        return in_child(work, self.folder / f'{name}.log')

    def interruption(self, seconds: float) -> tuple[str, int, Callable[[], None]]:
        """Draw one: its name, its signal, and what to do for it in the child."""
        number = self.random.choice((signal.SIGKILL,) * 3 + (signal.SIGTERM, signal.SIGUSR1))
        if self.random.random() < 0.4:
            after = self.random.uniform(0.1, seconds)

            def by_clock():
                timer = threading.Timer(after, os.kill, (os.getpid(), number))
                timer.daemon = True
                timer.start()
            return f'{number.name} by the clock', number, by_clock
        call = self.random.choice(list(CALLS))
        owner, name, most, options = CALLS[call]
        if number != signal.SIGKILL:  # a stopped process writes on
            options = {key: value for key, value in options.items() if key != 'first'}
        count = self.random.randint(1, most)
        return (f'{number.name} at {call}', number,
                lambda: kill_at(owner, name, count, number=number, **options))


def run_training(seed: int, data: Path, counts: Counter) -> list[str]:
    """Run one training to its end; what was wrong."""
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings(seed, Path(folder), data)
        last = LAST[settings.by_epoch]
        began = time.monotonic()
        if settings.run('whole') != 0:
            return [(Path(folder) / 'whole.log').read_text()[-2000:]]
        whole, seconds = outcome(Path(folder) / 'whole', last), time.monotonic() - began
        work, step, story, wrong = Path(folder) / 'work', 0, [], []
        for _ in range(settings.random.randint(2, 8)):
            name, number, interrupt = settings.interruption(seconds)
            code = settings.run('work', interrupt)
            story.append(f'{name}: {code}')
            if code == 0:  # it ended before the interruption came
                counts['not hit'] += 1
                break
            counts[name] += 1
            # before the handlers are in place, and after the last step, SIGTERM just ends it
            if code not in (-number, EXIT_STOPPED if number != signal.SIGKILL else -number):
                wrong.append(f'{name} ended with {code}')
            wrong += check_folder(work)
            newest = files.newest_checkpoint(work, wrong.append) if work.exists() else None
            now = torch.load(newest)['meta']['iter'] if newest else 0
            if now < step:
                wrong.append(f'{name}: step {step} was lost, {now} is left')
            step = now
        code = settings.run('work')
        if code != 0:
            wrong.append(f'resumed training ended with {code}')
        else:
            wrong += differences(whole, outcome(work, last))
        if wrong:
            kept = Path(tempfile.mkdtemp(prefix=f'interruption_{seed}_'))
            shutil.copytree(folder, kept, dirs_exist_ok=True)
            wrong = [f'{settings.name}: {"; ".join(story)} (kept in {kept})', *wrong]
        return wrong


def check_folder(work: Path) -> list[str]:
    """Files that are taken for checkpoints but cannot be read."""
    wrong = []
    for path in work.glob('*.pth'):
        try:
            read_checkpoint(path)
        except ValueError as error:
            wrong.append(str(error))
    return wrong


def main() -> int:
    """Run the trainings; 1 where one went wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--trainings', type=int, default=20)
    parser.add_argument('--seed', type=int, default=0, help='of the first training')
    parser.add_argument('--only', type=int, help='seed of a single training')
    args = parser.parse_args()
    torch.set_num_threads(1)  # threads do not survive a fork
    seeds = ([args.only] if args.only is not None
             else range(args.seed, args.seed + args.trainings))
    counts, failed = Counter(), 0
    with tempfile.TemporaryDirectory() as folder:
        write_data(Path(folder) / 'data')
        for seed in seeds:
            wrong = run_training(seed, Path(folder) / 'data', counts)
            failed += bool(wrong)
            for line in wrong:
                print(f'training {seed}: {line}', flush=True)
    for name, count in sorted(counts.items()):
        print(f'{count:5d} {name}')
    print(f'{len(seeds)} trainings, {sum(counts.values()) - counts["not hit"]} interruptions, '
          f'{failed} trainings went wrong')
    return int(failed > 0)


if __name__ == '__main__':
    sys.exit(main())
