"""setup.py: what the wheel holds and what it asks for."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path

import pytest

import flatten_mm

REPO = Path(__file__).resolve().parent.parent
# Distribution names of the two mm stacks and what they stand on: installing us moves none of it.
HEAVY = re.compile(
    r'^(onedl[-_])?(torch|torchvision|numpy|opencv.*|mmengine|mmcv|mmcv-lite|mmdet|mmdetection|'
    r'mmsegmentation|mmpretrain)\b',
    re.IGNORECASE,
)


@pytest.fixture(scope='module')
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what the build reads: building writes beside the sources."""
    copy = tmp_path_factory.mktemp('tree')
    for name in ('flatten_mm', 'configs', 'tools', 'requirements'):
        shutil.copytree(REPO / name, copy / name, ignore=shutil.ignore_patterns('__pycache__'))
    for name in ('setup.py', 'pyproject.toml', 'MANIFEST.in', 'LICENSE', 'README.md', 'Makefile'):
        if (REPO / name).exists():
            shutil.copy(REPO / name, copy)
    return copy


@pytest.fixture(scope='module')
def wheel(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp('wheel')
    command = [sys.executable, '-m', 'pip', 'wheel', '--no-deps', '--no-build-isolation',
               '--no-index', '-w', str(folder), str(tree)]  # fmt: skip
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    (path,) = folder.glob('*.whl')
    return path


@pytest.fixture(scope='module')
def names(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


@pytest.fixture(scope='module')
def metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith('.dist-info/METADATA'))
        return Parser().parsestr(archive.read(name).decode())


def _files(folder: Path, *suffixes: str) -> set[str]:
    paths = folder.rglob('*')
    return {path.relative_to(folder.parent).as_posix() for path in paths if path.suffix in suffixes}


def test_wheel_holds_the_whole_package_and_nothing_beside_it(names: set[str], tree: Path) -> None:
    assert _files(tree / 'flatten_mm', '.py') <= names
    tops = {name.split('/')[0] for name in names}
    assert tops == {'flatten_mm', f'flatten_mm-{flatten_mm.__version__}.dist-info'}
    assert any(name.endswith('LICENSE') for name in names)


def test_wheel_holds_configs_and_tools_where_mim_looks(names: set[str], tree: Path) -> None:
    configs = _files(tree / 'configs', '.py', '.yml', '.md')
    assert any(name.startswith('configs/mmseg/') for name in configs)
    tools = {name for name in _files(tree / 'tools', '.py') if 'setup_env' not in name}
    assert {f'tools/{name}.py' for name in ('train', 'test', 'infer')} <= tools
    packed = {name.removeprefix('flatten_mm/.mim/') for name in names if '/.mim/' in name}
    assert packed - {'model-index.yml'} == configs | tools


def test_build_leaves_no_copies_or_links_in_the_sources(wheel: Path, tree: Path) -> None:
    assert not (tree / 'flatten_mm' / '.mim').exists()
    assert not [path for path in tree.rglob('*') if path.is_symlink()]


def test_version_is_that_of_the_package(metadata: Message) -> None:
    assert metadata['Version'] == flatten_mm.__version__


def test_installing_replaces_no_mm_stack(metadata: Message) -> None:
    needs = metadata.get_all('Requires-Dist')
    plain = [need for need in needs if 'extra ==' not in need]
    assert plain == ['safetensors']
    heavy = [need for need in needs if HEAVY.match(need)]
    assert len(heavy) >= 7  # they are there, as extras
    assert all(re.search(r'extra == .mm.', need) for need in heavy)


def test_installed_wheel_works_without_the_repository(wheel: Path, tmp_path: Path) -> None:
    """A config of every folder loads from the installed package (custom ones want classes)."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    code = f"""
import sys; sys.path.insert(0, {str(tmp_path)!r})
from pathlib import Path
import flatten_mm
from mmengine.config import Config
folder = Path(flatten_mm.__file__).parent
assert folder.parent == Path({str(tmp_path)!r}), folder
configs = {{p.parent: p for p in (folder / '.mim' / 'configs').rglob('*.py')
           if not {{'_base_', 'custom'}} & set(p.parts)}}
for path in configs.values():
    assert 'flatten_mm' in Config.fromfile(path)['custom_imports']['imports'], path
print(len(configs), 'configs')
"""
    result = subprocess.run(
        [sys.executable, '-c', code], cwd=tmp_path, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr
    assert int(result.stdout.split()[-2]) > 0


def test_editable_metadata_need_no_build_of_the_configs(tree: Path) -> None:
    """`pip install -e .` (what the set-up does) links nothing into the source tree either."""
    code = """
from setuptools.build_meta import build_editable
import tempfile
print(build_editable(tempfile.mkdtemp()))
"""
    subprocess.run([sys.executable, '-c', code], cwd=tree, capture_output=True, check=True)
    assert not (tree / 'flatten_mm' / '.mim').exists()
