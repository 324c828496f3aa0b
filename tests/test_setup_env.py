"""tools/setup_env: what is done, what is left, what a failure says, what an interruption leaves."""

from __future__ import annotations

import io
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPO / 'tools'))

from setup_env import __main__ as command_line  # noqa: E402
from setup_env import machine, plan, steps  # noqa: E402
from setup_env.environment import Environment  # noqa: E402
from setup_env.failures import RULES, SetupError, explain  # noqa: E402
from setup_env.runner import CommandFailed, Progress, run  # noqa: E402

# --- what a failure says ------------------------------------------------------------------------

# (end of a log, words of the sentence). Every rule has at least one.
LOGS = [
    ("ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device",
     'disk is full'),
    ('The virtual environment was not created successfully because ensurepip is not\navailable.',
     'apt-get install python3-venv'),
    ('/usr/bin/python3: No module named venv', 'apt-get install python3-venv'),
    ('c++: fatal error: Killed signal terminated program cc1plus\ncompilation terminated.',
     'MAX_JOBS=1'),
    ('virtual memory exhausted: Cannot allocate memory', 'MAX_JOBS=1'),
    ('/bin/sh: 1: c++: not found\nninja: build stopped: subcommand failed.', 'apt-get install g++'),
    ("error: command 'x86_64-linux-gnu-gcc' failed: No such file or directory",
     'apt-get install g++'),
    ("gcc: fatal error: cannot execute 'cc1plus': execvp: No such file or directory",
     'its C++ half is not'),
    ('a.cpp:1:10: fatal error: Python.h: No such file or directory', 'apt-get install python3-dev'),
    ('a.cpp:2:10: fatal error: vector: No such file or directory', 'libc6-dev'),
    ('c10.h:40:2: error: #error "You\'re trying to build PyTorch with a too old version of GCC. '
     'We need GCC 9 or later."', 'too old'),
    ('OSError: CUDA_HOME environment variable is not set. Please set it to your CUDA install root.',
     'no CUDA toolkit'),
    ('RuntimeError:\nThe detected CUDA version (11.8) mismatches the version that was used to '
     'compile\nPyTorch (12.8).', 'another version'),
    ("ERROR: Could not install packages due to an OSError: [Errno 13] Permission denied: '/root'",
     'could not be written'),
    ('ERROR: Could not find a version that satisfies the requirement torch==2.9.1 (from versions: '
     'none)\nERROR: No matching distribution found for torch==2.9.1', 'could not be reached'),
    ("ERROR: Could not install packages due to an OSError: HTTPSConnectionPool(host='x', port=443):"
     ' Max retries exceeded with url: /simple', 'could not be reached'),
    ("pip._vendor.urllib3.exceptions.ReadTimeoutError: HTTPSConnectionPool(host='x', port=443): "
     'Read timed out.', 'could not be reached'),
    ('ERROR: Could not find a version that satisfies the requirement torch==2.9.1 (from versions: '
     '2.10.0)\nERROR: No matching distribution found for torch==2.9.1',
     'no torch==2.9.1 for this Python'),
]  # fmt: skip


@pytest.mark.parametrize(('log', 'words'), LOGS)
def test_failure_says_what_is_missing(log: str, words: str) -> None:
    sentence = explain(f'Collecting mmcv\n{log}\n', 1)
    assert words in sentence
    assert len(sentence) < 300 and '\n' not in sentence


def test_every_rule_has_a_sample() -> None:
    used = {
        next(pattern for pattern, _ in RULES if re.search(pattern, log, re.MULTILINE))
        for log, _ in LOGS
    }
    assert used == {pattern for pattern, _ in RULES}


def test_retries_that_worked_are_not_the_reason() -> None:
    log = (
        "WARNING: Retrying (Retry(total=4)) after connection broken by 'NewConnectionError': /x\n"
        '/bin/sh: 1: c++: not found\n'
    )
    assert 'C++ compiler' in explain(log, 1)


def test_unknown_failure_shows_one_line_of_limited_length() -> None:
    log = 'note: candidate\n' * 500 + 'x.cpp:1: error: ' + 'std::vector<' * 100 + '\nninja: stopped'
    sentence = explain(log, 1)
    assert sentence.startswith('x.cpp:1: error: ') and len(sentence) <= 200


