"""Training a config."""

from __future__ import annotations

import copy
import os
from pathlib import Path

import torch
from mmengine.config import Config, ConfigDict
from mmengine.device import get_device
from mmengine.hooks import Hook
from mmengine.runner import Runner

from ..hooks import ResumableCheckpointHook
from ..hooks.files import is_leftover
from .bf16 import Bf16OptimWrapper
from .errors import UserError, one_line
from .folders import refuse_used_work_dir, work_dir_of
from .interruption import checkpoint_to_resume, told, use_resumable_checkpoints
from .preflight import check_data_paths, check_pretrained, check_runner_data
from .runner import build_runner, is_main_process, rethrow, warn
from .weights import check_values, load_weights, read_weights


def train(
    cfg: Config,
    *,
    work_dir: str | os.PathLike | None = None,
    resume: str | os.PathLike | bool | None = None,
    amp: bool = False,
    auto_scale_lr: bool = False,
    launcher: str = 'none',
) -> Runner:
    """Train what a config describes, as mm's own ``tools/train.py`` does.

    Args:
        cfg: A config from :func:`load_config`; left as it is.
        work_dir: Folder for logs and checkpoints; ``cfg.work_dir`` by default, then
            ``./work_dirs/<config name>``. It must be empty unless ``resume`` is given.
        resume: True to continue from the latest checkpoint of the work folder (from the start
            when the folder is empty), or the path of a checkpoint to continue from.
        amp: Train in mixed precision: as the config's ``optim_wrapper.dtype`` says (fp16 by
            default) on a GPU, in bf16 on a CPU.
        auto_scale_lr: Scale the learning rate by the batch size, as ``cfg.auto_scale_lr`` says.
        launcher: ``'none'``, ``'pytorch'``, ``'slurm'`` or ``'mpi'``.

    Returns:
        The runner after training.

    Raises:
        UserError: Something the user can mend; see the module's checks.
        TrainingStopped: A signal (SIGTERM, SIGUSR1) asked it to stop, and it has saved where it is.
    """
    cfg = copy.deepcopy(cfg)
    cfg.launcher = launcher
    _check_complete(cfg)
    _set_amp(cfg, amp)
    if auto_scale_lr:
        _set_auto_scale_lr(cfg)
    splits = ['train'] + ['val'] * (cfg.get('val_dataloader') is not None)
    check_data_paths(cfg, splits)
    check_pretrained(cfg.model)
    folder = work_dir_of(cfg, work_dir)
    cfg.work_dir = str(folder)
    use_resumable_checkpoints(cfg)
    _set_resume(cfg, folder, resume)
    with told(folder):
        runner = build_runner(cfg)
        check_runner_data(runner, *splits)
        _check_start(runner, cfg)
        _run(runner)
    return runner


def _run(runner: Runner) -> None:
    start = _Start()
    runner.register_hook(start)
    try:
        runner.train()
    except UserError:
        raise
    except Exception as error:
        rethrow(error)
        if not start.made:
            raise UserError(f'training cannot start: {type(error).__name__}: '
                            f'{one_line(error)}') from error
        raise
    finally:
        for hook in runner.hooks:
            if isinstance(hook, ResumableCheckpointHook):
                hook.release()


class _Start(Hook):
    """Tells whether optimizer, schedules and weights were ready, all of which configs name."""

    made = False

    def before_train(self, runner: Runner) -> None:
        self.made = True


class _ResumeState(Hook):
    """Refuses to continue from weights alone: the optimizer would silently start anew."""

    def after_load_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        if 'optimizer' not in checkpoint:
            raise UserError(
                'the checkpoint to resume from holds no state of the optimizer, so training '
                'cannot continue as it was; start from its weights with --cfg-options '
                'load_from=PATH in place of --resume')


def _check_complete(cfg: Config) -> None:
    absent = [key for key in ('model', 'train_dataloader', 'train_cfg', 'optim_wrapper')
              if cfg.get(key) is None]
    if absent:
        raise UserError(f'config {cfg.filename} cannot be trained: it has no {", ".join(absent)}')


