"""What the set-up does, step by step."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from .environment import OPENCVS, Environment
from .failures import SetupError, explain
from .machine import build_jobs, check_compiler
from .runner import CommandFailed, Progress, duration, run

_CHECK = """
import warnings
warnings.simplefilter('ignore')
import mmcv.ops, mmdet, mmengine, mmpretrain, mmseg, torch
import flatten_mm
boxes = torch.tensor([[0., 0., 2., 2.], [0., 0., 2., 1.9]])
kept = mmcv.ops.nms(boxes, torch.tensor([.5, .9]), 0.5)[1].tolist()
if kept != [1]:
    raise RuntimeError(f'mmcv.ops.nms kept boxes {kept}, expected [1]')
"""
_CPU_ONLY = """
import mmcv.ops, torch
if torch.cuda.is_available() and mmcv.ops.get_compiling_cuda_version() == 'not available':
    raise RuntimeError
"""


@dataclass(frozen=True)
class Step:
    """One thing to do.

    Attributes:
        name: of its stamp and its log.
        title: what the user reads.
        act: does it. It can be interrupted and run again, so it copes with its own half.
        files: the requirement files it installs, without `.txt`.
        extra: a further text that decides whether it has to be done again.
    """

    name: str
    title: str
    act: Callable[[Runner], None]
    files: tuple[str, ...] = ()
    extra: Callable[[Path], str] = lambda root: ''


class Runner:
    """Does one step: starts its commands, shows its progress, explains its failure."""

    def __init__(self, env: Environment, step: Step, progress: Progress) -> None:
        self.env = env
        self.step = step
        self.progress = progress
        self.log = env.state / f'{step.name}.log'

    def command(
        self,
        command: Sequence[str | Path],
        describe: Callable[[str, float], str] | None = None,
        **variables: str,
    ) -> None:
        """Runs a command with further environment variables.

        Raises:
            SetupError: it failed.
        """
        try:
            run(
                [str(part) for part in command],
                log=self.log,
                env={**self.env.variables(), **variables},
                cwd=self.env.root,
                progress=self.progress,
                describe=describe or (lambda _, seconds: f'{self.step.title}: {duration(seconds)}'),
            )
        except CommandFailed as error:
            reason = explain(self.log.read_text(errors='replace'), error.returncode)
            raise SetupError(f'{reason}\nThe whole output: {self.log}') from None

    def pip(self, *arguments: str | Path, **options) -> None:
        """Runs `pip install` on the step's requirement files, with the pins of constraints.txt."""
        pip = [self.env.python, '-m', 'pip', 'install', '--no-input', '--progress-bar', 'off']
        for name in self.step.files:
            pip += ['--requirement', self.env.requirements(name)]
        pip += ['--constraint', self.env.requirements('constraints')]
        self.command([*pip, *arguments], **options)


def make_venv(runner: Runner) -> None:
    """Makes the venv anew, unless there is a working one that somebody else made."""
    env, say = runner.env, runner.progress.say
    if env.is_foreign():
        if not env.works():
            raise SetupError(
                f'{env.venv} exists, but it is not a working virtual environment of Python 3.10 '
                'to 3.12, and the set-up did not make it: move it away or remove it first.'
            )
        say(f'{env.venv} was there before: completing it')
        return
    env.mark.touch()
    rest = [path for path in env.venv.iterdir() if path != env.state]
    if rest:
        say('what is there is half made or was moved: making it anew')
    for path in rest:
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    runner.command([sys.executable, '-m', 'venv', env.venv])


def install(runner: Runner) -> None:
    runner.pip()


def install_torch(runner: Runner) -> None:
    env = runner.env
    others = [name for name in OPENCVS if name in env.installed()]
    if others:
        runner.progress.say(f'replacing {", ".join(others)} by opencv-python-headless')
        names = [*others, 'opencv-python-headless']
        runner.command([env.python, '-m', 'pip', 'uninstall', '--yes', *names])
    runner.pip()


def install_without_needs(runner: Runner) -> None:
    # the fork's packages are source distributions: build them with the pinned tools
    runner.pip('--no-deps', '--no-build-isolation')


