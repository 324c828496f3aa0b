"""An unpickler that runs nothing from the file: tensors are rebuilt, all else stays inert.

``torch.load(path, pickle_module=SafePickle())`` reads checkpoints that ``weights_only=True``
refuses only because of a class it does not know (a training config, a logger's history), and is
no less strict: nothing a file names is ever imported, and the only code a file can reach is the
short list ``_REBUILDERS`` below.
"""
from __future__ import annotations

import _compat_pickle
import collections
import pickle
import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

# Nothing in these modules belongs in a checkpoint; their mere mention says the file is hostile.
_HOSTILE_MODULES = frozenset({
    '_io', '_operator', '_pickle', '_posixsubprocess', '_thread', 'asyncio', 'atexit', 'bdb',
    'builtins', 'cProfile', 'cloudpickle', 'code', 'codecs', 'codeop', 'concurrent',
    'ctypes', 'dill', 'distutils', 'doctest', 'ensurepip', 'faulthandler', 'ftplib', 'functools',
    'gc', 'http', 'imp', 'importlib', 'inspect', 'io', 'itertools', 'joblib', 'linecache',
    'marshal', 'mmap', 'multiprocessing', 'nt', 'ntpath', 'operator', 'os', 'pdb', 'pickle', 'pip',
    'pkg_resources', 'pkgutil', 'platform', 'posix', 'posixpath', 'profile', 'pty', 'pydoc',
    'requests', 'resource', 'runpy', 'select', 'setuptools', 'shelve', 'shutil', 'signal', 'site',
    'smtplib', 'socket', 'socketserver', 'subprocess', 'sys', 'tempfile', 'threading', 'timeit',
    'trace', 'types', 'unittest', 'urllib', 'venv', 'webbrowser', 'xmlrpc', 'zipimport',
})
# Types that a file may mention, in spite of their modules.
_HARMLESS_TYPES = frozenset({'types.SimpleNamespace'} | {f'builtins.{name}' for name in (
    'NoneType', 'bool', 'bytearray', 'bytes', 'complex', 'dict', 'float', 'frozenset', 'int',
    'list', 'object', 'range', 'set', 'slice', 'str', 'tuple', 'type')})
# Called like functions, yet only data: these become placeholders as classes do.
_DATA_FUNCTIONS = _HARMLESS_TYPES | {
    'collections.defaultdict', 'collections.deque', 'copyreg.__newobj__',
    'copyreg._reconstructor', 'datetime.date', 'datetime.datetime', 'datetime.time',
    'datetime.timedelta', 'datetime.timezone', 'numpy.core.multiarray._reconstruct',
    'numpy.core.numeric._frombuffer', 'numpy.ndarray',
    'numpy.random._pickle.__bit_generator_ctor', 'numpy.random._pickle.__generator_ctor',
    'numpy.random._pickle.__randomstate_ctor', 're._compile', 'torch.device',
    'torch.serialization._get_layout',
}


class HostileFileError(ValueError):
    """The file names something to execute; the message is the global's full name."""


class Global:
    """A class or function that the file names; never imported, so all we have is its name."""

    def __init__(self, module: str, name: str) -> None:
        self.full_name = f'{module}.{name}'

    @property
    def looks_like_function(self) -> bool:
        """True for a lower-case name (PEP 8) that is not known to build mere data."""
        is_data = self.full_name in _DATA_FUNCTIONS or self.full_name.startswith(
            ('torch._utils._rebuild_', 'torch._tensor._rebuild_'))
        return not is_data and not self.full_name.rpartition('.')[2].lstrip('_')[:1].isupper()


class Placeholder:
    """Stands for an object of a class we do not build; swallows everything it is given."""

    def __init__(self, full_name: str) -> None:
        self.full_name = full_name

    def __repr__(self) -> str:
        return f'<placeholder for a {self.full_name}>'

    def append(self, item: Any) -> None:
        pass

    extend = add = append

    def __setitem__(self, key: Any, value: Any) -> None:
        pass


class _Rebuilder:
    """The only callables of a file: a function of ours behind a wrapper the file cannot alter."""

    __slots__ = ('function',)

    def __init__(self, function: Callable) -> None:
        self.function = function


def _tensor(storage: Any, offset: int, size: tuple, stride: tuple, *_: Any) -> Tensor:
    # Gradient flags and backward hooks, the further arguments, mean nothing in a state dict.
    return torch._utils._rebuild_tensor(storage, offset, size, stride)


def _same_tensor(tensor: Tensor, *_: Any) -> Tensor:
    return tensor


def _subclass_tensor(rebuilder: Any, _type: Any, args: tuple, _state: Any) -> Any:
    if not isinstance(rebuilder, _Rebuilder):
        return Placeholder('torch.Tensor')
    return rebuilder.function(*args)


def latin1_bytes(text: str, encoding: str = 'latin1') -> bytes:
    """``_codecs.encode``, as which pickle protocol 2 writes bytes."""
    return text.encode('latin1')


def _numpy_scalar(dtype: Any, raw: bytes) -> Any:
    """A Python number from a pickled numpy one, such as a saved accuracy."""
    if not isinstance(dtype, np.dtype) or dtype.kind not in 'biuf':
        return Placeholder('numpy.generic')
    return np.frombuffer(raw, dtype, count=1)[0].item()


def _numpy_dtype(code: str, *_: Any) -> Any:
    known = {f'{kind}{size}' for kind in 'iuf' for size in (1, 2, 4, 8)} - {'f1'} | {'b1'}
    return np.dtype(code) if code in known else Placeholder('numpy.dtype')


