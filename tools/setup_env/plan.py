"""Which steps are left to do, and doing them."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from .environment import OPENCVS, Environment
from .machine import check_disk
from .runner import Progress
from .steps import Runner, Step

# Changed when a step does something else than before with the same requirement files.
FORMAT = '1'


def keys(env: Environment, steps: Sequence[Step]) -> list[str]:
    """A digest a step of all that decides its result, what the steps before it use included."""
    digest = hashlib.sha256(f'{FORMAT} {env.venv}'.encode())
    result = []
    for step in steps:
        digest.update(step.name.encode())
        if step.files:
            for name in (*step.files, 'constraints'):
                digest.update(env.requirements(name).read_bytes())
        digest.update(step.extra(env.root).encode())
        result.append(digest.hexdigest())
    return result


def pending(env: Environment, steps: Sequence[Step]) -> int:
    """The number of the first step to do; `len(steps)` where all is in place.

    A step is done when its stamp says so and what it installed is still there as pinned.
    """
    if env.python_version() is None:
        return 0
    installed = env.installed()
    for number, (step, key) in enumerate(zip(steps, keys(env, steps))):
        stamp = _stamp(env, step)
        if not stamp.exists() or stamp.read_text() != key:
            return number
        for name in step.files:
            if any(installed.get(package) != pin for package, pin in env.pins(name).items()):
                return number
        if step.name == 'torch' and any(name in installed for name in OPENCVS):
            return number
        if step.name == 'project' and 'flatten-mm' not in installed:
            return number
    return len(steps)


def set_up(env: Environment, steps: Sequence[Step], show: Callable[[str], Progress]) -> bool:
    """Does what is left to do.

    Args:
        show: makes the progress display for a prefix such as `[3/8] `.

    Returns:
        Whether anything was to do.

    Raises:
        SetupError: a step failed; what was done before it stays.
    """
    first = pending(env, steps)
    if first == len(steps):
        return False
    if 'torch' not in env.installed():
        check_disk(env.venv if env.venv.is_dir() else env.venv.parent)
    for step in steps[first:]:  # an interruption leaves no stamp that no longer holds
        _stamp(env, step).unlink(missing_ok=True)
    for number, step in enumerate(steps[first:], start=first + 1):
        progress = show(f'[{number}/{len(steps)}] ')
        progress.say(step.title)
        _do(env, step, progress)
        stamp = _stamp(env, step)
        stamp.with_suffix('.new').write_text(keys(env, steps)[number - 1])
        os.replace(stamp.with_suffix('.new'), stamp)
    return True


def _do(env: Environment, step: Step, progress: Progress) -> None:
    env.state.mkdir(parents=True, exist_ok=True)
    env.clear_half_installed()
    shutil.rmtree(env.tmp, ignore_errors=True)
    env.tmp.mkdir()
    runner = Runner(env, step, progress)
    runner.log.unlink(missing_ok=True)
    step.act(runner)
    shutil.rmtree(env.tmp, ignore_errors=True)


def _stamp(env: Environment, step: Step) -> Path:
    return env.state / f'{step.name}.stamp'
