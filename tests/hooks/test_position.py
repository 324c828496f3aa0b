"""Data from any step on is what a loop without a break would have come to."""
from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from mmengine.dataset import DefaultSampler, InfiniteSampler, worker_init_fn
from torch.utils.data import BatchSampler, DataLoader, Dataset

from flatten_mm.hooks.position import TrainData
from flatten_mm.hooks.randomness import random_state, set_random_state


class Noisy(Dataset):
    """Numbers, with what an augmentation would draw beside them."""

    def __len__(self):
        return 10

    def __getitem__(self, index):
        return index, random.random(), np.random.rand(), torch.rand(()).item()


class Buckets(BatchSampler):
    """Keeps indices between batches, as mmdet's AspectRatioBatchSampler does."""

    def __init__(self, sampler):
        super().__init__(sampler, 3, False)
        self._aspect_ratio_buckets = [[], []]

    def __iter__(self):
        for index in self.sampler:
            bucket = self._aspect_ratio_buckets[index % 2]
            bucket.append(index)
            if len(bucket) == 3:
                yield bucket[:]
                del bucket[:]
        left = self._aspect_ratio_buckets[0] + self._aspect_ratio_buckets[1]
        self._aspect_ratio_buckets = [[], []]
        yield from (left[i:i + 3] for i in range(0, len(left), 3))


class Loop:
    """What of mmengine's loops the data have to do with."""

    def __init__(self, dataloader, step, epoch):
        self.dataloader = dataloader
        self.iter = step
        self.epoch = epoch
        self.taken = []

    def run_iter(self, idx, batch):
        self.taken.append((idx, batch))


def batches(step, count, *, sampler=InfiniteSampler, workers=0, buckets=False, persistent=False,
            epochs=False, state=None, fork=''):
    """``count`` batches from ``step`` on, and the random state after the first two of them.

    ``fork``: what the onedl fork's loop does in place of taking ``step`` batches, ``'skip'`` or
    ``'nothing'``.
    """
    sampler = sampler(Noisy(), seed=5)
    order = (dict(batch_sampler=Buckets(sampler)) if buckets else
             dict(sampler=sampler, batch_size=3))
    loader = DataLoader(
        Noisy(), num_workers=workers, persistent_workers=persistent, collate_fn=list, **order,
        worker_init_fn=lambda i: worker_init_fn(i, workers, 0, 5))
    per_epoch = len(loader)
    loop = Loop(loader, step, step // per_epoch)
    taken = loop.taken
    if fork:
        loop.fast_forward_on_resume = fork == 'nothing'
    if not epochs:
        loop.dataloader_iterator = iter(loader)
        if workers:
            next(loop.dataloader_iterator)  # mmengine's has begun by then
    data = TrainData(loop, 5, 0, [])
    after = None
    while len(taken) < count:
        sampler.set_epoch(loop.epoch)
        data.begin()
        if state is not None:
            set_random_state(state)
            state = None
        if not epochs:
            if fork == 'skip':
                loop.dataloader_iterator.skip_iter(step)
            for _ in range(0 if fork else step):
                assert next(loop.dataloader_iterator) is None
            for _ in range(count):
                taken.append((len(taken), next(loop.dataloader_iterator)))
                after = random_state() if len(taken) == 2 else after
            return [batch for _, batch in taken], after
        for idx, batch in enumerate(loop.dataloader):
            loop.run_iter(idx, batch)
            after = random_state() if len(taken) == 2 else after
        data.end()
        loop.epoch += 1
        loop.iter = loop.epoch * per_epoch
    indices = [idx for idx, _ in taken]
    assert indices == [(step + i) % per_epoch for i in range(len(taken))]
    return [batch for _, batch in taken], after


@pytest.mark.parametrize('options', [
    dict(), dict(sampler=DefaultSampler), dict(sampler=DefaultSampler, buckets=True),
    dict(fork='skip'), dict(fork='nothing'), dict(fork='skip', sampler=DefaultSampler),
    dict(sampler=DefaultSampler, epochs=True),
    dict(sampler=DefaultSampler, epochs=True, buckets=True),
    dict(workers=1), dict(workers=2, persistent=True), dict(sampler=DefaultSampler, workers=2),
    dict(sampler=DefaultSampler, workers=2, epochs=True),
    dict(sampler=DefaultSampler, workers=2, epochs=True, persistent=True),
    dict(sampler=DefaultSampler, workers=2, buckets=True),
], ids=str)
@pytest.mark.parametrize('step', [2, 4, 6])
def test_a_later_start_gives_the_rest(step, options):
    torch.manual_seed(0)
    if options.get('workers'):
        whole, _ = batches(0, 12, **options)
        rest, _ = batches(step, 4, **options)
    else:  # random numbers are the process's own, so their state has to be given
        random.seed(0)
        np.random.seed(0)
        first, state = batches(step - 2, 12, **options)
        whole = [None] * (step - 2) + first
        rest, _ = batches(step, 4, state=state, **options)
    assert rest[:4] == whole[step:step + 4]


def test_epochs_differ_in_workers():
    """mmengine seeds the workers of every epoch alike."""
    whole, _ = batches(0, 8, sampler=DefaultSampler, workers=1, epochs=True)
    draws = [sorted(draw for _, draw, *_ in batch) for batch in whole]
    assert len({tuple(draw) for draw in draws}) == len(draws)


def test_making_workers_draws_nothing_from_the_training():
    before = torch.get_rng_state()
    batches(0, 8, workers=1)
    # the DataLoader of mmengine's loop drew a seed when it began, ours none
    torch.set_rng_state(before)
    torch.empty((), dtype=torch.int64).random_()
    expected = torch.get_rng_state()
    torch.set_rng_state(before)
    batches(0, 8, workers=1)
    assert torch.equal(torch.get_rng_state(), expected)
