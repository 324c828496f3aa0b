"""Checkpoint files: written whole or not at all, and found again."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from mmengine.fileio import LocalBackend, register_backend

from ..checkpoint.read import CheckpointError, read_checkpoint

BACKEND = 'whole_files'
POINTER = 'last_checkpoint'  # mmengine's file with the path of the newest checkpoint
_PARTIAL = '.partial'
MAKE_ROOM = 'free some space or raise the limit'
_CHECKPOINT = re.compile(r'(stopped_iter|iter|epoch)_(\d+)\.pth')


class CheckpointWriteError(OSError):
    """A checkpoint cannot be written: the disk is full, a quota or a limit is reached, …

    Whatever stood under its name before still does.
    """


@register_backend(BACKEND, force=True)
class WholeFilesBackend(LocalBackend):
    """mmengine's local files, except that a file appears under its name only when it is whole."""

    def put(self, obj: bytes, filepath: str | os.PathLike) -> None:
        """Write bytes; see :func:`write_whole`."""
        write_whole(obj, filepath)

    def put_text(self, obj: str, filepath: str | os.PathLike, encoding: str = 'utf-8') -> None:
        """Write text; see :func:`write_whole`."""
        write_whole(obj.encode(encoding), filepath)


def write_whole(data: bytes, path: str | os.PathLike) -> None:
    """Write a file so that, killed at any moment, the old or the new one is there, never half.

    The data goes to ``PATH.partial`` in the same folder, is brought to the disk and renamed.

    Raises:
        CheckpointWriteError: It cannot be written; the message says what is needed.
    """
    path = Path(path)
    partial = path.with_name(path.name + _PARTIAL)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(partial, 'wb') as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except OSError as error:
        _remove(partial)
        raise CheckpointWriteError(error.errno, _cannot_write(path, len(data), error)) from error
    except BaseException:  # Ctrl-C
        _remove(partial)
        raise
    _sync_folder(path.parent)


def remove_partial(folder: str | os.PathLike) -> list[Path]:
    """Remove what a process killed while it wrote left in ``folder``; the files removed."""
    found = [*Path(folder).glob(f'*.pth{_PARTIAL}'), *Path(folder).glob(POINTER + _PARTIAL)]
    for path in found:
        _remove(path)
    return found


def newest_checkpoint(folder: str | os.PathLike, warn=lambda message: None) -> Path | None:
    """The newest checkpoint of a work folder that is whole.

    That is the one ``last_checkpoint`` names, or one completed after it was written. One that
    cannot be read (truncated, zeros from a crashed machine, of another kind) is passed over for
    the one before, with a sentence to ``warn``. Best checkpoints (``best_*.pth``) are none to
    resume from.

    Args:
        folder: A work folder.
        warn: Called with a sentence for each file that is passed over.

    Returns:
        Its path; None where the folder holds no checkpoint.

    Raises:
        CheckpointError: There are checkpoints, but none can be read, or the only one is named but
            absent.
    """
    folder = Path(folder)
    problems = []
    for path in _candidates(folder):
        try:
            if not path.is_file():
                raise CheckpointError(f'{folder / POINTER} names {path}, which does not exist')
            read_checkpoint(path)
        except CheckpointError as error:
            problems.append(str(error))
            continue
        for problem in problems:
            warn(f'{problem}; resuming from {path} instead')
        return path
    if problems:
        raise CheckpointError(f'{problems[0]}; {folder} holds no other checkpoint that is whole, '
                              'so give one with --resume PATH or start anew in another folder')
    return None


def what_is_left(folder: str | os.PathLike) -> str:
    """How to go on in a work folder after a failure; the end of a sentence."""
    try:
        named = Path(folder, POINTER).read_text().strip()
    except OSError:
        named = ''
    if not named:
        return 'no checkpoint was saved yet'
    return f'the last checkpoint is {named}, --resume goes on from there'


def is_leftover(name: str) -> bool:
    """Whether a file is what a training killed before its first checkpoint may have left."""
    return name.endswith(_PARTIAL) or (name.startswith('best_') and name.endswith('.pth'))


def _candidates(folder: Path) -> Iterator[Path]:
    """Checkpoints of a work folder, the newest first."""
    pointer = folder / POINTER
    named, written = None, -1
    with contextlib.suppress(FileNotFoundError):
        text = pointer.read_text().strip()
        if text:  # a kill may have left the file of another tool empty
            named, written = Path(text), pointer.stat().st_mtime_ns
    if named is not None and not named.is_file() and (folder / named.name).is_file():
        named = folder / named.name  # the folder was moved
    others = [path for path in folder.iterdir()
              if _CHECKPOINT.fullmatch(path.name) and not (named and path.name == named.name)]
    others.sort(key=lambda path: (path.stat().st_mtime_ns, _number(path)), reverse=True)
    # Completed, but killed before last_checkpoint could name it. Copies of a folder lose their
    # times, so the number must be higher as well.
    newer = [path for path in others if path.stat().st_mtime_ns > written
             and (named is None or _number(path) > _number(named))]
    yield from newer
    if named is not None:
        yield named
    yield from (path for path in others if path not in newer)


def _number(path: Path) -> int:
    match = _CHECKPOINT.fullmatch(path.name)
    return int(match[2]) if match else -1


def _cannot_write(path: Path, size: int, error: OSError) -> str:
    try:
        free = shutil.disk_usage(path.parent).free
        room = f', {_megabytes(free)} are free in {path.parent}'
    except OSError:
        room = ''
    return (f'{path} cannot be written ({error.strerror}): it needs {_megabytes(size)}{room}')


def _megabytes(size: int) -> str:
    return f'{size / 1e6:.1f} MB'


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink()


def _sync_folder(folder: Path) -> None:
    """Bring a rename to the disk, where the file system can."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
