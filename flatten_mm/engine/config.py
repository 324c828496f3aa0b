"""Reading a config: its path, the overrides, and the options for a user's own data."""

from __future__ import annotations

import ast
import difflib
import inspect
import os
import re
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from mmengine.config import Config
from mmengine.runner import Runner

from .errors import UserError, one_line

SCOPES = ('mmseg', 'mmdet', 'mmpretrain')

# Keyword of `load_config` -> the environment variable a config reads it from, with mmengine's
# {{$NAME:default}}. A variable and no merge into the config, because one value feeds many places
# (the classes set the data set and every head) and because mm's own tools then read it as well.
DATA_VARIABLES = {
    'data_root': 'FLATTEN_DATA_ROOT',
    'classes': 'FLATTEN_CLASSES',
    'img_size': 'FLATTEN_IMG_SIZE',
    'batch_size': 'FLATTEN_BATCH_SIZE',
    'max_iters': 'FLATTEN_MAX_ITERS',
}

# Keys that mean something to the mm libraries although few configs write them out.
_OPTIONAL_KEYS = {'find_unused_parameters', 'model_wrapper_cfg', 'runner_type', 'sync_bn'}


def load_config(
    path: str | os.PathLike,
    cfg_options: dict | None = None,
    *,
    data_root: str | os.PathLike | None = None,
    classes: Sequence[str] | None = None,
    img_size: Sequence[int] | None = None,
    batch_size: int | None = None,
    max_iters: int | None = None,
) -> Config:
    """Read a config file.

    Args:
        path: A ``.py``, ``.json`` or ``.yaml`` config.
        cfg_options: Overrides, as mm's ``--cfg-options`` parses them.
        data_root: Folder of the user's data.
        classes: Class names, in the order of the labels.
        img_size: (H, W) in pixels.
        batch_size: Images a step and process.
        max_iters: Optimizer steps.

    Returns:
        The config, with ``default_scope`` one of mmseg, mmdet and mmpretrain.

    Raises:
        UserError: The file is missing or does not load, an override names no key of the config,
            or a data option is given that the config does not read.
    """
    path = Path(path)
    if not path.is_file():
        kind = 'is a folder, not a config file' if path.is_dir() else 'does not exist'
        raise UserError(f'config {path} {kind}; give the path of a .py config such as those in '
                        'configs/')
    given = _variables(dict(data_root=data_root, classes=classes, img_size=img_size,
                            batch_size=batch_size, max_iters=max_iters))
    with _environment(given):
        cfg = _read(path)
    for name in given:
        if name not in cfg.env_variables:
            option = next(key for key, value in DATA_VARIABLES.items() if value == name)
            raise UserError(
                f'config {path} does not read {name}, so --{option.replace("_", "-")} would change '
                'nothing; leave it out (a config dumped into a work dir has its values written '
                'out), use a config for your own data (*custom*), or set the key itself with '
                '--cfg-options')
    if cfg_options:
        _merge_options(cfg, cfg_options)
    scope_of(cfg)
    return cfg


def scope_of(cfg: Config) -> str:
    """The mm library a config is for: its ``default_scope``.

    Raises:
        UserError: ``default_scope`` is absent or none of mmseg, mmdet and mmpretrain.
    """
    scope = cfg.get('default_scope')
    if scope not in SCOPES:
        raise UserError(f'config {cfg.filename} has default_scope={scope!r}; expected one of '
                        f'{", ".join(SCOPES)}, as a _base_ default_runtime.py sets it')
    return scope


def stem_of(cfg: Config) -> str:
    """Name of the config file without its suffix, which names its default output folders."""
    return Path(cfg.filename).stem if cfg.filename else cfg.get('experiment_name', 'config')


def without_filename(cfg: Config) -> Config:
    """A copy of ``cfg`` that mmengine dumps as ``<timestamp>.py`` and not under its own name."""
    copy = Config(cfg.to_dict())
    copy.setdefault('experiment_name', stem_of(cfg))
    return copy


