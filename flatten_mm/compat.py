"""What the mm stack needs on current torch.

Since torch 2.6 ``torch.load`` reads weights only: a file may name no function or class outside a
list. mmengine 0.10.7 saves its log history in every checkpoint, so ``--resume`` and testing a
saved checkpoint fail there. :func:`allow_mm_checkpoints` extends the list by what those files
hold, and by nothing that can run code of the file's choosing.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable

import numpy as np
import torch
from mmengine.logging import HistoryBuffer

_HISTORY_METHODS = ('min', 'max', 'mean', 'current')


def allow_mm_checkpoints() -> None:
    """Let ``torch.load`` read checkpoints that mmengine saved; safe to call again.

    Called when ``flatten_mm`` is imported, so that ``custom_imports`` brings it to mm's own tools.
    Does nothing where torch does not check what a file names (before 2.6).
    """
    if tuple(int(part) for part in torch.__version__.split('.')[:2]) < (2, 6):
        return
    torch.serialization.add_safe_globals(_safe_globals())


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
        (history_method, 'builtins.getattr'),
        (np.ndarray, 'numpy.ndarray'),
        (np.dtype, 'numpy.dtype'),
        *numpy_functions,
        *sorted(number_types, key=lambda kind: kind.__name__),
    ]
