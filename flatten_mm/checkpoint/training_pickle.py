"""An unpickler for mmengine's training checkpoints where torch has no safe one for them.

``torch.load(path, pickle_module=TrainingPickle(names))`` does what ``weights_only=True`` does since
torch 2.6: it builds what is on a list and refuses all else. Older versions have the mode, but
either no way to extend the list (before 2.4) or none that reads mmengine's files. In contrast to
:class:`.safe_pickle.SafePickle` nothing is replaced by a placeholder, since a training goes on from
what is read.
"""
from __future__ import annotations

import _compat_pickle
import collections
import pickle
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from mmengine.logging import HistoryBuffer

from .safe_pickle import latin1_bytes

# What a file may give a state to. Never a class or function, which all else in the process uses.
_WITH_STATE = (HistoryBuffer, collections.OrderedDict, np.ndarray, np.dtype, torch.Tensor)


def torch_names() -> dict[str, Any]:
    """Full name -> object of what torch (2.1 to 2.5) itself takes for safe."""
    return torch._weights_only_unpickler._get_allowed_globals()


class _ListUnpickler(pickle._Unpickler):  # the one in Python: its opcodes can be overridden
    names: Mapping[str, Any] = {}

    def find_class(self, module: str, name: str) -> Any:
        if self.proto < 3:  # written under Python 2's names, whoever wrote it
            module, name = _compat_pickle.NAME_MAPPING.get((module, name), (module, name))
            module = _compat_pickle.IMPORT_MAPPING.get(module, module)
        full_name = f'{module}.{name}'
        if full_name not in self.names:
            raise pickle.UnpicklingError(
                f'the checkpoint names {full_name}, which is neither weights nor what mmengine '
                'saves; nothing in it was run')
        return self.names[full_name]

    def _check(self, target: Any) -> None:
        """Only what is on the list is called, not what such a call returned."""
        if not any(target is value for value in self.names.values()):
            raise pickle.UnpicklingError(f'the checkpoint calls {target!r}; refused')

    def load_reduce(self) -> None:
        self._check(self.stack[-2])
        super().load_reduce()
        made = self.stack[-1]
        if isinstance(made, np.dtype) and made.kind not in 'biuf':
            raise pickle.UnpicklingError(f'the checkpoint holds an array of {made}; only numbers '
                                         'are read')

    def load_newobj(self) -> None:
        self._check(self.stack[-2])
        super().load_newobj()

    def load_build(self) -> None:
        if not isinstance(self.stack[-2], _WITH_STATE):
            raise pickle.UnpicklingError(f'the checkpoint alters {self.stack[-2]!r}; refused')
        super().load_build()

    def load_refused(self) -> None:
        raise pickle.UnpicklingError('the checkpoint was not written by torch.save')

    dispatch = {
        **pickle._Unpickler.dispatch,
        pickle.REDUCE[0]: load_reduce,
        pickle.NEWOBJ[0]: load_newobj,
        pickle.BUILD[0]: load_build,
        # other ways to call something, which protocol 2 does not use
        **dict.fromkeys((pickle.INST[0], pickle.OBJ[0], pickle.NEWOBJ_EX[0], pickle.EXT1[0],
                         pickle.EXT2[0], pickle.EXT4[0]), load_refused),
    }


class TrainingPickle:
    """What ``torch.load`` takes as ``pickle_module``.

    Args:
        names: full name in a file -> what stands for it.
    """

    def __init__(self, names: Mapping[str, Any]) -> None:
        self.__name__ = __name__
        # how protocol 2 writes bytes
        names = {'_codecs.encode': latin1_bytes, **names}
        self.Unpickler = type('Unpickler', (_ListUnpickler,), {'names': names})

    def load(self, file: Any, **kwargs: Any) -> Any:
        return self.Unpickler(file, **kwargs).load()
