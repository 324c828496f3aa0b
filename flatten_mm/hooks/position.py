"""Where a training stands in its data, and going on from there without loading what was seen."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from itertools import islice
from typing import Any

import torch
from mmengine.dataset import InfiniteSampler
from mmengine.logging import print_log
from mmengine.runner import BaseLoop
from torch.utils.data import DataLoader, IterableDataset, Sampler

from .randomness import SeededBatches, WorkerStart


class TrainData:
    """The training data of a loop, which can begin at any step.

    Takes the place of what mmengine does when it resumes: loops that count iterations load all
    the data they have trained on again, and loops that count epochs begin the epoch anew.

    Args:
        loop: mmengine's train loop, or one derived from it.
        seed: Seed of the run, for random numbers in worker processes.
        rank: Rank of the process.
        stop_signals: Numbers of signals that workers ignore.
    """

    def __init__(self, loop: BaseLoop, seed: int, rank: int, stop_signals: list[int]) -> None:
        self.loop = loop
        self.loader: DataLoader = loop.dataloader
        self.counts_iters = hasattr(loop, 'dataloader_iterator')
        self.sampler = _sampler_of(self.loader)
        # The seed that a DataLoader draws for its workers would come out of the training's own
        # random numbers, once an epoch or once a process.
        self.loader.generator = torch.Generator().manual_seed(seed)
        name = 'sampler' if self.loader.batch_sampler is None else 'batch_sampler'
        self._indices = _ResumedSampler(getattr(self.loader, name))
        object.__setattr__(self.loader, name, self._indices)  # torch's own refuses later changes
        self._workers: SeededBatches | None = None
        if self.loader.num_workers > 0:
            self._workers = SeededBatches(self.loader.collate_fn, seed, rank,
                                          None if self.counts_iters else len(self.loader))
            self.loader.collate_fn = self._workers
            self.loader.worker_init_fn = WorkerStart(
                self.loader.worker_init_fn, stop_signals, self._workers)

    @staticmethod
    def supports(loop: BaseLoop) -> bool:
        """Whether the data of a loop has an order that can be gone through without loading it."""
        loader = getattr(loop, 'dataloader', None)
        return isinstance(loader, DataLoader) and not isinstance(loader.dataset, IterableDataset)

    @property
    def sampler_seed(self) -> int | None:
        """Seed of the order of the data."""
        return getattr(self.sampler, 'seed', None)

    @sampler_seed.setter
    def sampler_seed(self, seed: int | None) -> None:
        if seed is not None and hasattr(self.sampler, 'seed'):
            self.sampler.seed = seed

    def begin(self) -> None:
        """Let the epoch at hand begin where the loop stands; for ``before_train_epoch``."""
        if self.counts_iters:
            self.loop.dataloader_iterator = None  # and its workers, before others start
            self.loop.dataloader_iterator = _Endless(self, self.loop.iter)
            return
        length = len(self.loader)
        done = self.loop.iter - self.loop.epoch * length
        if not 0 <= done <= length:
            print_log(f'the training stands at step {self.loop.iter} in epoch {self.loop.epoch}, '
                      f'but an epoch has {length} steps now; the epoch begins anew',
                      logger='current', level=logging.WARNING)
            done = 0
        if self._workers is not None:
            self._workers.first, self._workers.size = self.loop.iter, length - done
        self._indices.skip = done
        if done:
            run_iter = self.loop.run_iter
            self.loop.run_iter = lambda idx, batch: run_iter(idx + done, batch)

    def end(self) -> None:
        """Undo what :meth:`begin` did for one epoch; for ``after_train_epoch``."""
        vars(self.loop).pop('run_iter', None)

    def restart(self, step: int) -> tuple[Iterator, int]:
        """Begin the order of the data anew and go to ``step``; for loops that count iterations.

        Returns:
            The batches of the DataLoader from there on, and the pass over the data they belong
            to, 0 where the sampler never ends.
        """
        # mmengine's loop has had workers start on the data already
        for bucket in getattr(self._indices, '_aspect_ratio_buckets', ()):
            bucket.clear()
        if isinstance(self.sampler, InfiniteSampler):  # it goes on where it was left
            self.sampler.indices = self.sampler._indices_of_rank()
            number, self._indices.skip = 0, step
        else:
            number, self._indices.skip = divmod(step, len(self.loader))
            if number:
                self.set_pass(number)
        return self.start_workers(step), number

    def start_workers(self, first: int) -> Iterator:
        """The DataLoader's batches, the first of which is number ``first`` of the training."""
        if self._workers is not None:
            self._workers.first = first
        _forget_workers(self.loader)
        return iter(self.loader)

    def set_pass(self, number: int) -> None:
        """Tell a sampler that shuffles by the epoch which one begins."""
        if hasattr(self.sampler, 'set_epoch'):
            self.sampler.set_epoch(number)


class _Endless:
    """Batches for mmengine's loop that counts iterations, from a step on.

    The loop asks for as many batches as it has trained on and drops them; these are None. The
    onedl fork's loop calls ``skip_iter`` in place of that, or nothing with
    ``fast_forward_on_resume``.
    """

    def __init__(self, data: TrainData, step: int) -> None:
        self._data = data
        self._dropped = 0 if hasattr(data.loop, 'fast_forward_on_resume') else step
        self._step = step
        self._batches, self._pass = data.restart(step)

    def __iter__(self) -> _Endless:
        return self

    def skip_iter(self, num_iters: int) -> None:
        """Nothing to do: the batches begin at the step the loop stands at."""

    def __next__(self) -> Any:
        if self._dropped:
            self._dropped -= 1
            return None
        try:
            batch = next(self._batches)
        except StopIteration:
            self._pass += 1
            self._data.set_pass(self._pass)
            self._batches = self._data.start_workers(self._step)
            batch = next(self._batches)
        self._step += 1
        return batch


class _ResumedSampler:
    """A sampler that passes over the first ``skip`` batches of its next pass."""

    def __init__(self, sampler: Sampler) -> None:
        self._inner = sampler
        self.skip = 0

    def __iter__(self) -> Iterator:
        # A generator, since torch may make an iterator that it never asks for indices.
        skip, self.skip = self.skip, 0
        yield from islice(self._inner, skip, None)

    def __len__(self) -> int:
        return len(self._inner)

    def __getattr__(self, name: str) -> Any:
        if name == '_inner':  # while it is copied
            raise AttributeError(name)
        return getattr(self._inner, name)


def _sampler_of(loader: DataLoader) -> Sampler:
    """The sampler that orders the data, which a batch sampler may hold (as DistSamplerSeedHook
    finds it)."""
    inner = getattr(loader.batch_sampler, 'sampler', None)
    if not hasattr(loader.sampler, 'set_epoch') and hasattr(inner, 'set_epoch'):
        return inner
    return loader.sampler


def _forget_workers(loader: DataLoader) -> None:
    """Let persistent workers end, so that the next pass starts new ones."""
    loader._iterator = None
