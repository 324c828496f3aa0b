"""What makes the mm stacks behave alike: current and older torch, official packages and onedl fork.

Each function mends one thing and does nothing where it is not needed; :func:`mend` calls them all
and is called when ``flatten_mm`` is imported, so that ``custom_imports`` bring them to mm's own
tools.
"""

from __future__ import annotations

import collections
import importlib.util
import os
import pickle
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, distribution
from typing import Any

import mmengine.runner.checkpoint as mm_checkpoint
import numpy as np
import torch
from mmengine.config.utils import MODULE2PACKAGE
from mmengine.logging import HistoryBuffer
from mmengine.runner import CheckpointLoader
from mmengine.utils import digit_version

from .checkpoint.training_pickle import TrainingPickle, torch_names

_HISTORY_METHODS = ('min', 'max', 'mean', 'current')
# Before this one torch.load runs whatever a file names; since then it reads weights only.
_SAFE_TORCH = digit_version('2.6')


def mend() -> None:
    """Apply all of this module; safe to call again."""
    find_mmseg_configs()
    extend_safe_globals()
    load_nothing_unsafely()


def find_mmseg_configs() -> None:
    """Let ``_base_ = 'mmseg::…'`` find mmseg's configs beside the onedl fork.

    mmengine looks for a distribution called mmsegmentation, which the fork is not; by the name of
    its module it is found.
    """
    try:
        distribution('mmsegmentation')
    except PackageNotFoundError:
        if importlib.util.find_spec('mmseg') is not None:
            MODULE2PACKAGE['mmseg'] = 'mmseg'


def extend_safe_globals() -> None:
    """Let ``torch.load`` read checkpoints that mmengine saved.

    Since torch 2.6 a file may name no function or class outside a list. mmengine 0.10.7 saves its
    log history in every checkpoint, so ``--resume`` and testing a saved checkpoint fail there.
    This extends the list by what those files hold, and by nothing that can run code of the file's
    choosing.
    """
    if digit_version(torch.__version__) >= _SAFE_TORCH:
        torch.serialization.add_safe_globals(_safe_globals())


def load_nothing_unsafely() -> None:
    """Keep mmengine from running what a checkpoint names.

    The official one leaves it to ``torch.load``, which is safe since 2.6. The onedl fork reads a
    file that was refused a second time, without the check.
    """
    if digit_version(torch.__version__) < _SAFE_TORCH or hasattr(mm_checkpoint, '_safe_torch_load'):
        CheckpointLoader.register_scheme(prefixes='', loader=load_from_local, force=True)


def load_from_local(filename: str, map_location: Any) -> Any:
    """Reads a local checkpoint for mmengine's ``CheckpointLoader``; runs nothing in it.

    Raises:
        FileNotFoundError: there is no such file.
        pickle.UnpicklingError: it names something that is neither weights nor mmengine's history.
    """
    filename = os.path.expanduser(filename)
    if not os.path.isfile(filename):
        raise FileNotFoundError(f'{filename} can not be found.')
    if digit_version(torch.__version__) >= _SAFE_TORCH:
        return torch.load(filename, map_location=map_location, weights_only=True)
    names = {**torch_names(), **dict(_named(item) for item in _safe_globals())}
    return torch.load(filename, map_location=map_location, weights_only=False,
                      pickle_module=TrainingPickle(names))


def history_method(owner: type, name: str) -> Callable:
    """Stand-in for ``getattr`` in a checkpoint: a statistics method of ``HistoryBuffer``.

    ``HistoryBuffer`` pickles its table of statistics, and protocol 2 (torch's) writes a method
    as a call of ``builtins.getattr``. The real one would hand out any attribute of any object,
    so files get this one under its name.

    Raises:
        pickle.UnpicklingError: Anything but the four methods mmengine registers is asked for.
    """
    if owner is not HistoryBuffer or name not in _HISTORY_METHODS:
        raise pickle.UnpicklingError(
            f'the checkpoint asks for getattr({owner!r}, {name!r}); only '
            f'{", ".join(_HISTORY_METHODS)} of mmengine\'s HistoryBuffer are allowed')
    return getattr(HistoryBuffer, name)


def _safe_globals() -> list:
    # numpy 2 renamed the module; a file keeps the name of the numpy that wrote it
    numpy_functions = [
        (function, f'numpy.{core}.multiarray.{function.__name__}')
        for function in (np.empty(0).__reduce__()[0], np.float64(0).__reduce__()[0])
        for core in ('core', '_core')
    ]
    # integers, floats and booleans: an array of objects stays refused
    number_types = {type(np.dtype(code)) for code in np.typecodes['AllInteger'] + 'efd?'}
    return [
        HistoryBuffer,
        collections.Counter,  # milestones of MultiStepLR; newer torch has it on its own list
        (history_method, 'builtins.getattr'),
        (np.ndarray, 'numpy.ndarray'),
        (np.dtype, 'numpy.dtype'),
        *numpy_functions,
        *sorted(number_types, key=lambda kind: kind.__name__),
    ]


def _named(item: Any) -> tuple[str, Any]:
    """(name in files, object) of an item of :func:`_safe_globals`."""
    if isinstance(item, tuple):
        return item[1], item[0]
    return f'{item.__module__}.{item.__qualname__}', item