def _set_amp(cfg: Config, amp: bool) -> None:
    wrapper = cfg.optim_wrapper
    kind = wrapper.get('type', 'OptimWrapper')
    if amp and kind == 'OptimWrapper':
        wrapper.type = kind = 'AmpOptimWrapper'
        wrapper.setdefault('loss_scale', 'dynamic')
    if amp and kind not in ('AmpOptimWrapper', Bf16OptimWrapper.__name__):
        raise UserError(f'--amp cannot be combined with optim_wrapper type {kind}; expected '
                        'OptimWrapper')
    if kind == 'AmpOptimWrapper' and get_device() == 'cpu':
        _set_amp_on_cpu(wrapper)


def _set_amp_on_cpu(wrapper: ConfigDict) -> None:
    """Mixed precision without a GPU, which mmengine's wrapper refuses: in bf16, no loss scaler."""
    dtype = str(wrapper.get('dtype') or 'bfloat16').removeprefix('torch.')
    if dtype != 'bfloat16':
        raise UserError(f'mixed precision in {dtype} (optim_wrapper.dtype) needs a GPU, and torch '
                        'finds none; on a CPU it is in bfloat16: set optim_wrapper.dtype=bfloat16 '
                        'or leave it out')
    for key in ('dtype', 'loss_scale', 'use_fsdp'):
        wrapper.pop(key, None)
    wrapper.type = Bf16OptimWrapper.__name__


def _set_auto_scale_lr(cfg: Config) -> None:
    if not (cfg.get('auto_scale_lr') or {}).get('base_batch_size'):
        raise UserError(f'--auto-scale-lr: config {cfg.filename} has no '
                        'auto_scale_lr.base_batch_size, the batch size its learning rate is for; '
                        'set it with --cfg-options auto_scale_lr.base_batch_size=N')
    cfg.auto_scale_lr.enable = True


def _set_resume(cfg: Config, folder: Path, resume: str | os.PathLike | bool | None) -> None:
    """Decide where training starts, and refuse a work folder that is in use."""
    if not resume and cfg.get('resume'):
        resume = cfg.get('load_from') or True
    if not resume:
        if is_main_process():
            refuse_used_work_dir(folder, cfg)
        return
    cfg.resume = True
    if resume is not True:
        cfg.load_from = str(resume)
        return
    latest = checkpoint_to_resume(folder)
    if latest is not None:
        cfg.load_from = str(latest)
        return
    cfg.resume = False
    if is_main_process():
        refuse_used_work_dir(folder, cfg, but=is_leftover)
    warn(f'--resume: work dir {folder} holds no checkpoint, training starts from the beginning')


def _check_start(runner: Runner, cfg: Config) -> None:
    """Check the checkpoint that training starts from."""
    model = getattr(runner.model, 'module', runner.model)
    if cfg.get('resume'):
        path = cfg.load_from
        checkpoint = read_weights(path)
        if 'iter' not in (checkpoint.meta.get('meta') or {}):
            raise UserError(f'checkpoint {path} is not of a training to resume: it holds no '
                            'iteration; start from its weights with --cfg-options load_from=PATH')
        load_weights(model, checkpoint)
        runner.register_hook(_ResumeState())
    elif cfg.get('load_from'):
        _check_load_from(model, cfg.load_from)


def _check_load_from(model: torch.nn.Module, path: str) -> None:
    """Fine-tuning may leave heads out, but a file that fits nowhere is a mistake."""
    checkpoint = read_weights(path)
    weights = checkpoint.state_dict
    own = model.state_dict()
    fitting = [key for key, value in own.items()
               if key in weights and weights[key].shape == value.shape]
    if not fitting:
        raise UserError(
            f'load_from {path} has none of the {len(own)} parameters of the model (the file has '
            f'{", ".join(list(weights)[:3])}, …); weights of a backbone alone belong into '
            "init_cfg=dict(type='Pretrained', checkpoint=PATH) of the backbone")
    check_values(model, checkpoint, {key: weights[key] for key in fitting})
    if len(fitting) < len(own):
        warn(f'load_from {path}: {len(fitting)} of {len(own)} parameters are in the file, the '
             'others start anew')
