"""Command line of the set-up: `python -m setup_env [--venv .venv] [--stack official]`."""

from __future__ import annotations

import argparse
import fcntl
import os
import signal
import sys
import time
from pathlib import Path
from typing import TextIO

from .environment import Environment
from .failures import SetupError
from .plan import set_up
from .runner import Progress, duration
from .steps import STACKS

ROOT = Path(__file__).resolve().parents[2]


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog='setup_env', description=__doc__)
    parser.add_argument('--venv', type=Path, help='where to set up; .venv or .venv-STACK')
    parser.add_argument('--stack', default='official', help=f'one of {", ".join(STACKS)}')
    parser.add_argument(
        '--this-python',
        action='store_true',
        help='it is an error if the environment exists with another Python than the running one',
    )
    return parser.parse_args(arguments)


def default_venv(stack: str) -> Path:
    """Where a stack goes; the Makefile says the same."""
    return ROOT / ('.venv' if stack == 'official' else f'.venv-{stack}')


def lock(path: Path) -> TextIO:
    """Waits until no other set-up of the same environment runs; ends with this process."""
    file = open(path, 'a+')  # noqa: SIM115 - held until the process ends
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.seek(0)
        print(f'another set-up (process {file.read().strip()}) is running: waiting', flush=True)
        fcntl.flock(file, fcntl.LOCK_EX)
    file.truncate(0)
    file.write(f'{os.getpid()}\n')
    file.flush()
    return file


def run(arguments: argparse.Namespace) -> None:
    """Sets up.

    Raises:
        SetupError: with what is missing.
    """
    if arguments.stack not in STACKS:
        raise SetupError(
            f'STACK is {arguments.stack!r}; expected {" or ".join(map(repr, STACKS))}.'
        )
    venv = (arguments.venv or default_venv(arguments.stack)).absolute()
    if venv.exists() and not venv.is_dir():
        raise SetupError(f'{venv} is a file; expected a folder, or nothing: move it away first.')
    env = Environment(ROOT, venv)
    venv.parent.mkdir(parents=True, exist_ok=True)
    held = lock(venv.with_name(venv.name + '.lock'))
    with held:
        version, running = env.python_version(), '.'.join(map(str, sys.version_info[:2]))
        if arguments.this_python and version not in (None, running):
            raise SetupError(
                f'{venv} was made with Python {version}, and PYTHON is {running}: remove that '
                'folder, or choose another one with VENV=.'
            )
        made_for = env.stack()
        if made_for not in (None, arguments.stack):
            raise SetupError(
                f'{venv} holds the {made_for} stack, and STACK is {arguments.stack}: their '
                'packages do not go together. Choose another folder with VENV=, or remove that one.'
            )
        env.note_stack(arguments.stack)
        start = time.monotonic()
        if set_up(env, STACKS[arguments.stack], Progress):
            print(f'{venv} is ready (after {duration(time.monotonic() - start)})', flush=True)


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt


def main(arguments: list[str] | None = None) -> int:
    signal.signal(signal.SIGTERM, _interrupt)
    signal.signal(signal.SIGHUP, _interrupt)
    try:
        run(parse(arguments))
    except SetupError as error:
        print(f'\nset-up failed: {error}', file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print('\nset-up interrupted; the same command goes on from here', file=sys.stderr)
        return 130
    return 0


if __name__ == '__main__':
    sys.exit(main())
