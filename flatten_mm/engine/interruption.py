"""Trainings that are interrupted: what they save, where they go on, what is said when they end."""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mmengine.config import Config, ConfigDict

from ..checkpoint import CheckpointError
from ..hooks import CheckpointWriteError, ResumableCheckpointHook, newest_checkpoint
from ..hooks.files import MAKE_ROOM, what_is_left
from .errors import UserError, one_line
from .runner import warn

_DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def use_resumable_checkpoints(cfg: Config) -> None:
    """Put :class:`ResumableCheckpointHook` in the place of mmengine's hook, with its arguments.

    A hook of another type, or None, stays.
    """
    hooks = cfg.setdefault('default_hooks', ConfigDict())
    hook = hooks.setdefault('checkpoint', ConfigDict(interval=1))  # mmengine's default
    if hook is not None and hook.get('type', 'CheckpointHook') in (
            'CheckpointHook', 'mmengine.CheckpointHook'):
        hook.type = ResumableCheckpointHook.__name__


def checkpoint_to_resume(folder: Path) -> Path | None:
    """The newest whole checkpoint of a work folder, None without one.

    Raises:
        UserError: It holds checkpoints, but none is whole.
    """
    try:
        return newest_checkpoint(folder, warn)
    except CheckpointError as error:
        raise UserError(one_line(error)) from error


@contextmanager
def told(folder: str | os.PathLike) -> Iterator[None]:
    """Say in a sentence what ended the training of the block, and what is left to go on from.

    Args:
        folder: The work folder.

    Raises:
        UserError: A file could not be written.
        KeyboardInterrupt: The user interrupted it; its message names the last checkpoint.
    """
    raises = logging.raiseExceptions
    logging.raiseExceptions = False  # a traceback for each line that a full disk does not take
    try:
        yield
    except BaseException as error:
        if is_interrupt(error):
            raise KeyboardInterrupt(what_is_left(folder)) from error
        for cause in _causes(error):
            if isinstance(cause, CheckpointWriteError):
                raise UserError(f'checkpoint {one_line(cause.strerror)}') from error
            if isinstance(cause, OSError) and cause.errno in _DISK_FULL:
                raise UserError(
                    f'{cause.filename or f"a log in {folder}"} cannot be written '
                    f'({cause.strerror}); {MAKE_ROOM}, {what_is_left(folder)}') from error
        raise
    finally:
        logging.raiseExceptions = raises


def is_interrupt(error: BaseException) -> bool:
    """Whether the user's Ctrl-C is behind an error.

    Libraries hide it: mmengine turns it into a SyntaxError while it formats a config.
    """
    return any(isinstance(cause, KeyboardInterrupt) for cause in _causes(error))


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """An error and those it was raised for."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
