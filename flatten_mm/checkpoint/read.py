"""Reading a checkpoint file of any accepted layout without running code from it."""
from __future__ import annotations

import hashlib
import os
import pickle
import string
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import torch
from mmengine.dist import barrier, get_rank
from safetensors import SafetensorError, safe_open
from torch import Tensor

from .safe_pickle import HostileFileError, Placeholder, SafePickle

# Where checkpoints keep their weights, the first found is taken. Averaged weights come first:
# they are what the authors who save them evaluate. An mm file with an average has it already
# under 'state_dict' (its 'ema_state_dict' then holds the other one).
_WEIGHT_KEYS = ('state_dict_ema', 'model_ema', 'state_dict', 'model', 'model_state_dict')
# torch.save before 1.6 starts with this number as a pickle of its own.
_LEGACY_MAGIC = pickle.dumps(torch.serialization.MAGIC_NUMBER, protocol=2)[2:-1]
# Tensors of a file may share storage (tied weights do), but not stand for far more than it holds.
_MAX_TIMES_FILE, _MAX_EXTRA_BYTES = 4, 256 << 20
_META_KEYS = ('epoch', 'iter', 'max_accuracy', 'metric', 'arch', 'meta')


class CheckpointError(ValueError):
    """A checkpoint cannot be read, or is not the model's; the message names the file and why.

    Args:
        message: one line; whatever in it cannot be printed (names in a file may hold anything) is
            shown as a question mark.
    """

    def __init__(self, message: str) -> None:
        super().__init__(printable(message))


def printable(text: str) -> str:
    """``text`` without line breaks and control codes, which a terminal would obey."""
    return ''.join(c if c.isprintable() else '?' for c in text)


@dataclass
class Checkpoint:
    """The weights of a file.

    Attributes:
        state_dict: parameter and buffer names as in the file -> CPU tensors.
        path: the file (for a URL, the local copy).
        format: ``'torch'``, ``'torch (legacy)'`` or ``'safetensors'``.
        weights_key: entry of the file the weights were under, ``''`` for a plain state dict.
        meta: epoch, accuracy, mm's ``meta`` and the like, where the file has them; plain values
            only, anything else is named by a string.
        skipped: names in the state dict whose value is no tensor.
    """

    state_dict: dict[str, Tensor]
    path: Path
    format: str
    weights_key: str = ''
    meta: dict[str, Any] = field(default_factory=dict)
    skipped: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        if not self.weights_key:
            return f'{self.path} (plain state dict)'
        averaged = ', averaged (EMA) weights' if 'ema' in self.weights_key.split('_') else ''
        return f"{self.path} (entry '{self.weights_key}'{averaged})"


def read_checkpoint(path: str | Path) -> Checkpoint:
    """Read a released file, a plain state dict, an mm checkpoint or a ``.safetensors`` file.

    Nothing in the file is executed or imported: objects of classes other than tensors become
    inert placeholders, and a file that names something to run is refused.

    Args:
        path: a local file, or an http(s) URL, which is downloaded into torch.hub's cache once.

    Raises:
        FileNotFoundError: there is no such file.
        CheckpointError: the file is damaged, of another kind, or tries to run something.
    """
    path = _local_file(path)
    if not path.exists():
        raise FileNotFoundError(f'checkpoint {path} does not exist')
    if not path.is_file():
        kind = 'a folder' if path.is_dir() else 'no regular file'
        raise CheckpointError(f'{path} is {kind}; expected a checkpoint file')
    kind = _sniff(path)
    if kind == 'safetensors':
        return _read_safetensors(path)
    if kind == 'torch':
        _check_archive(path)
    return _pick_weights(_torch_load(path, mmap=kind == 'torch'), path, kind)


