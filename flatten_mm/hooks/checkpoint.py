"""Checkpoints from which a training goes on as if nothing had happened."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from mmengine.dist import all_gather_object, broadcast_object_list, get_rank, is_main_process
from mmengine.hooks import CheckpointHook, EMAHook
from mmengine.logging import print_log
from mmengine.registry import HOOKS
from mmengine.runner import Runner
from torch.utils.data import DataLoader

from .files import (
    BACKEND,
    MAKE_ROOM,
    POINTER,
    CheckpointWriteError,
    newest_checkpoint,
    remove_partial,
    what_is_left,
    write_whole,
)
from .position import TrainData
from .randomness import WorkerStart, random_state, set_random_state
from .stop import StopSignals, TrainingStopped

_KEY = 'resume_state'  # in the checkpoint file
_SUPERSEDED = 'superseded_ckpts'  # in mmengine's message hub: names of files to remove
_STOPPED = 'stopped_ckpt'
_VAL_STEPS = 10  # steps of validation between two agreements of several processes


@HOOKS.register_module()
class ResumableCheckpointHook(CheckpointHook):
    """mmengine's CheckpointHook for trainings that are killed, stopped and resumed.

    ``default_hooks = dict(checkpoint=dict(type='ResumableCheckpointHook', ...))`` takes all
    arguments of :class:`mmengine.hooks.CheckpointHook`, and adds:

    * Resuming is exact. The state of random numbers of each process, the place in the data (also
      within an epoch) and a validation that was due are taken up again: the weights at the end are
      those of the training without a break (bit for bit where the computation itself is
      deterministic, as on the CPU).
    * A checkpoint, and ``last_checkpoint``, appear when they are whole; what they supersede is
      removed after that. A damaged one is passed over by ``--resume``.
    * ``stop_signals`` save ``stopped_iter_N.pth`` at the next optimizer step, in validation at
      once, and end the process with status 75; the next regular checkpoint removes that file.

    Args:
        stop_signals: Names of signals that stop the training.
        **kwargs: Arguments of mmengine's hook.
    """

    def __init__(self, *args, stop_signals: Sequence[str] = ('SIGTERM', 'SIGUSR1'),
                 **kwargs) -> None:
        super().__init__(*args, **kwargs)
        self._signals = StopSignals(stop_signals)
        self._data: TrainData | None = None
        self._loaded: dict[str, Any] | None = None  # what the checkpoint to resume from holds
        self._resumed: dict[str, Any] | None = None  # its part of this process, until set
        self._saving: dict[str, Any] | None = None  # what the checkpoint at hand is to hold
        self._saved: tuple[int, int] | None = None  # epoch and iteration of the newest one
        self._validating: dict[str, Any] | None = None  # random state from before validation
        self._training = False
        self._val_steps = 0
        self._validated = False
        self._best_before: dict[str, str | None] = {}

    # -- start ------------------------------------------------------------------------------

    def before_run(self, runner: Runner) -> None:
        """Choose the checkpoint that ``resume=True`` goes on from."""
        self._loaded = self._resumed = self._saved = None
        if runner._resume and runner._load_from is None:
            chosen = [newest_checkpoint(runner.work_dir, _warn) if is_main_process() else None]
            broadcast_object_list(chosen)
            runner._resume = chosen[0] is not None
            runner._load_from = str(chosen[0]) if runner._resume else None

    def after_load_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        """Take what :meth:`before_save_checkpoint` put into the file."""
        if runner._resume:
            self._loaded = checkpoint.get(_KEY) or {}

    def before_train(self, runner: Runner) -> None:
        """Clear up after a killed process, and bring back what the checkpoint holds."""
        if self.backend_args is None and self.file_client_args is None and '://' not in str(
                self.out_dir or ''):
            self.backend_args = dict(backend=BACKEND)
        super().before_train(runner)
        hub = runner.message_hub
        if is_main_process():
            for path in {*remove_partial(runner.work_dir), *remove_partial(self.out_dir)}:
                runner.logger.info(f'Removed {path}, which a killed training left unfinished.')
        self._remove(hub.runtime_info.get(_SUPERSEDED, []))
        self._signals.install()
        self._training = True
        _shield_workers(getattr(runner.val_loop, 'dataloader', None), self._signals.numbers)
        state = self._own_state(runner)
        if TrainData.supports(runner.train_loop):
            self._data = TrainData(runner.train_loop, state.get('seed', runner.seed), get_rank(),
                                   self._signals.numbers)
            self._data.sampler_seed = state.get('sampler_seed')
        if state:
            self.last_ckpt = hub.runtime_info.get('last_ckpt')
            self._resumed = state['random']
            set_random_state(self._resumed)
        if (self._loaded or {}).get('validated') is False and _validation_is_due(runner):
            runner.logger.info('The validation due at the checkpoint comes first.')
            runner.val_loop.run()

    def before_train_epoch(self, runner: Runner) -> None:
        """Go on at the batch, and with the random numbers, of the checkpoint."""
        if self._data is not None:
            self._data.begin()
        if self._resumed is not None:
            set_random_state(self._resumed)
            self._resumed = None

    def after_train_epoch(self, runner: Runner) -> None:
        """See the base class."""
        if self._data is not None:
            self._data.end()
        with self._explained(runner):
            super().after_train_epoch(runner)

    # -- steps ------------------------------------------------------------------------------

    def after_train_iter(self, runner: Runner, batch_idx: int, data_batch: Any = None,
                         outputs: dict | None = None) -> None:
        """Save at the interval, and stop when asked to."""
        with self._explained(runner):
            super().after_train_iter(runner, batch_idx, data_batch, outputs)
        # A checkpoint holds no gradients: with accumulation, stop where they have been used.
        updated = getattr(runner.optim_wrapper, 'should_update', lambda: True)()
        if self._signals.agreed() and updated:
            self._stop(runner, dict(epoch=runner.epoch, iter=runner.iter + 1))

    def before_val(self, runner: Runner) -> None:
        """Keep validation from changing the random numbers of training."""
        if self._training:
            self._validating = self._resumed or random_state()
            self._val_steps = self._signals.least(len(runner.val_loop.dataloader))

    def after_val_iter(self, runner: Runner, batch_idx: int, data_batch: Any = None,
                       outputs: Sequence | None = None) -> None:
        """Stop when asked to: the step validation follows is saved, if it is not yet."""
        # Processes may have different numbers of images, but must ask equally often.
        alone = self._signals.alone
        ask = alone or (batch_idx % _VAL_STEPS == 0 and batch_idx < self._val_steps)
        if self._validating is not None and ask and self._signals.agreed():
            for hook in runner.hooks:
                if isinstance(hook, EMAHook):  # give the model its own weights back
                    hook.after_val_epoch(runner)
            self._stop(runner, dict(epoch=runner.epoch, iter=runner.iter))

    def after_val_epoch(self, runner: Runner, metrics: dict | None = None) -> None:
        """See the base class."""
        with self._explained(runner):
            super().after_val_epoch(runner, metrics or {})

    def after_val(self, runner: Runner) -> None:
        """Go on with the random numbers from before validation."""
        if self._validating is not None:
            set_random_state(self._validating)
            self._validating = None

    def after_train(self, runner: Runner) -> None:
        """Give signals back, and publish as the base class does."""
        self._training = False
        self._signals.release(finished=True)
        with self._explained(runner):
            super().after_train(runner)

    def release(self) -> None:
        """Give signals back after a training that failed; safe to call again."""
        self._training = False
        self._signals.release(finished=False)

    # -- saving -----------------------------------------------------------------------------

    def before_save_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        """Add what resuming needs besides mmengine's own."""
        if self._saving is not None:
            checkpoint[_KEY] = self._saving

    def _save_checkpoint_with_step(self, runner: Runner, step: int, meta: dict) -> None:
        """mmengine's, with removals after the new file is whole."""
        hub = runner.message_hub
        superseded = self._replaced_best()
        stopped = hub.pop_info(_STOPPED, None)
        if stopped:
            superseded.append(stopped)
        if self.max_keep_ckpts > 0:
            ids = [number for number in self.keep_ckpt_ids if number != step] + [step]
            superseded += [self.filename_tmpl.format(number)
                           for number in ids[:-self.max_keep_ckpts]]
            self.keep_ckpt_ids.clear()
            self.keep_ckpt_ids.extend(ids[-self.max_keep_ckpts:])
            hub.update_info('keep_ckpt_ids', list(self.keep_ckpt_ids))
        name = self.filename_tmpl.format(step)
        self.last_ckpt = self.file_backend.join_path(self.out_dir, name)
        hub.update_info('last_ckpt', self.last_ckpt)
        self._save_whole(runner, name, meta, superseded)

    def _save_whole(self, runner: Runner, name: str, meta: dict, superseded: list[str]) -> None:
        """Save a file to resume from, name it in ``last_checkpoint``, remove the superseded."""
        runner.message_hub.update_info(_SUPERSEDED, superseded)
        own = dict(random=self._validating or random_state(), seed=runner.seed,
                   sampler_seed=self._data.sampler_seed if self._data is not None else None)
        self._saving = dict(processes=all_gather_object(own), validated=self._validated)
        try:
            runner.save_checkpoint(
                self.out_dir, name, self.file_client_args, save_optimizer=self.save_optimizer,
                save_param_scheduler=self.save_param_scheduler, meta=meta, by_epoch=self.by_epoch,
                backend_args=self.backend_args, **self.args)
        finally:
            self._saving = None
        if is_main_process():
            path = self.file_backend.join_path(self.out_dir, name)
            write_whole(path.encode(), Path(runner.work_dir, POINTER))
        self._saved = meta['epoch'], meta['iter']
        self._remove(superseded)

    def _save_best_checkpoint(self, runner: Runner, metrics: dict) -> None:
        """mmengine's, with the former best file removed after the new one is whole."""
        if not self.save_best:
            return
        self._best_before = self._best_paths()
        self._validated = True
        self._set_best_paths(dict.fromkeys(self._best_before))  # mmengine removes none of these
        try:
            super()._save_best_checkpoint(runner, metrics)
            self._remove(self._replaced_best())
        finally:
            self._set_best_paths({key: path or self._best_before.get(key)
                                  for key, path in self._best_paths().items()})
            self._validated = False
            self._best_before = {}

    def _best_paths(self) -> dict[str, str | None]:
        if hasattr(self, 'best_ckpt_path_dict'):
            return dict(self.best_ckpt_path_dict)
        return {'': self.best_ckpt_path}

    def _set_best_paths(self, paths: dict[str, str | None]) -> None:
        if hasattr(self, 'best_ckpt_path_dict'):
            self.best_ckpt_path_dict = dict(paths)
        else:
            self.best_ckpt_path = paths['']

    def _replaced_best(self) -> list[str]:
        """Names of best files that the validation at hand found better ones for.

        Those of another folder, where the training was begun, stay.
        """
        now = self._best_paths() if self._best_before else {}
        return [Path(old).name for key, old in self._best_before.items()
                if old and now.get(key) and now[key] != old
                and os.path.dirname(old) == os.path.dirname(now[key])]

    def _remove(self, names: Sequence[str]) -> None:
        """Remove checkpoints of this training; names, since a file may hold any path."""
        if not is_main_process():
            return
        for name in names:
            path = self.file_backend.join_path(self.out_dir, Path(name).name)
            if path.endswith('.pth') and self.file_backend.isfile(path):
                self.file_backend.remove(path)

    @contextlib.contextmanager
    def _explained(self, runner: Runner) -> Iterator[None]:
        """Add to a failure of writing what is left to go on from."""
        try:
            yield
        except CheckpointWriteError as error:
            raise CheckpointWriteError(
                error.errno, f'{error.strerror}; {MAKE_ROOM}, {what_is_left(runner.work_dir)}'
            ) from error

    # -- stopping and resuming --------------------------------------------------------------

    def _stop(self, runner: Runner, meta: dict) -> None:
        if self._saved != (meta['epoch'], meta['iter']):
            name = f'stopped_iter_{meta["iter"]}.pth'
            before = runner.message_hub.pop_info(_STOPPED, None)
            runner.message_hub.update_info(_STOPPED, name)
            with self._explained(runner):
                self._save_whole(runner, name, meta, [before] if before not in (None, name) else [])
        self._signals.wait_for_all()  # launchers end the others when one is gone
        received = self._signals.received or 'a signal to another process'
        self._training = False
        self._signals.release(finished=True)
        checkpoint = Path(runner.work_dir, POINTER).read_text()
        message = (f'stopped by {received} at iteration {meta["iter"]}; go on from {checkpoint} '
                   'with --resume')
        runner.logger.warning(message)
        raise TrainingStopped(message)

    def _own_state(self, runner: Runner) -> dict[str, Any]:
        """This process's part of the checkpoint that is resumed from, {} without one."""
        if self._loaded is None:
            return {}
        processes = self._loaded.get('processes') or []
        if len(processes) != runner.world_size:
            _warn('the checkpoint holds the state of random numbers of '
                  f'{len(processes) or "no"} processes, but {runner.world_size} run now: training '
                  'goes on, but not exactly as it would have without a break')
        return processes[get_rank()] if get_rank() < len(processes) else {}


def _validation_is_due(runner: Runner) -> bool:
    """Whether mmengine's loop validates after the step at which the training stands."""
    loop = runner.train_loop
    if runner.val_loop is None:
        return False
    if hasattr(loop, 'dataloader_iterator'):
        count, last = loop.iter, loop.max_iters
    else:
        count, last = loop.epoch, loop.max_epochs
        if loop.iter != count * len(loop.dataloader):  # within an epoch
            return False
    loop._decide_current_val_interval()
    return count >= max(loop.val_begin, 1) and (count % loop.val_interval == 0 or count == last)


def _shield_workers(loader: DataLoader | None, signals: list[int]) -> None:
    """Let the workers of a DataLoader leave stopping to the main process."""
    if isinstance(loader, DataLoader) and loader.num_workers > 0:
        loader.worker_init_fn = WorkerStart(loader.worker_init_fn, signals)


def _warn(message: str) -> None:
    print_log(message, logger='current', level=logging.WARNING)