def test_killed_without_a_word_is_taken_for_memory() -> None:
    assert 'MAX_JOBS=1' in explain('Building wheel for mmcv\n', -signal.SIGKILL)


# --- what the machine offers --------------------------------------------------------------------


def test_jobs_are_bounded_by_cores_and_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv('MAX_JOBS', raising=False)
    assert machine.build_jobs(cores=8, memory=64 * machine.GIB) == 8
    assert machine.build_jobs(cores=8, memory=5 * machine.GIB) == 2
    assert machine.build_jobs(cores=8, memory=machine.GIB) == 1
    monkeypatch.setenv('MAX_JOBS', '3')
    assert machine.build_jobs(cores=8, memory=machine.GIB) == 3
    monkeypatch.setenv('MAX_JOBS', 'many')
    with pytest.raises(SetupError, match="MAX_JOBS is 'many'"):
        machine.build_jobs()


def test_too_small_a_disk_is_an_error(tmp_path: Path) -> None:
    machine.check_disk(tmp_path, needed=1)
    with pytest.raises(SetupError, match=r'needs about 1048576 GiB .* GiB are free'):
        machine.check_disk(tmp_path, needed=1 << 50)


def test_missing_compiler_and_headers_are_found_before_the_build(
    env: Environment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv('CXX', str(tmp_path / 'no-such-compiler'))
    with pytest.raises(SetupError, match=r'apt-get install g\+\+'):
        machine.check_compiler(env)
    if shutil.which('c++') is None:
        pytest.skip('no c++ here to take the Python headers from')
    monkeypatch.delenv('CXX')
    machine.check_compiler(env)
    without_headers = _script(
        tmp_path / 'cxx',
        'for a; do shift; case "$a" in -I*) ;; *) set -- "$@" "$a";; esac; done; exec c++ "$@"',
    )
    monkeypatch.setenv('CXX', str(without_headers))
    with pytest.raises(SetupError, match='apt-get install python3-dev'):
        machine.check_compiler(env)


# --- what is done and what is left --------------------------------------------------------------


class Recorder:
    """Steps that note that they ran, in place of pip."""

    def __init__(self) -> None:
        self.ran: list[str] = []
        self.interrupt_at: str | None = None
        self.steps = [
            steps.Step(name, name, self._act, files)
            for name, files in (('venv', ()), ('one', ('one',)), ('two', ('two',)), ('three', ()))
        ]

    def _act(self, runner: steps.Runner) -> None:
        self.ran.append(runner.step.name)
        if runner.step.name == self.interrupt_at:
            raise KeyboardInterrupt
        for name in runner.step.files:
            for package, version in runner.env.pins(name).items():
                _distribution(runner.env, package, version)

    def set_up(self, env: Environment) -> list[str]:
        """Sets up, returns the names of the steps that ran."""
        self.ran = []
        plan.set_up(env, self.steps, lambda prefix: Progress(prefix, io.StringIO()))
        return self.ran


@pytest.fixture
def env(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Environment:
    """A repository with two requirement files, and a venv without packages."""
    monkeypatch.setattr(plan, 'check_disk', lambda folder: None)
    root = tmp_path / 'repo'
    (root / 'requirements').mkdir(parents=True)
    (root / 'requirements' / 'one.txt').write_text('# first\nSome_Package==1.0\n')
    (root / 'requirements' / 'two.txt').write_text('other==2.0\n')
    (root / 'requirements' / 'constraints.txt').write_text('')
    env = Environment(root, root / '.venv')
    _fake_venv(env)
    return env


def _fake_venv(env: Environment) -> None:
    version = '.'.join(map(str, sys.version_info[:2]))
    env.state.mkdir(parents=True)
    (env.venv / 'bin').mkdir()
    env.python.symlink_to(sys.executable)
    (env.venv / 'pyvenv.cfg').write_text(f'home = /usr/bin\nversion = {version}.1\n')
    env.site_packages().mkdir(parents=True)


def _distribution(env: Environment, package: str, version: str, complete: bool = True) -> Path:
    info = env.site_packages() / f'{package.replace("-", "_")}-{version}.dist-info'
    info.mkdir(exist_ok=True)
    (info / 'METADATA').write_text('')
    if complete:
        (info / 'RECORD').write_text('')
    return info


def _script(path: Path, body: str) -> Path:
    path.write_text(f'#!/bin/sh\n{body}\n')
    path.chmod(0o755)
    return path


def test_second_run_has_nothing_to_do(env: Environment) -> None:
    recorder = Recorder()
    assert recorder.set_up(env) == ['venv', 'one', 'two', 'three']
    assert recorder.set_up(env) == []


def test_interrupted_step_is_done_again_and_earlier_ones_are_not(env: Environment) -> None:
    recorder = Recorder()
    recorder.interrupt_at = 'two'
    with pytest.raises(KeyboardInterrupt):
        recorder.set_up(env)
    recorder.interrupt_at = None
    assert recorder.set_up(env) == ['two', 'three']


def test_changed_requirements_redo_their_step_and_the_later_ones(env: Environment) -> None:
    recorder = Recorder()
    recorder.set_up(env)
    env.requirements('two').write_text('other==2.1\n')
    assert recorder.set_up(env) == ['two', 'three']
    env.requirements('constraints').write_text('third==1\n')
    assert recorder.set_up(env) == ['one', 'two', 'three']


def test_interrupted_redo_does_not_trust_later_stamps(env: Environment) -> None:
    recorder = Recorder()
    recorder.set_up(env)
    before = env.requirements('one').read_text()
    env.requirements('one').write_text('some-package==1.1\n')
    recorder.interrupt_at = 'one'
    with pytest.raises(KeyboardInterrupt):
        recorder.set_up(env)
    env.requirements('one').write_text(before)  # the stamps of two and three would fit again
    recorder.interrupt_at = None
    assert recorder.set_up(env) == ['one', 'two', 'three']


@pytest.mark.parametrize('change', ['other version', 'gone', 'half'])
def test_package_that_is_not_as_pinned_is_noticed(env: Environment, change: str) -> None:
    recorder = Recorder()
    recorder.set_up(env)
    info = env.site_packages() / 'other-2.0.dist-info'
    if change == 'half':
        (info / 'RECORD').unlink()
    else:
        shutil.rmtree(info)
    if change == 'other version':
        _distribution(env, 'other', '2.2')
    assert recorder.set_up(env)[0] == 'two'


def test_environment_that_was_moved_is_made_anew(env: Environment) -> None:
    recorder = Recorder()
    recorder.set_up(env)
    moved = Environment(env.root, env.venv.with_name('.venv2'))
    env.venv.rename(moved.venv)
    assert recorder.set_up(moved)[0] == 'venv'


def test_environment_without_its_interpreter_is_made_anew(env: Environment) -> None:
    recorder = Recorder()
    recorder.set_up(env)
    env.python.unlink()
    env.python.symlink_to('/nonexistent/python3')
    assert plan.pending(env, recorder.steps) == 0


def test_half_installed_packages_are_cleared(env: Environment) -> None:
    whole = _distribution(env, 'whole', '1')
    half = _distribution(env, 'half', '1', complete=False)
    replaced = env.site_packages() / '~umpy'
    replaced.mkdir()
    assert env.installed() == {'whole': '1'}
    Recorder().set_up(env)
    assert whole.exists() and not half.exists() and not replaced.exists()


def test_installed_names_are_compared_as_pip_does(env: Environment) -> None:
    _distribution(env, 'Opencv_Python.Headless', '4.11+cpu')
    assert env.installed() == {'opencv-python-headless': '4.11'}


def test_opencv_with_display_libraries_is_replaced(env: Environment) -> None:
    """mmengine's metadata make pip bring opencv-python, which breaks the headless one."""
    recorder = Recorder()
    torch = steps.Step('torch', 'torch', recorder._act, ('torch',))
    env.requirements('torch').write_text('torch==1\nopencv-python-headless==4\n')
    recorder.steps[1] = torch
    recorder.set_up(env)
    assert recorder.set_up(env) == []
    _distribution(env, 'opencv-python', '5.0')
    assert recorder.set_up(env)[0] == 'torch'


# --- stacks -------------------------------------------------------------------------------------


@pytest.mark.parametrize('stack', steps.STACKS)
def test_stack_pins_each_package_once(stack: str) -> None:
    names = [name for step in steps.STACKS[stack] for name in step.files]
    packages = []
    for name in (*names, 'constraints'):
        lines = (REPO / 'requirements' / f'{name}.txt').read_text().splitlines()
        needs = [line for line in lines if line.strip() and not line.startswith('#')]
        assert all(re.fullmatch(r'[\w.-]+==[^\s;#]+', line) for line in needs), name
        packages += [line.partition('==')[0].lower() for line in needs]
    assert len(packages) == len(set(packages)) > 40
    assert {'torch', 'torchvision', 'numpy', 'opencv-python-headless'} <= set(packages)
    (mmcv,) = next(step.files for step in steps.STACKS[stack] if step.name == 'mmcv')
    assert len(Environment(REPO, REPO / '.venv').pins(mmcv)) == 1


def test_stacks_differ_in_what_they_are_for() -> None:
    def pins(stack: str) -> dict[str, str]:
        env = Environment(REPO, REPO / '.venv')
        return {package: pin for step in steps.STACKS[stack] for name in step.files
                for package, pin in env.pins(name).items()}

    official, onedl, oldest = (pins(stack) for stack in ('official', 'onedl', 'oldest'))
    mm = {'mmcv', 'mmengine', 'mmdet', 'mmsegmentation', 'mmpretrain'}
    assert mm <= set(official) and not mm & set(onedl)
    assert {package for package in oldest if oldest[package] != official[package]} == {
        'torch', 'torchvision', 'setuptools'}
    setup = (REPO / 'setup.py').read_text()  # what it promises is what was run
    for package in ('torch', 'torchvision'):
        assert f"'{package}>={'.'.join(oldest[package].split('.')[:2])}'" in setup


@pytest.mark.parametrize(('arguments', 'python'), [
    ([], '.venv/bin/python'), (['STACK=official'], '.venv/bin/python'),
    (['STACK=onedl'], '.venv-onedl/bin/python'),
    (['STACK=onedl', 'VENV=/v'], '/v/bin/python')])  # fmt: skip
def test_make_runs_each_stack_in_its_own_environment(arguments: list[str], python: str) -> None:
    lines = _make_n('demo', *arguments)
    assert lines[-1].split()[:2] == [python, 'tools/demo.py']
    stack = arguments[0].partition('=')[2] if arguments else 'official'
    assert f'--stack "{stack}"' in ' '.join(lines)
    if 'VENV=/v' not in arguments:
        assert command_line.default_venv(stack) == REPO / python.partition('/')[0]


def test_environment_of_another_stack_is_an_error(
    env: Environment, capsys: pytest.CaptureFixture[str]
) -> None:
    assert env.stack() is None
    (env.state / 'venv.stamp').touch()
    assert env.stack() == 'official'  # from before there was another one
    assert command_line.main(['--venv', str(env.venv), '--stack', 'onedl']) == 1
    assert 'holds the official stack, and STACK is onedl' in capsys.readouterr().err
    env.note_stack('oldest')
    assert env.stack() == 'oldest'
    assert command_line.main(['--venv', str(env.venv)]) == 1
    assert 'holds the oldest stack, and STACK is official' in capsys.readouterr().err


# --- making the venv ----------------------------------------------------------------------------


def _make_venv(env: Environment) -> str:
    output = io.StringIO()
    env.tmp.mkdir(parents=True, exist_ok=True)
    steps.make_venv(steps.Runner(env, steps.STACKS['official'][0], Progress('', output)))
    return output.getvalue()


def test_half_made_venv_is_made_anew(env: Environment) -> None:
    env.mark.touch()
    (env.venv / 'lib' / 'leftover').touch()
    env.python.unlink()
    assert 'half made' in _make_venv(env)
    assert env.works() and not (env.venv / 'lib' / 'leftover').exists()


def test_broken_venv_of_somebody_else_is_left_alone(env: Environment) -> None:
    env.python.unlink()
    kept = env.venv / 'lib' / 'precious'
    kept.touch()
    with pytest.raises(SetupError, match='the set-up did not make it'):
        _make_venv(env)
    assert kept.exists()


def test_working_venv_of_somebody_else_is_completed_not_wiped(env: Environment) -> None:
    kept = env.venv / 'lib' / 'precious'
    kept.touch()
    env.works = lambda: True
    for _ in range(2):  # the second time stands for a run after an interruption
        assert 'was there before' in _make_venv(env)
    assert kept.exists()


def test_venv_module_that_is_missing_is_one_sentence(
    env: Environment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.rmtree(env.venv)
    env.state.mkdir(parents=True)
    python = _script(tmp_path / 'python', 'echo "$0: No module named venv" >&2; exit 1')
    monkeypatch.setattr(steps.sys, 'executable', str(python))
    with pytest.raises(SetupError, match='apt-get install python3-venv') as caught:
        _make_venv(env)
    assert str(env.state / 'venv.log') in str(caught.value)


# --- building mmcv ------------------------------------------------------------------------------


class FakeMmcv:
    """A pip that notes its arguments; the operators load from the `loads_after`-th call on."""

    def __init__(self, env: Environment, monkeypatch: pytest.MonkeyPatch, loads_after: int,
                 stack: str = 'official') -> None:  # fmt: skip
        self.calls: list[tuple] = []
        env.requirements('mmcv').write_text('mmcv==2.1.0\n')
        monkeypatch.setattr(steps, 'check_compiler', lambda env: None)
        env.import_problem = lambda code: (
            None if len(self.calls) >= loads_after else 'ImportError: undefined symbol'
        )
        self.output = io.StringIO()
        self.step = next(step for step in steps.STACKS[stack] if step.name == 'mmcv')
        self.runner = steps.Runner(env, self.step, Progress('', self.output))
        self.runner.pip = lambda *arguments, **options: self.calls.append((arguments, options))


def test_kept_wheel_of_another_torch_is_built_again(
    env: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    env.has_cached_wheel = lambda requirement: requirement == 'mmcv==2.1.0'
    fake = FakeMmcv(env, monkeypatch, loads_after=2)
    steps.install_mmcv(fake.runner)
    first, second = fake.calls
    assert '--no-cache-dir' not in first[0]
    assert {'--no-cache-dir', '--force-reinstall'} <= set(second[0])
    assert second[1]['MMCV_WITH_OPS'] == '1'
    assert fake.output.getvalue().count('built for another torch') == 1


def test_kept_wheel_that_loads_is_not_built_again(
    env: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    env.has_cached_wheel = lambda requirement: True
    fake = FakeMmcv(env, monkeypatch, loads_after=1)
    steps.install_mmcv(fake.runner)
    assert len(fake.calls) == 1 and 'minutes' not in fake.output.getvalue()


def test_new_build_whose_operators_do_not_load_is_an_error(
    env: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    env.has_cached_wheel = lambda requirement: False
    fake = FakeMmcv(env, monkeypatch, loads_after=9)
    with pytest.raises(SetupError, match='undefined symbol'):
        steps.install_mmcv(fake.runner)
    assert len(fake.calls) == 1 and 'minutes' in fake.output.getvalue()


def test_kept_wheel_is_found_under_the_name_of_its_file(env: Environment) -> None:
    env.python.unlink()
    _script(env.python, '[ "$5" = onedl_mmcv ] && echo "/c/onedl_mmcv-2.3.6-cp$V-linux.whl"')
    here = ''.join(map(str, sys.version_info[:2]))
    env.variables = lambda: {'V': here, 'PATH': os.environ['PATH']}
    assert env.has_cached_wheel('onedl-mmcv==2.3.6')
    assert not env.has_cached_wheel('onedl-mmcv==2.3.7')
    env.variables = lambda: {'V': '39', 'PATH': os.environ['PATH']}
    assert not env.has_cached_wheel('onedl-mmcv==2.3.6')


def test_wheel_for_the_oldest_torch_is_not_kept(
    env: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pip would hand it to the environment that people work in."""
    env.has_cached_wheel = lambda requirement: True  # that of the other torch
    fake = FakeMmcv(env, monkeypatch, loads_after=1, stack='oldest')
    fake.step.act(fake.runner)
    ((arguments, _),) = fake.calls
    assert '--no-cache-dir' in arguments
    assert 'pip keeps' not in fake.output.getvalue()


def test_debug_information_is_not_compiled_unless_asked_for(
    env: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    env.has_cached_wheel = lambda requirement: False
    monkeypatch.delenv('CFLAGS', raising=False)
    fake = FakeMmcv(env, monkeypatch, loads_after=1)
    steps.install_mmcv(fake.runner)
    monkeypatch.setenv('CFLAGS', '-g -O1')
    steps.install_mmcv(fake.runner)
    assert [options['CFLAGS'] for _, options in fake.calls] == ['-g0', '-g0 -g -O1']


def test_build_progress_counts_compiled_files() -> None:
    log = '  [1/80] c++ -MMD a.cpp\n  a.cpp:1: warning [2/3]\n  [20/80] c++ -MMD b.cpp\n  warning\n'
    text = steps.describe_build(log, 100)
    assert text == 'mmcv: 20 of 80 files compiled in 1 min 40 s, about 5 min 00 s to go'
    assert steps.describe_build('Collecting mmcv\n', 5) == 'mmcv: 5 s'


# --- running commands ---------------------------------------------------------------------------


def _run(command: list[str], tmp_path: Path, describe=lambda log, seconds: '') -> None:
    log = tmp_path / 'log'
    progress = Progress('', io.StringIO())
    run(command, log=log, env=os.environ, cwd=tmp_path, progress=progress, describe=describe,
        poll=0.05)  # fmt: skip


def _ends(pid: int, within: float = 5.0) -> bool:
    limit = time.monotonic() + within
    while time.monotonic() < limit:
        stat = Path(f'/proc/{pid}/stat')
        if not stat.exists() or stat.read_text().rpartition(')')[2].split()[0] == 'Z':
            return True
        time.sleep(0.05)
    return False


def test_output_goes_to_the_log_and_the_status_is_checked(tmp_path: Path) -> None:
    with pytest.raises(CommandFailed) as caught:
        _run(['sh', '-c', 'echo out; echo err >&2; exit 3'], tmp_path)
    assert caught.value.returncode == 3
    assert caught.value.log.read_text().splitlines()[1:] == ['out', 'err']


def test_interruption_ends_the_command_and_what_it_started(tmp_path: Path) -> None:
    pid_file = tmp_path / 'pid'

    def interrupt(log: str, seconds: float) -> str:
        if pid_file.exists() and pid_file.read_text():
            raise KeyboardInterrupt
        return ''

    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        _run(['sh', '-c', f'sleep 60 & echo $! > {pid_file}; wait'], tmp_path, interrupt)
    assert _ends(int(pid_file.read_text()))
    assert time.monotonic() - start < 30  # not by itself


def test_command_ends_when_the_set_up_is_killed(tmp_path: Path) -> None:
    pid_file = tmp_path / 'pid'
    code = f"""
import sys; sys.path.insert(0, {str(REPO / 'tools')!r})
from pathlib import Path
from setup_env.runner import Progress, run
run(['sh', '-c', 'echo $$ > {pid_file}; exec sleep 60'], log=Path({str(tmp_path / 'log')!r}),
    env={{'PATH': '/usr/bin:/bin'}}, cwd=Path('/'), progress=Progress(''),
    describe=lambda log, seconds: '')
"""
    parent = subprocess.Popen([sys.executable, '-c', code])
    limit = time.monotonic() + 20
    while not (pid_file.exists() and pid_file.read_text()) and time.monotonic() < limit:
        time.sleep(0.05)
    parent.kill()
    parent.wait()
    assert _ends(int(pid_file.read_text()))


def test_progress_repeats_now_and_then_where_there_is_no_terminal() -> None:
    output = io.StringIO()
    progress = Progress('[1/8] ', output, interval=1000)
    progress.update('unseen')
    progress.interval = 0
    progress.update('seen')
    progress.say('done')
    assert output.getvalue() == '[1/8] seen\n[1/8] done\n'


def test_progress_stays_in_its_line_on_a_terminal() -> None:
    output = io.StringIO()
    output.isatty = lambda: True
    progress = Progress('', output)
    progress.update('1 of 2')
    progress.update('2 of 2')
    progress.say('done')
    assert output.getvalue() == '\r\x1b[K1 of 2\r\x1b[K2 of 2\r\x1b[Kdone\n'


def test_two_set_ups_do_not_run_at_once(tmp_path: Path) -> None:
    code = f"""
import sys, time; sys.path.insert(0, {str(REPO / 'tools')!r})
from pathlib import Path
from setup_env.__main__ import lock
held = lock(Path({str(tmp_path / 'lock')!r}))
print('locked', time.monotonic(), flush=True)
time.sleep(float(sys.argv[1]))
print('leaving', time.monotonic(), flush=True)
"""
    first = subprocess.Popen([sys.executable, '-c', code, '1'], stdout=subprocess.PIPE, text=True)
    locked = first.stdout.readline()
    second = subprocess.run([sys.executable, '-c', code, '0'], capture_output=True, text=True)
    rest = first.communicate()[0]
    assert locked.startswith('locked')
    waiting, entered = second.stdout.splitlines()[:2]
    assert waiting == f'another set-up (process {first.pid}) is running: waiting'
    assert float(entered.split()[1]) >= float(rest.split()[1])


# --- command line, Makefile, .ci/run ------------------------------------------------------------


@pytest.mark.parametrize(
    ('arguments', 'words'),
    [
        (['--stack', 'nope'], "STACK is 'nope'; expected 'official'"),
        (['--venv', __file__], 'is a file'),
    ],
)
def test_bad_arguments_are_one_sentence(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command_line.main(arguments) == 1
    error = capsys.readouterr().err.strip()
    assert words in error and '\n' not in error


def test_other_python_than_that_of_the_venv_is_an_error(
    env: Environment, capsys: pytest.CaptureFixture[str]
) -> None:
    (env.venv / 'pyvenv.cfg').write_text('version = 3.9.1\n')
    assert command_line.main(['--venv', str(env.venv), '--this-python']) == 1
    assert 'was made with Python 3.9' in capsys.readouterr().err


def _make_n(*arguments: str) -> list[str]:
    """What make would run."""
    # Not as a make within the make that may run this test, which would speak of directories and
    # hand on its own variables (those of its command line are in the environment, too).
    env = {key: value for key, value in os.environ.items()
           if not key.startswith(('MAKE', 'MFLAGS')) and key not in ('STACK', 'VENV')}
    result = subprocess.run(
        ['make', '-n', *arguments], cwd=REPO, capture_output=True, text=True, check=True, env=env
    )
    return result.stdout.splitlines()


def _find_python(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    script = REPO / 'tools' / 'setup_env' / 'find_python.sh'
    return subprocess.run(
        ['/bin/sh', script, *arguments], env={'PATH': str(folder)}, capture_output=True, text=True
    )


def test_python_is_chosen_by_version(tmp_path: Path) -> None:
    _script(tmp_path / 'python3', 'echo 3.12')
    assert _find_python(tmp_path).stdout == 'python3\n'
    _script(tmp_path / 'python3.11', 'exit 127')  # a shim of a version that is not there
    assert _find_python(tmp_path).stdout == 'python3\n'
    _script(tmp_path / 'python3.11', 'echo 3.11')
    assert _find_python(tmp_path).stdout == 'python3.11\n'
    mine = _script(tmp_path / 'mine', 'echo 3.10')
    assert _find_python(tmp_path, str(mine)).stdout == f'{mine}\n'


@pytest.mark.parametrize(
    ('version', 'words'), [('3.8', 'python3 is 3.8'), (None, 'none was found')]
)
def test_unsupported_python_is_named(tmp_path: Path, version: str | None, words: str) -> None:
    if version:
        _script(tmp_path / 'python3', f'echo {version}')
    result = _find_python(tmp_path)
    assert result.returncode == 1 and result.stdout == ''
    assert words in result.stderr and '3.10, 3.11 or 3.12 is needed' in result.stderr


def test_make_test_hands_its_arguments_to_pytest() -> None:
    lines = _make_n('test', 'ARGS=-k swin', 'VENV=/v')
    assert lines[-1] == '/v/bin/python -m pytest --durations=15 -k swin'


def test_make_clean_leaves_what_the_user_made(tmp_path: Path) -> None:
    shutil.copy(REPO / 'Makefile', tmp_path)
    kept = ['.venv/x/__pycache__/a', 'work_dirs/run/build/a.pth', 'data/x', 'outputs/x']
    removed = ['build/a', 'a.egg-info/a', 'flatten_mm/sub/__pycache__/a']
    for name in (*kept, *removed, 'tools/a', 'tests/a', 'configs/a'):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    subprocess.run(['make', 'clean'], cwd=tmp_path, capture_output=True, check=True)
    assert all((tmp_path / name).exists() for name in kept)
    assert not any((tmp_path / name).exists() for name in removed)


def test_ci_run_calls_make_test_and_passes_its_status(tmp_path: Path) -> None:
    _script(tmp_path / 'make', 'echo "make $*"; pwd; exit 7')
    variables = {**os.environ, 'PATH': f'{tmp_path}:{os.environ["PATH"]}'}
    result = subprocess.run(
        ['bash', REPO / '.ci' / 'run'], cwd='/', env=variables, capture_output=True, text=True
    )
    assert result.returncode == 7
    assert result.stdout.splitlines() == ['make test', str(REPO)]