def _local_file(path: str | Path) -> Path:
    """The path itself, or the cached copy of an http(s) URL."""
    url = urlparse(str(path))
    if url.scheme not in ('http', 'https'):
        if '://' in str(path):
            raise CheckpointError(f"cannot fetch {path}: '{url.scheme}://' is not supported; "
                                  'give a local path or an http(s) URL')
        return Path(path).expanduser()
    # Hosts serve different files under one name, so the name alone would not do.
    key = hashlib.sha256(str(path).encode()).hexdigest()[:8]
    target = Path(torch.hub.get_dir(), 'checkpoints', f'{key}-{Path(url.path).name}')
    if get_rank() == 0 and not target.exists():
        _download(str(path), target)
    barrier()
    if not target.exists():  # a machine of its own, whose disk rank 0 does not share
        _download(str(path), target)
    return target


def _download(url: str, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        torch.hub.download_url_to_file(url, str(target), progress=False)
    except OSError as error:
        raise CheckpointError(f'cannot download {url}: {error}') from error


def _sniff(path: Path) -> str:
    """Kind of file by its first bytes: 'torch', 'torch (legacy)' or 'safetensors'."""
    try:
        with path.open('rb') as file:
            head = file.read(256)
    except OSError as error:
        raise CheckpointError(f'{path} cannot be opened: {error.strerror}') from error
    if not head:
        raise CheckpointError(f'{path} is empty; copy or download it again')
    if head.startswith(b'PK\x03\x04'):
        return 'torch'
    if _LEGACY_MAGIC in head[:32]:
        return 'torch (legacy)'
    if head[8:9] == b'{' and int.from_bytes(head[:8], 'little') < path.stat().st_size:
        return 'safetensors'
    raise CheckpointError(f'{path} is not a checkpoint: {_describe(head)}')


def _describe(head: bytes) -> str:
    """What a file that is no checkpoint seems to be."""
    if not any(head):
        return 'it begins with zeros, as an interrupted download does; download it again'
    if head.lstrip().lower().startswith((b'<!doctype', b'<html', b'<?xml')):
        return 'it is a web page, perhaps a login or error page saved in place of the download'
    signatures = {b'\xff\xd8\xff': 'a JPEG image', b'\x89PNG': 'a PNG image',
                  b'\x1f\x8b': 'a gzip file (unpack it first)', b'PK': 'an empty zip archive',
                  b'%PDF': 'a PDF document', b'\x89HDF': 'an HDF5 file',
                  b'\x80': 'a Python pickle that torch.save did not write'}
    for signature, name in signatures.items():
        if head.startswith(signature):
            return f'it is {name}'
    if all(byte in string.printable.encode() for byte in head):
        return f'it is a text file that begins with {head[:40].decode("ascii")!r}'
    return 'its first bytes are of no format that torch or safetensors writes'


def _check_archive(path: Path) -> None:
    """Refuse zip files that torch would run, misread, or read although they are damaged."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
            if not any(name.endswith('/data.pkl') for name in names):
                raise CheckpointError(f'{path} is a zip archive but not a checkpoint: no data.pkl '
                                      f'in it; it holds {", ".join(names[:3]) or "nothing"}')
            if any(name.endswith('/constants.pkl') for name in names):
                raise CheckpointError(f'{path} is a TorchScript program, which would have to be '
                                      'run; save the state_dict of the model in it instead')
            for record in archive.infolist():
                if record.compress_type != zipfile.ZIP_STORED:
                    raise CheckpointError(f'{path} was compressed after torch saved it (record '
                                          f'{record.filename}); save it again with torch.save')
                if record.CRC:  # torch can be told to write none
                    with archive.open(record) as stream:
                        while stream.read(1 << 20):
                            pass
    except zipfile.BadZipFile as error:
        raise CheckpointError(f'{path} is truncated or damaged ({error}); copy or download it '
                              'again') from error
    except (OSError, EOFError, NotImplementedError, RuntimeError, ValueError) as error:
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(f'{path} cannot be read as a zip archive: {error}') from error


def _torch_load(path: Path, mmap: bool) -> Any:
    if os.getenv('TORCH_FORCE_WEIGHTS_ONLY_LOAD', '0').lower() in ('1', 'y', 'yes', 'true'):
        # The user wants torch's own safe reader, which takes no pickle_module.
        options = dict(weights_only=True)
    else:
        options = dict(weights_only=False, pickle_module=SafePickle())
    try:
        return torch.load(str(path), map_location='cpu', mmap=mmap, **options)
    except HostileFileError as error:
        raise CheckpointError(
            f'{path} tries to call {error}; it was refused and nothing in it was run. If you trust '
            'its source, ask there for the bare weights, torch.save(model.state_dict(), ...)'
        ) from None
    except Exception as error:  # damaged bytes can raise anything from within a pickle
        reason = str(error).partition('\n')[0] or type(error).__name__
        raise CheckpointError(f'{path} is truncated or not written by torch.save '
                              f'({reason})') from error


def _read_safetensors(path: Path) -> Checkpoint:
    try:
        with safe_open(str(path), framework='pt') as file:
            weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            meta = dict(file.metadata() or {})
    except (SafetensorError, OSError, ValueError) as error:
        raise CheckpointError(f'{path} is a truncated or damaged safetensors file '
                              f'({error})') from error
    return Checkpoint(weights, path, 'safetensors', meta=meta)


def _pick_weights(content: Any, path: Path, kind: str) -> Checkpoint:
    """Find the state dict in what the file holds."""
    if not isinstance(content, Mapping):
        what = content.full_name if isinstance(content, Placeholder) else type(content).__name__
        raise CheckpointError(f'{path} holds a {what}, not a state dict; save '
                              'model.state_dict() instead')
    for key in _WEIGHT_KEYS:
        if _is_state_dict(content.get(key)):
            weights = content[key]
            break
    else:
        key, weights = '', content
    if not _is_state_dict(weights):
        raise CheckpointError(
            f'{path} holds no state dict: its entries are {_some_names(content)}; expected '
            f'tensors by name, plain or under one of {", ".join(_WEIGHT_KEYS)}')
    tensors = {str(name): value for name, value in weights.items() if isinstance(value, Tensor)}
    skipped = [str(name) for name, value in weights.items() if not isinstance(value, Tensor)]
    _check_extent(tensors, path)
    meta = {name: _plain(content[name]) for name in _META_KEYS if name in content} if key else {}
    return Checkpoint(tensors, path, kind, key, meta, skipped)


def _check_extent(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Refuse shapes far beyond the data: with a stride of 0, four bytes are a billion elements,
    whose first copy would fill the memory."""
    left = _MAX_TIMES_FILE * path.stat().st_size + _MAX_EXTRA_BYTES
    for name, tensor in tensors.items():
        left -= tensor.numel() * tensor.element_size()
        if left < 0:
            raise CheckpointError(
                f'{path}: {name} has the shape {tuple(tensor.shape)}, far more than the '
                f'{path.stat().st_size} bytes of the file hold; the file is damaged or made to '
                'fill the memory')


def _is_state_dict(value: Any) -> bool:
    return isinstance(value, Mapping) and any(isinstance(v, Tensor) for v in value.values())


def _some_names(content: Mapping) -> str:
    names = [str(name)[:40] for name in list(content)[:5]]
    return ', '.join(names) + (', ...' if len(content) > 5 else '') if names else 'none'


def _plain(value: Any, depth: int = 0) -> Any:
    """Numbers, strings and containers of them as they are; anything else as its description."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if depth < 4:  # deep enough for mm's meta, and an end to a file that nests without one
        if isinstance(value, Mapping):
            return {str(k): _plain(v, depth + 1) for k, v in value.items()}
        if isinstance(value, (list, tuple, set)):
            return [_plain(v, depth + 1) for v in value]
    return repr(value) if isinstance(value, Placeholder) else f'<{type(value).__name__}>'
