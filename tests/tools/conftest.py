"""Each scope trained once for two steps; the tests of the tools start from there."""
from __future__ import annotations

import importlib.util
import logging
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from mmengine.logging import MMLogger
from tiny import write_config, write_data

TOOLS = Path(__file__).resolve().parents[2] / 'tools'


def load_tool(name: str):
    """``main`` of tools/NAME.py."""
    spec = importlib.util.spec_from_file_location(f'tool_{name}', TOOLS / f'{name}.py')
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.main


@dataclass
class Outcome:
    """Exit status and what was printed; ``error`` is the sentence after ``error:``."""

    code: int
    out: str
    err: str

    @property
    def error(self) -> str:
        lines = [line for line in self.err.splitlines() if line.startswith('error: ')]
        assert len(lines) == 1, self.err
        assert 'Traceback' not in self.err + self.out
        return lines[0]


@pytest.fixture
def run(capfd, tmp_path, monkeypatch):
    """Run a tool in an empty folder, in this process."""
    monkeypatch.chdir(tmp_path)

    def run_tool(name, *argv):
        capfd.readouterr()
        for logger in MMLogger._instance_dict.values():  # made under another test's stdout
            for handler in logger.handlers:
                if type(handler) is logging.StreamHandler:
                    handler.stream = sys.stdout
        code = load_tool(name)([str(item) for item in argv])
        return Outcome(code, *capfd.readouterr())
    return run_tool


@dataclass
class Trained:
    """A trained scope: its config, data and work folder."""

    config: Path
    data: Path
    work_dir: Path

    @property
    def checkpoint(self) -> Path:
        return self.work_dir / 'iter_2.pth'


@pytest.fixture(scope='session')
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp('tiny') / 'data'
    write_data(folder)
    return folder


@pytest.fixture(scope='session')
def trained(data, tmp_path_factory):
    """Function of a scope that gives its :class:`Trained`."""
    done = {}

    def get(scope):
        if scope not in done:
            folder = tmp_path_factory.mktemp(scope)
            config = write_config(scope, folder, data)
            assert load_tool('train')([str(config), '--work-dir', str(folder / 'work')]) == 0
            done[scope] = Trained(config, data, folder / 'work')
        return done[scope]
    return get
