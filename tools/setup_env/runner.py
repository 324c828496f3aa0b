"""Runs one long command: output to a log, progress to the user, nothing left behind."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TextIO

_TAIL_BYTES = 1 << 18
_PR_SET_PDEATHSIG = 1


class CommandFailed(Exception):
    """A command ended with a status other than 0."""

    def __init__(self, returncode: int, log: Path) -> None:
        super().__init__(f'status {returncode}, log {log}')
        self.returncode = returncode
        self.log = log


def duration(seconds: float) -> str:
    """`75` -> `1 min 15 s`."""
    minutes, rest = divmod(int(seconds), 60)
    return f'{minutes} min {rest:02d} s' if minutes else f'{rest} s'


class Progress:
    """A line that is kept up to date on a terminal and repeated now and then elsewhere.

    Args:
        prefix: what every line starts with.
        stream: where to write.
        interval: seconds between two lines where `stream` is no terminal.
    """

    def __init__(self, prefix: str, stream: TextIO | None = None, interval: float = 60.0) -> None:
        self.prefix = prefix
        self.stream = stream or sys.stdout
        self.interval = interval
        self.tty = self.stream.isatty()
        self._last = time.monotonic()
        self._open = False

    def say(self, text: str) -> None:
        """Writes a line that stays."""
        self._write(('\r\x1b[K' if self._open else '') + f'{self.prefix}{text}\n')
        self._open = False

    def update(self, text: str) -> None:
        """Writes the current state: in place on a terminal, else at most once per interval."""
        if self.tty:
            width = shutil.get_terminal_size().columns - 1
            self._write('\r\x1b[K' + f'{self.prefix}{text}'[:width])
            self._open = True
        elif time.monotonic() - self._last >= self.interval:
            self._last = time.monotonic()
            self._write(f'{self.prefix}{text}\n')

    def _write(self, text: str) -> None:
        self.stream.write(text)
        self.stream.flush()


def _die_with_parent() -> None:
    """In the child: be killed when the set-up is, or pip would go on writing unattended."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _end_group(child: subprocess.Popen, patience: float = 5.0) -> None:
    """Ends the child and all that it started (it leads its own process group)."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGTERM)
        limit = time.monotonic() + patience
        while time.monotonic() < limit:
            child.poll()
            os.killpg(child.pid, 0)  # ProcessLookupError: none is left
            time.sleep(0.1)
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def _tail(path: Path) -> str:
    with open(path, 'rb') as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - _TAIL_BYTES))
        return file.read().decode('utf-8', 'replace')


def run(
    command: Sequence[str],
    *,
    log: Path,
    env: Mapping[str, str],
    cwd: Path,
    progress: Progress,
    describe: Callable[[str, float], str],
    poll: float = 0.5,
) -> None:
    """Runs `command` with its output appended to `log`.

    Args:
        describe: called with the end of the log and the seconds so far, returns the text of the
            progress line.
        poll: seconds between two looks at the log.

    Raises:
        CommandFailed: the command ended with a status other than 0.
    """
    start = time.monotonic()
    with open(log, 'ab') as out:
        out.write(f'$ {" ".join(command)}\n'.encode())
        out.flush()
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            env=dict(env),
            cwd=cwd,
            start_new_session=True,
            preexec_fn=_die_with_parent,
        )
    try:
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(timeout=poll)
                break
            progress.update(describe(_tail(log), time.monotonic() - start))
    except BaseException:
        _end_group(child)
        raise
    if child.returncode != 0:
        raise CommandFailed(child.returncode, log)
