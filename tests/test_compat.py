"""torch's safe loading takes what mmengine saves, and nothing that runs."""
from __future__ import annotations

import os
import pickle

import numpy as np
import pytest
import torch
from mmengine.logging import HistoryBuffer

import flatten_mm  # noqa: F401  (importing it is what extends the list)
from flatten_mm.checkpoint import CheckpointError, read_checkpoint
from flatten_mm.compat import history_method

pytestmark = pytest.mark.skipif(
    tuple(int(part) for part in torch.__version__.split('.')[:2]) < (2, 6),
    reason='torch.load does not check what a file names before 2.6')


class Calls:
    """Pickles as a call of ``function``."""

    def __init__(self, function, *args):
        self.call = function, args

    def __reduce__(self):
        return self.call

    def __call__(self):
        """Never called: pickle wants what a call's result would be called to be callable."""


def saved(content, tmp_path):
    path = tmp_path / 'saved.pth'
    torch.save(content, path)
    return path


def test_log_history_survives(tmp_path):
    history = HistoryBuffer()
    history.update(1.0)
    history.update(4.0, count=3)
    loaded = torch.load(saved(dict(loss=history), tmp_path))['loss']
    assert isinstance(loaded, HistoryBuffer)
    assert loaded.statistics('mean') == 1.25
    assert loaded.statistics('max') == 4.0


@pytest.mark.parametrize('value', [
    np.float64(0.5), np.float32(0.5), np.int64(3), np.bool_(True), np.arange(6).reshape(2, 3),
    np.array([0.5, 1.5], np.float16)], ids=lambda value: f'{type(value).__name__}-{value.dtype}')
def test_numpy_values_survive(value, tmp_path):
    loaded = torch.load(saved(value, tmp_path))
    assert loaded.dtype == value.dtype
    assert np.array_equal(loaded, value)


@pytest.mark.parametrize('hostile', [
    Calls(getattr, HistoryBuffer, '__init__'),
    Calls(getattr, HistoryBuffer, '__reduce__'),
    Calls(getattr, torch.nn.Parameter, 'mean'),
    Calls(os.system, 'true'),
    Calls(eval, '1'),
    Calls(Calls(getattr, HistoryBuffer, 'mean'), 'any'),
    np.array([1, 'a'], dtype=object),
], ids=['other method', 'reduce', 'other class', 'system', 'eval', 'call of a method', 'objects'])
def test_anything_else_is_refused(hostile, tmp_path):
    with pytest.raises(pickle.UnpicklingError):
        torch.load(saved(dict(value=hostile), tmp_path))


def test_files_of_either_numpy_load(tmp_path):
    """numpy 2 renamed the module that rebuilds arrays; pickles keep the name of their writer."""
    here = b'numpy._core.multiarray' if np.__version__ >= '2' else b'numpy.core.multiarray'
    other = b'numpy.core.multiarray' if np.__version__ >= '2' else b'numpy._core.multiarray'
    path = tmp_path / 'legacy.pth'
    torch.save(np.arange(3), path, _use_new_zipfile_serialization=False)
    content = path.read_bytes()
    assert here in content
    path.write_bytes(content.replace(here, other))
    assert np.array_equal(torch.load(path), np.arange(3))


def test_stand_in_for_getattr_names_what_it_allows():
    assert history_method(HistoryBuffer, 'mean') is HistoryBuffer.mean
    with pytest.raises(pickle.UnpicklingError, match='min, max, mean, current'):
        history_method(HistoryBuffer, 'update')


def test_our_own_reader_takes_the_same_files(tmp_path):
    history = HistoryBuffer([1.0, 2.0], [1, 1])
    content = dict(state_dict=dict(weight=torch.ones(2)), meta=dict(iter=2),
                   message_hub=dict(log_scalars=dict(loss=history)))
    assert read_checkpoint(saved(content, tmp_path)).meta['meta'] == dict(iter=2)
    content['message_hub'] = Calls(getattr, HistoryBuffer, '__init__')
    with pytest.raises(CheckpointError, match='builtins.getattr'):
        read_checkpoint(saved(content, tmp_path))
