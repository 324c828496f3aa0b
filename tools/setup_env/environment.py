"""The virtual environment, and what is installed in it."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
from pathlib import Path

# Distributions that put other files into the folder `cv2/` of opencv-python-headless.
OPENCVS = ('opencv-python', 'opencv-contrib-python', 'opencv-contrib-python-headless')


class Environment:
    """The virtual environment and the folder of the set-up's own files in it.

    Args:
        root: the repository.
        venv: the virtual environment; need not exist.
    """

    def __init__(self, root: Path, venv: Path) -> None:
        self.root = root
        self.venv = venv
        self.python = venv / 'bin' / 'python'
        self.state = venv / '.setup'
        # Made before anything else: a venv that has it is the set-up's own to make anew.
        self.mark = self.state / 'made_by_setup'
        self.tmp = self.state / 'tmp'
        self._stack = self.state / 'stack'

    def works(self) -> bool:
        """Whether its Python (3.10 to 3.12) and its pip start."""
        code = 'import sys, pip; raise SystemExit(not (3, 10) <= sys.version_info < (3, 13))'
        try:
            return subprocess.run([self.python, '-c', code], capture_output=True).returncode == 0
        except OSError:
            return False

    def is_foreign(self) -> bool:
        """Whether somebody else made it."""
        if self.mark.exists() or not self.venv.exists():
            return False
        return not self.venv.is_dir() or any(path != self.state for path in self.venv.iterdir())

    def python_version(self) -> str | None:
        """`3.11`, or None where there is no venv; starts no process."""
        with contextlib.suppress(OSError):
            match = re.search(
                r'(?m)^version(?:_info)? *= *(\d+\.\d+)', (self.venv / 'pyvenv.cfg').read_text()
            )
            if match and os.access(self.python, os.X_OK):
                return match.group(1)
        return None

    def stack(self) -> str | None:
        """The stack it was set up for, None where it was not."""
        with contextlib.suppress(OSError):
            return self._stack.read_text().strip()
        # set up before there was another one
        return 'official' if (self.state / 'venv.stamp').exists() else None

    def note_stack(self, stack: str) -> None:
        """Writes down the stack it is set up for."""
        if not self._stack.exists():
            self.state.mkdir(parents=True, exist_ok=True)
            self._stack.write_text(f'{stack}\n')

    def site_packages(self) -> Path:
        return self.venv / 'lib' / f'python{self.python_version()}' / 'site-packages'

    def installed(self) -> dict[str, str]:
        """Name -> version of every distribution that is completely installed.

        pip writes RECORD last, so metadata without it are those of an interrupted installation.
        """
        found = {}
        for info in self.site_packages().glob('*.dist-info'):
            name, _, version = info.name.removesuffix('.dist-info').rpartition('-')
            if (info / 'RECORD').exists():
                found[_normalised(name)] = version.split('+')[0]
        return found

    def clear_half_installed(self) -> None:
        """Removes what an interrupted pip left, so that pip does not take it for installed."""
        for path in self.site_packages().glob('*.dist-info'):
            if not (path / 'RECORD').exists():
                shutil.rmtree(path)
        for path in self.site_packages().glob('~*'):  # pip's names for what it is replacing
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    def python_run(self, code: str) -> subprocess.CompletedProcess[str]:
        """Runs `code` outside the repository, so that what is imported is what is installed."""
        return subprocess.run(
            [self.python, '-c', code],
            env=self.variables(),
            cwd=self.state,
            capture_output=True,
            text=True,
        )

    def import_problem(self, code: str) -> str | None:
        """None if `code` runs, else the last line of its error."""
        result = self.python_run(code)
        if result.returncode == 0:
            return None
        lines = [line for line in result.stderr.splitlines() if line.strip()]
        return lines[-1] if lines else f'Python ended with status {result.returncode}'

    def has_cached_wheel(self, requirement: str) -> bool:
        """Whether pip keeps a wheel of `name==version` that it built for this Python."""
        name, version = requirement.split('==')
        file_name = name.replace('-', '_')
        result = subprocess.run(
            [self.python, '-m', 'pip', 'cache', 'list', file_name, '--format', 'abspath'],
            env=self.variables(),
            capture_output=True,
            text=True,
        )
        start = f'{file_name}-{version}-cp{(self.python_version() or "").replace(".", "")}-'
        return any(Path(line).name.startswith(start) for line in result.stdout.splitlines())

    def variables(self) -> dict[str, str]:
        """The environment variables for pip and for what pip starts."""
        variables = {
            name: value
            for name, value in os.environ.items()
            if name not in ('PYTHONPATH', 'PYTHONHOME', 'PIP_TARGET', 'PIP_PREFIX', 'PIP_ROOT')
        }
        variables.update(
            PATH=f'{self.venv / "bin"}{os.pathsep}{os.environ.get("PATH", os.defpath)}',
            VIRTUAL_ENV=str(self.venv),
            TMPDIR=str(self.tmp),  # on the venv's disk, and cleaned up after an interrupted build
            PIP_USER='0',
            LC_ALL='C',  # messages as failures.py knows them
        )
        return variables

    def requirements(self, name: str) -> Path:
        """The requirement file of that name, for example `onedl/torch`."""
        return self.root / 'requirements' / f'{name}.txt'

    def pins(self, name: str) -> dict[str, str]:
        """Package -> version of each `package==version` line of a requirement file."""
        return {
            _normalised(package): version
            for package, version in re.findall(
                r'(?m)^([\w.-]+)==([^\s;#]+)', self.requirements(name).read_text()
            )
        }


def _normalised(name: str) -> str:
    return re.sub(r'[-_.]+', '-', name).lower()
