"""Output folders: nothing of the user's is written over without being asked."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

from mmengine.config import Config

from .config import stem_of
from .errors import UserError

_TIMESTAMP = re.compile(r'\d{8}_\d{6}(\.py)?')


def work_dir_of(cfg: Config, work_dir: str | os.PathLike | None) -> Path:
    """Work folder as mm chooses it: the argument, ``cfg.work_dir``, ``./work_dirs/<config>``.

    Raises:
        UserError: The path is a file, or cannot be made or written.
    """
    folder = Path(work_dir or cfg.get('work_dir') or Path('work_dirs') / stem_of(cfg)).expanduser()
    make_folder(folder, '--work-dir')
    return folder


def make_folder(folder: Path, option: str) -> None:
    """Make ``folder`` and its parents.

    Raises:
        UserError: It is a file, or cannot be made or written; ``option`` names where it is set.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f'{option} {folder} cannot be made ({error.strerror}); choose another '
                        'folder') from error
    if not os.access(folder, os.W_OK):
        raise UserError(f'{option} {folder} cannot be written; choose another folder')


def refuse_used_work_dir(folder: Path, cfg: Config,
                         but: Callable[[str], bool] = lambda name: False) -> None:
    """Refuse to start a training in a folder that holds anything but timestamped logs.

    Those are what a test or a start that failed leaves; a training adds its own beside them.

    Args:
        folder: The work folder.
        cfg: The config; its dump may stand there.
        but: Tells of a name whether it may stand there, too.

    Raises:
        UserError: The folder holds other contents.
    """
    allowed = {f'{stem_of(cfg)}.py'}
    others = sorted(entry.name for entry in folder.iterdir()
                    if entry.name not in allowed and not _TIMESTAMP.fullmatch(entry.name)
                    and not but(entry.name))
    if others:
        raise UserError(
            f'work dir {folder} already holds {_some(others)}; continue that training with '
            '--resume, or choose another --work-dir')


def refuse_used(path: Path, option: str, mend: str) -> None:
    """Refuse an output path that exists as a file or as a folder that is not empty.

    Raises:
        UserError: It does; ``option`` names where it was given and ``mend`` what to do.
    """
    if path.is_dir():
        entries = sorted(entry.name for entry in path.iterdir())
        if entries:
            raise UserError(f'{option} {path} already holds {_some(entries)}; {mend}')
    elif path.exists():
        raise UserError(f'{option} {path} exists; {mend}')


def _some(names: list[str]) -> str:
    rest = len(names) - 3
    return ', '.join(names[:3]) + (f' and {rest} more' if rest > 0 else '')
