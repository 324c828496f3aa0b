"""Building mmengine's Runner from a config of any of the three scopes."""

from __future__ import annotations

import logging
import os
import traceback
from pathlib import Path

import torch
from mmengine.config import Config
from mmengine.logging import print_log
from mmengine.registry import RUNNERS
from mmengine.runner import Runner

from .config import scope_of, stem_of, without_filename
from .distributed import connect_on_cpu
from .errors import UserError, one_line, reported_as

# Variables that each launcher sets for the processes it starts, as mmengine reads them.
_LAUNCHER_VARIABLES = {
    'pytorch': ('RANK', 'WORLD_SIZE', 'torchrun'),
    'slurm': ('SLURM_PROCID', 'SLURM_NTASKS', 'srun'),
    'mpi': ('OMPI_COMM_WORLD_RANK', 'OMPI_COMM_WORLD_SIZE', 'mpirun'),
}
_DATALOADERS = ('train_dataloader', 'val_dataloader', 'test_dataloader')


def build_runner(cfg: Config) -> Runner:
    """Build the Runner of ``cfg``, whose ``work_dir`` is set.

    The config is dumped into the work folder as mm does it, except where that would write over a
    file: then it is dumped as ``<timestamp>.py``.

    Raises:
        UserError: Something in the config cannot be built.
    """
    launcher = cfg.get('launcher', 'none')
    check_launcher(launcher)
    if launcher == 'pytorch' and not torch.cuda.is_available():
        connect_on_cpu(cfg)
    if (Path(cfg.work_dir) / f'{stem_of(cfg)}.py').exists():
        cfg = without_filename(cfg)
    if scope_of(cfg) == 'mmpretrain':
        set_dataloader_defaults(cfg)
    with reported_as(f'cannot build what config {stem_of(cfg)} describes'):
        if 'runner_type' in cfg:
            return RUNNERS.build(cfg)
        return Runner.from_cfg(cfg)


def set_dataloader_defaults(cfg: Config) -> None:
    """Fill in what mmpretrain's configs leave to its tools: collating to a batch tensor, pinned
    memory where there is a GPU, workers that stay."""
    for name in _DATALOADERS:
        dataloader = cfg.get(name)
        if dataloader is None:
            continue
        dataloader.setdefault('collate_fn', dict(type='default_collate'))
        dataloader.setdefault('pin_memory', torch.cuda.is_available())
        dataloader.setdefault('persistent_workers', dataloader.get('num_workers', 0) > 0)


def check_launcher(launcher: str) -> None:
    """Refuse a distributed run that mmengine cannot start.

    Raises:
        UserError: The launcher's environment variables are absent, or there is no GPU; only
            torchrun may start processes on the CPU (see :mod:`.distributed`).
    """
    if launcher == 'none':
        return
    *variables, command = _LAUNCHER_VARIABLES[launcher]
    absent = [name for name in variables if name not in os.environ]
    if absent:
        raise UserError(f'--launcher {launcher} expects the environment variables that {command} '
                        f'sets, but {", ".join(absent)} is absent; start the tool with {command}')
    if launcher != 'pytorch' and not torch.cuda.is_available():
        raise UserError(f'--launcher {launcher} needs a GPU for each process, but torch finds '
                        'none; leave the option out to run one process on the CPU')


def is_main_process() -> bool:
    """Whether this process is the first of its run; known before the processes are connected."""
    ranks = ('RANK', 'SLURM_PROCID', 'OMPI_COMM_WORLD_RANK')
    return all(os.environ.get(name, '0') == '0' for name in ranks)


def rethrow(error: Exception) -> None:
    """Raise a :class:`UserError` for errors of a running loop that bad data explains.

    Anything else is left alone: its traceback is what helps.

    Raises:
        UserError: ``error`` is a missing or unreadable file, data that a data set refuses, a label
            outside the classes of the head, a batch of unequal images, a file that cannot be
            fetched, or a full memory.
    """
    text = one_line(error)
    if isinstance(error, (FileNotFoundError, PermissionError, IsADirectoryError)):
        raise UserError(f'a file cannot be read: {text}') from error
    if 'failed to load image' in text or 'imdecode' in text or 'imread' in text:
        raise UserError(f'an image cannot be read: {text}') from error
    if isinstance(error, ValueError) and _in_data_loader(error):
        raise UserError(f'the data cannot be loaded: {text}') from error
    if isinstance(error, IndexError) and text.startswith('Target '):  # torch's cross entropy
        raise UserError(
            f'an annotation holds a label outside the classes of the head ({text}); the head\'s '
            'num_classes and the classes of the data set must cover every label but the ignored '
            'one (255)') from error
    if 'image size in a batch should be the same' in text:  # mmseg, in validation and test
        raise UserError('images of a batch differ in size; set batch_size=1 in val_dataloader and '
                        'test_dataloader, or resize without keep_ratio') from error
    if isinstance(error, OSError) and 'urlopen' in text:
        raise UserError(f'a file named by a URL cannot be fetched: {text}') from error
    if isinstance(error, torch.cuda.OutOfMemoryError):
        raise UserError('the GPU has not enough memory; use a smaller batch size, a smaller '
                        f'image size or --amp ({text})') from error


def _in_data_loader(error: Exception) -> bool:
    """Whether an error comes out of torch's DataLoader, that is from a data set or transform."""
    frames = traceback.extract_tb(error.__traceback__)
    return any(f'{os.sep}torch{os.sep}utils{os.sep}data{os.sep}' in frame.filename
               for frame in frames)


def warn(message: str) -> None:
    """Log a warning to mmengine's current logger."""
    print_log(message, logger='current', level=logging.WARNING)