def _variables(options: dict) -> dict[str, str]:
    """Environment variables for the data options that are given."""
    variables = {}
    for key, value in options.items():
        if value is None:
            continue
        if key == 'data_root':
            value = os.path.expanduser(value)
        elif key in ('classes', 'img_size'):
            value = ','.join(str(item) for item in value)
        if not str(value).strip():
            raise UserError(f'--{key.replace("_", "-")} is empty; give a value or leave it out')
        # mmengine puts the value into the source text of the config
        if re.search(r'[\'"\\{}\n]', str(value)):
            raise UserError(f'--{key.replace("_", "-")} {value!r} holds a quote, a backslash, a '
                            'brace or a line break, which a config cannot take')
        variables[DATA_VARIABLES[key]] = str(value)
    return variables


@contextmanager
def _environment(variables: dict[str, str]) -> Iterator[None]:
    """Set environment variables for the time of the block."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name)
            else:
                os.environ[name] = value


def _read(path: Path) -> Config:
    try:
        return Config.fromfile(path)
    except Exception as error:  # a config is Python: anything may come out of it
        where = _where(error, path)
        what = 'has a syntax error' if isinstance(error, SyntaxError) else 'does not load'
        reason = error.msg if isinstance(error, SyntaxError) else _reason(error)
        raise UserError(f'config {path} {what}{where}: {reason}') from error


def _reason(error: Exception) -> str:
    if isinstance(error, ImportError) and error.__cause__ is not None:
        return one_line(error.__cause__)  # mmengine's own message lists the whole sys.path
    if isinstance(error, (ValueError, FileNotFoundError)):  # those say what is wrong
        return one_line(error)
    return f'{type(error).__name__}: {one_line(error)}'


def _where(error: Exception, path: Path) -> str:
    """`` at line N`` (and the file, when it is a base of ``path``), where it can be told."""
    if isinstance(error, SyntaxError):
        # mmengine parses a temporary copy, whose lines are those of the file at fault: the first
        # file of the chain that does not parse.
        for file in [path, *_base_files(path)]:
            try:
                ast.parse(file.read_text(encoding='utf-8'))
            except SyntaxError as own:
                return f' at line {own.lineno}' + ('' if file == path else f' of {file}')
        return f' at line {error.lineno}' if error.lineno else ''
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if frame.name == '<module>' and frame.filename.endswith('.py'):
            own = os.path.abspath(path) == frame.filename
            # frames of modules that the config imports are not its own lines
            if own or f'{os.sep}configs{os.sep}' in frame.filename:
                return f' at line {frame.lineno}' + ('' if own else f' of {frame.filename}')
    return ''


def _base_files(path: Path) -> list[Path]:
    """Local files that ``path`` names in ``_base_``, and theirs; [] where it does not parse."""
    match = re.search(r'^_base_\s*=\s*(\[.*?\]|\'[^\']*\'|"[^"]*")',
                      path.read_text(encoding='utf-8'), re.M | re.S)
    names = re.findall(r'[\'"]([^\'"]+)[\'"]', match[1]) if match else []
    files = [path.parent / name for name in names]
    files = [file for file in files if file.is_file()]
    return files + [deeper for file in files for deeper in _base_files(file)]


def _merge_options(cfg: Config, cfg_options: dict) -> None:
    known = set(cfg) | set(inspect.signature(Runner).parameters) | _OPTIONAL_KEYS
    for option in cfg_options:
        key = option.split('.')[0]
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            hint = f'; did you mean {near[0]!r}?' if near else ''
            raise UserError(f'--cfg-options {option}: config {cfg.filename} has no {key!r}{hint}')
    try:
        cfg.merge_from_dict(cfg_options)
    except Exception as error:  # index out of a list, a value in place of a dict, ...
        raise UserError(f'--cfg-options {cfg_options} does not fit config {cfg.filename}: '
                        f'{one_line(error)}') from error