def install_mmcv(runner: Runner, keep: bool = True) -> None:
    """Installs mmcv: the wheel pip kept from an earlier build, or a build of many minutes.

    Args:
        keep: let pip keep the wheel; it has one place for all versions of torch.
    """
    env, say = runner.env, runner.progress.say
    jobs = str(build_jobs())
    options = {
        'describe': describe_build,
        'MMCV_WITH_OPS': '1',
        'MAX_JOBS': jobs,
        # Many a Python asks for debug information (-g), with which compiling takes twice as long.
        'CFLAGS': f'-g0 {os.environ.get("CFLAGS", "")}'.strip(),
    }
    arguments = ['-v', '--no-deps', '--no-build-isolation']
    building = (
        f'mmcv: compiling its C++ operators, {jobs} at a time; about 10 minutes of processor time'
    )
    ((name, version),) = env.pins(*runner.step.files).items()
    installed = name in env.installed()
    kept = keep and not installed and env.has_cached_wheel(f'{name}=={version}')
    if kept:
        say('mmcv: taking the wheel that pip kept from an earlier build')
    elif not installed:
        check_compiler(env)
        say(f'{building}, once' + (' (pip keeps the result)' if keep else ''))
        if not keep:
            arguments.append('--no-cache-dir')
    runner.pip(*arguments, **options)
    problem = env.import_problem('import torch, mmcv._ext')
    if problem and (installed or kept):
        say('that mmcv was built for another torch (its operators do not load): building it again')
        check_compiler(env)
        say(building)
        arguments += ['--no-cache-dir', '--force-reinstall', '--no-binary', name]
        runner.pip(*arguments, **options)
        problem = env.import_problem('import torch, mmcv._ext')
    if problem:
        raise SetupError(f'mmcv is built, but its operators do not load: {problem}')


def describe_build(log: str, seconds: float) -> str:
    """The progress line of a build: ninja writes `[12/85]` before each finished file."""
    counts = re.findall(r'(?m)^\s*\[(\d+)/(\d+)\]', log)
    if not counts:
        return f'mmcv: {duration(seconds)}'
    done, total = (int(number) for number in counts[-1])
    text = f'mmcv: {done} of {total} files compiled in {duration(seconds)}'
    if 3 <= done < total:
        text += f', about {duration(seconds / done * (total - done))} to go'
    return text


def install_project(runner: Runner) -> None:
    runner.pip('--no-deps', '--no-build-isolation', '--editable', runner.env.root)


def check(runner: Runner) -> None:
    problem = runner.env.import_problem(_CHECK)
    if problem:
        raise SetupError(f'all is installed, but does not work together: {problem}')
    if runner.env.import_problem(_CPU_ONLY):
        runner.progress.say(
            'note: the operators of mmcv were compiled for the CPU only, so detectors will not run '
            'on the GPU of this machine. Install the CUDA toolkit, `pip cache remove mmcv`, remove '
            f'{runner.env.venv} and set up again.'
        )


def _metadata(root: Path) -> str:
    """What ends up in the installed metadata of flatten_mm."""
    version = ''
    with contextlib.suppress(OSError):
        source = (root / 'flatten_mm' / '__init__.py').read_text()
        version = ''.join(re.findall(r'(?m)^__version__.*$', source))
    return (root / 'setup.py').read_text() + version


def _stack(
    build: str = 'build',
    torch: str = 'torch',
    libraries: tuple[str, ...] = ('runtime', 'dev'),
    openmmlab: str = 'openmmlab',
    mmcv: str = 'mmcv',
    keep_mmcv: bool = True,
) -> tuple[Step, ...]:
    """The steps of a stack, from the names of its requirement files."""
    build_mmcv = partial(install_mmcv, keep=keep_mmcv)
    return (
        Step('venv', 'making the virtual environment', make_venv),
        Step('build', 'build tools', install, (build,)),
        Step('torch', 'torch, numpy, opencv (up to 3 GiB to fetch)', install_torch, (torch,)),
        Step('libraries', 'libraries and test tools', install, libraries),
        Step(
            'openmmlab', 'mmengine, mmdet, mmseg, mmpretrain', install_without_needs, (openmmlab,)
        ),
        Step('mmcv', 'mmcv', build_mmcv, (mmcv,)),
        Step('project', 'flatten_mm (editable)', install_project, extra=_metadata),
        Step('check', 'importing everything once', check),
    )


# STACK chooses one.
STACKS: dict[str, tuple[Step, ...]] = {
    'official': _stack(),
    # The maintained fork.
    'onedl': _stack(
        torch='onedl/torch',
        libraries=('runtime', 'onedl/runtime', 'dev'),
        openmmlab='onedl/openmmlab',
        mmcv='onedl/mmcv',
    ),
    # The official packages with the oldest torch. pip would take its mmcv for that of `official`.
    'oldest': _stack(build='oldest/build', torch='oldest/torch', keep_mmcv=False),
}
