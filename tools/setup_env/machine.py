"""What the machine offers: disk, memory, cores, a C++ compiler."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
from pathlib import Path

from .environment import Environment
from .failures import SetupError, explain

GIB = 1024**3
# The venv takes 7 GiB, and pip holds what it downloads beside it for a while: 10.7 at the peak.
DISK_NEEDED = 11 * GIB
# A compile job of mmcv peaks below this.
MEMORY_PER_JOB = 2 * GIB


def check_disk(folder: Path, needed: int = DISK_NEEDED) -> None:
    """Raises SetupError where fewer than `needed` bytes are free on the disk of `folder`."""
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise SetupError(
            f'The set-up needs about {needed / GIB:.0f} GiB of disk, and {free / GIB:.1f} GiB are '
            f'free in {folder}: make room first, or set up elsewhere with VENV=/path/to/venv.'
        )


def check_compiler(env: Environment) -> None:
    """Compiles three lines, which tells in a second what is missing for the long build.

    Raises:
        SetupError: there is no compiler, or the headers of Python or C++ are missing.
    """
    code = 'import sysconfig; print(sysconfig.get_path("include"))'
    include = env.python_run(code).stdout.strip()
    compiler = os.environ.get('CXX') or 'c++'
    try:
        result = subprocess.run(
            [*compiler.split(), '-x', 'c++', '-fsyntax-only', f'-I{include}', '-'],
            input='#include <Python.h>\n#include <vector>\n#include <string>\n',
            env=env.variables(),
            capture_output=True,
            text=True,
        )
    except FileNotFoundError:
        raise SetupError(explain('c++: not found', 127)) from None
    if result.returncode != 0:
        raise SetupError(explain(result.stderr, result.returncode))


def build_jobs(cores: int | None = None, memory: int | None = None) -> int:
    """How many compilers to run at a time: bounded by cores and memory; MAX_JOBS overrides.

    Args:
        cores: to use instead of those this process may run on.
        memory: bytes to use instead of what is free.

    Raises:
        SetupError: MAX_JOBS is set, but is not a positive number.
    """
    asked = os.environ.get('MAX_JOBS', '')
    if asked:
        if not asked.isdigit() or int(asked) < 1:
            raise SetupError(f'MAX_JOBS is {asked!r}; expected a whole number of at least 1.')
        return int(asked)
    cores = cores or len(os.sched_getaffinity(0))
    memory = available_memory() if memory is None else memory
    return max(1, min(cores, memory // MEMORY_PER_JOB))


def available_memory() -> int:
    """Bytes that can be had: the free memory, or the limit of the container where that is less."""
    limits = []
    with contextlib.suppress(OSError, AttributeError):
        text = Path('/proc/meminfo').read_text()
        limits.append(int(re.search(r'MemAvailable: +(\d+) kB', text).group(1)) * 1024)
    for path in ('/sys/fs/cgroup/memory.max', '/sys/fs/cgroup/memory/memory.limit_in_bytes'):
        with contextlib.suppress(OSError, ValueError):  # the first holds `max` for no limit
            limits.append(int(Path(path).read_text()))
    return min(limits, default=MEMORY_PER_JOB)
