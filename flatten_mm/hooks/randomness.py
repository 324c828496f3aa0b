"""State of random numbers: saved, set, and told apart by batch in worker processes."""

from __future__ import annotations

import atexit
import gc
import itertools
import random
import signal
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import get_worker_info
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter


def random_state() -> dict[str, Any]:
    """State of the generators of Python, NumPy and torch, of tensors and plain values alone."""
    version, words, gauss = random.getstate()
    kind, keys, position, has_gauss, cached = np.random.get_state()
    state = dict(
        python=[version, list(words), gauss],
        numpy=[kind, torch.from_numpy(keys.astype(np.int64)), position, has_gauss, cached],
        torch=torch.get_rng_state())
    if torch.cuda.is_available():
        state['cuda'] = torch.cuda.get_rng_state()
    return state


def set_random_state(state: dict[str, Any]) -> None:
    """Go on from a state of :func:`random_state`."""
    version, words, gauss = state['python']
    random.setstate((version, tuple(words), gauss))
    kind, keys, position, has_gauss, cached = state['numpy']
    np.random.set_state((kind, keys.cpu().numpy().astype(np.uint32), position, has_gauss, cached))
    torch.set_rng_state(state['torch'].cpu())
    if 'cuda' in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state['cuda'].cpu())


class WorkerStart:
    """``worker_init_fn`` of a DataLoader whose workers leave stopping to the main process.

    Slurm sends its signals to all processes of a step. A worker that dies of one takes the
    training with it before the checkpoint is saved.
    """

    def __init__(self, start: Callable[[int], None] | None, numbers: list[int],
                 batches: SeededBatches | None = None) -> None:
        atexit.unregister(_end_workers)
        atexit.register(_end_workers)
        self.start = start
        self.numbers = numbers
        self.batches = batches

    def __call__(self, worker_id: int) -> None:
        if self.start is not None:
            self.start(worker_id)
        for number in self.numbers:
            signal.signal(number, signal.SIG_IGN)
        if self.batches is not None:
            self.batches.begin()


def _end_workers() -> None:
    """End the workers that a failed training has left, as collecting their iterator would.

    Else multiprocessing sends them SIGTERM at the end of the process, which they ignore, and waits
    for them without end.
    """
    for found in gc.get_objects():
        if type(found) is _MultiProcessingDataLoaderIter:
            found._shutdown_workers()


class SeededBatches:
    """``collate_fn`` of a DataLoader whose workers draw random numbers by the batch.

    mmengine seeds a worker once, so that the augmentation of a batch depends on all batches
    before it. Here it depends on the seed, the rank and the number of the batch, counted from the
    start of the training, alone: a resumed training goes on with the same images, and without
    loading those before. It also differs from epoch to epoch, where mmengine starts each with the
    same one unless workers persist.

    Args:
        collate: The ``collate_fn`` to do the work.
        seed: Seed of the run.
        rank: Rank of the process.
        per_pass: Batches of a pass over the data, None for a sampler that never ends.

    Attributes:
        first: Number of the first batch of the next pass; set it before workers start.
        size: Batches of that pass, None for one without an end.
    """

    def __init__(self, collate: Callable, seed: int, rank: int, per_pass: int | None) -> None:
        self.collate = collate
        self.seed = seed
        self.rank = rank
        self.per_pass = per_pass
        self.first = 0
        self.size = per_pass
        self._numbers: Iterator[int] | None = None

    def begin(self) -> None:
        """Called in a worker before its first batch."""
        worker = get_worker_info()
        self._numbers = self._of_worker(worker.id, worker.num_workers)
        self._seed_next()

    def __call__(self, samples: Any) -> Any:
        batch = self.collate(samples)
        if self._numbers is not None:
            self._seed_next()
        return batch

    def _of_worker(self, worker: int, workers: int) -> Iterator[int]:
        """Numbers of the batches of a worker: torch deals them out in turn, anew in each pass."""
        first, size = self.first, self.size
        while size is not None:
            yield from range(first + worker, first + size, workers)
            first, size = first + size, self.per_pass
        yield from itertools.count(first + worker, workers)

    def _seed_next(self) -> None:
        words = np.random.SeedSequence((self.seed, self.rank, next(self._numbers)))
        python, numpy, of_torch = (int(word) for word in words.generate_state(3))
        random.seed(python)
        np.random.seed(numpy)
        torch.manual_seed(of_torch)
