"""Turns the log of a failed step into a sentence or two on what is missing."""

from __future__ import annotations

import re
import signal


class SetupError(Exception):
    """The set-up cannot go on; the message says why and what to do."""


# (pattern, what to tell the user), tried in order on the whole log of the failed command.
# Network rules come last and look at final errors only: pip also logs the retries that worked.
RULES: tuple[tuple[str, str], ...] = (
    (
        r'No space left on device|Disk quota exceeded',
        'The disk is full. The set-up needs about 11 GiB (7 GiB stay): make room, then run the '
        'same command again.',
    ),
    (
        r'ensurepip is not\s+available|No module named \'?(ensurepip|venv)\b|'
        r'ensurepip.*returned non-zero exit status',
        'This Python cannot make virtual environments: `apt-get install python3-venv` (for the '
        'interpreter in use, for example python3.11-venv), or choose another with PYTHON=.',
    ),
    (
        r'Killed signal terminated program|fatal error: Killed|virtual memory exhausted|'
        r'cc1plus: out of memory|Cannot allocate memory|\bMemoryError\b|std::bad_alloc',
        'The machine ran out of memory. Run it again with one compiler at a time: '
        '`make env MAX_JOBS=1` (about 2 GiB free memory are enough).',
    ),
    (
        r'(c\+\+|g\+\+|gcc|clang\+\+): (command )?not found|'
        r'unable to execute \'?\S*(c\+\+|g\+\+|gcc|clang)|'
        r'No such file or directory: \'\S*(c\+\+|g\+\+|gcc|clang\+\+)\'|'
        r'command \'\S*(c\+\+|g\+\+|gcc|clang)\S*\' failed: No such file',
        'There is no C++ compiler: `apt-get install g++` (mmcv is compiled from source).',
    ),
    (
        r'cannot execute .?cc1plus|error trying to exec .?cc1plus',
        'The C compiler is there, but its C++ half is not: `apt-get install g++`.',
    ),
    (
        r'Python\.h: No such file|\'Python\.h\' file not found',
        'The C headers of Python are missing: `apt-get install python3-dev` (for the interpreter '
        'in use, for example python3.11-dev).',
    ),
    (
        r'fatal error: \'?(vector|cstddef|string|stdlib\.h|stdio\.h|limits\.h)\'?'
        r'(: No such file| file not found)',
        'The C++ standard library headers are missing: `apt-get install g++ libc6-dev`.',
    ),
    (
        r'too old version of GCC|We need GCC \d+ or later|unrecognized command line option '
        r'.-std=c\+\+17',
        'The C++ compiler is too old for torch: GCC 9 or later is needed (choose one with CXX=).',
    ),
    (
        r'CUDA_HOME environment variable is not set|nvcc: not found|'
        r'No such file or directory: \'\S*nvcc\'',
        'A GPU is visible but there is no CUDA toolkit (nvcc) to compile for it: install the one '
        'of the CUDA version torch was built with, or compile for the CPU only with '
        '`CUDA_VISIBLE_DEVICES= make env`.',
    ),
    (
        r'detected CUDA version \(\S+\) mismatches the version that was used to compile',
        'The CUDA toolkit is of another version than the one torch was built with: install the '
        'matching one, or compile for the CPU only with `CUDA_VISIBLE_DEVICES= make env`.',
    ),
    (
        r'Permission denied|Read-only file system',
        'A file could not be written: this folder and the cache of pip must belong to the '
        'user who runs the set-up.',
    ),
    (
        r'Could not find a version that satisfies the requirement (?P<what>\S+).*'
        r'\(from versions: none\)|'
        r'^(ERROR: .*|pip\._vendor\.\S*)(ConnectionPool|ConnectionError|ReadTimeoutError|'
        r'ConnectTimeout|ProtocolError|IncompleteRead|NewConnectionError|NameResolutionError|'
        r'ProxyError|SSLError)',
        'The package registry could not be reached: check the network (or the proxy, or the '
        'index that pip is set to), then run the same command again.',
    ),
    (
        r'No matching distribution found for (?P<what>\S+)',
        'The package registry has no {what} for this Python and machine. Supported are Python '
        '3.10 to 3.12 on Linux x86-64 and aarch64.',
    ),
)

_TELLING = re.compile(r'(?i)\b(error|exception|fatal)\b')
_MAX_LINE = 200


def explain(log: str, returncode: int) -> str:
    """Says why a command failed.

    Args:
        log: everything the command printed.
        returncode: its exit status; negative for the signal that ended it.

    Returns:
        One or two sentences. Where no rule fits, the last line of the log that speaks of an
        error (at most 200 characters).
    """
    for pattern, sentence in RULES:
        match = re.search(pattern, log, re.MULTILINE)
        if match:
            return sentence.format(**match.groupdict())
    if returncode == -signal.SIGKILL:
        return (
            'It was killed, most often for lack of memory. Run it again with one compiler at a '
            'time: `make env MAX_JOBS=1`.'
        )
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    telling = [line for line in lines if _TELLING.search(line)] or lines
    if not telling:
        return f'It ended with status {returncode} and said nothing.'
    line = telling[-1]
    return line if len(line) <= _MAX_LINE else line[: _MAX_LINE - 1] + '…'