def _history_method(*args: Any) -> Any:
    """mmengine's log history, in every checkpoint of its Runner, names its own four methods."""
    history = 'mmengine.logging.history_buffer.HistoryBuffer'
    owner, *names = args or (None,)
    if (isinstance(owner, Global) and owner.full_name == history
            and names in (['min'], ['max'], ['mean'], ['current'])):
        return Placeholder(f'{history}.{names[0]}')
    raise HostileFileError('builtins.getattr')


_REBUILDERS: dict[str, Callable] = {
    'collections.OrderedDict': collections.OrderedDict,
    'torch._utils._rebuild_tensor': _tensor,
    'torch._utils._rebuild_tensor_v2': _tensor,
    'torch._utils._rebuild_parameter': _same_tensor,
    'torch._utils._rebuild_parameter_with_state': _same_tensor,
    'torch._tensor._rebuild_from_type_v2': _subclass_tensor,
    'torch.Size': tuple,
    'numpy.core.multiarray.scalar': _numpy_scalar,
    'numpy.dtype': _numpy_dtype,
    '_codecs.encode': latin1_bytes,
    'builtins.set': set,
    'builtins.frozenset': frozenset,
    'builtins.slice': slice,
    'builtins.complex': complex,
    'builtins.getattr': _history_method,
}


class _SafeUnpickler(pickle._Unpickler):  # the one in Python: its opcodes can be overridden
    """See the module; raises :class:`HostileFileError` where a file names something to run."""

    def find_class(self, module: str, name: str) -> Any:
        if self.proto < 3:  # written under Python 2's names, whoever wrote it
            module, name = _compat_pickle.NAME_MAPPING.get((module, name), (module, name))
            module = _compat_pickle.IMPORT_MAPPING.get(module, module)
        if module.startswith('numpy._core'):  # numpy 2 writes its modules under this name
            module = module.replace('numpy._core', 'numpy.core', 1)
        full_name = f'{module}.{name}'
        if full_name in _REBUILDERS:
            return _Rebuilder(_REBUILDERS[full_name])
        if full_name in ('torch.storage.UntypedStorage', 'torch.UntypedStorage'):
            return torch.UntypedStorage  # compared by identity in torch.load, never called here
        hostile = module.partition('.')[0] in _HOSTILE_MODULES
        if hostile and full_name not in _HARMLESS_TYPES:
            raise HostileFileError(full_name)
        return Global(module, name)

    def _call(self, target: Any, args: Any) -> Any:
        if isinstance(target, _Rebuilder):
            return target.function(*args)
        if isinstance(target, Global):
            if target.looks_like_function:
                raise HostileFileError(target.full_name)
            if target.full_name in ('copyreg._reconstructor', 'copyreg.__newobj__'):
                return self._new(args[0], args[1:])
            return Placeholder(target.full_name)
        # An object as a function: torch's storage types, placeholders, numbers. None is built.
        return Placeholder(type(target).__name__)

    @staticmethod
    def _new(cls: Any, args: tuple) -> Any:
        if isinstance(cls, _Rebuilder) and cls.function is collections.OrderedDict:
            return collections.OrderedDict()
        return Placeholder(cls.full_name if isinstance(cls, Global) else type(cls).__name__)

    def load_reduce(self) -> None:
        args = self.stack.pop()
        self.stack[-1] = self._call(self.stack[-1], args)

    def load_newobj(self) -> None:
        args = self.stack.pop()
        self.stack[-1] = self._new(self.stack[-1], args)

    def load_newobj_ex(self) -> None:
        self.stack.pop()  # keyword arguments
        self.load_newobj()

    def load_inst(self) -> None:
        module = self.readline()[:-1].decode('ascii')
        name = self.readline()[:-1].decode('ascii')
        args = self.pop_mark()
        self.append(self._call(self.find_class(module, name), args))

    def load_obj(self) -> None:
        cls, *args = self.pop_mark()
        self.append(self._call(cls, args))

    def load_build(self) -> None:
        self.stack.pop()  # the state of an OrderedDict or a placeholder: neither needs any

    def load_binpersid(self) -> None:
        saved_id = self.stack[-1]
        if isinstance(saved_id, tuple) and saved_id and saved_id[0] == 'module':
            self.stack[-1] = saved_id[1]  # torch would read and compare source files here
        else:
            super().load_binpersid()

    def load_bytearray8(self) -> None:
        # The inherited one fills as much memory as a damaged length says before it reads.
        length, = struct.unpack('<Q', self.read(8))
        self.append(bytearray(self.read(length)))

    dispatch = {
        **pickle._Unpickler.dispatch,
        pickle.REDUCE[0]: load_reduce,
        pickle.NEWOBJ[0]: load_newobj,
        pickle.NEWOBJ_EX[0]: load_newobj_ex,
        pickle.INST[0]: load_inst,
        pickle.OBJ[0]: load_obj,
        pickle.BUILD[0]: load_build,
        pickle.BINPERSID[0]: load_binpersid,
        pickle.BYTEARRAY8[0]: load_bytearray8,
    }


class SafePickle:
    """What ``torch.load`` takes as ``pickle_module``."""

    __name__ = __name__
    Unpickler = _SafeUnpickler

    @staticmethod
    def load(file: Any, **kwargs: Any) -> Any:
        return _SafeUnpickler(file, **kwargs).load()
