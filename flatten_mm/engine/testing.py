"""Testing a checkpoint on the test set of a config."""

from __future__ import annotations

import copy
import os
from pathlib import Path

from mmengine.config import Config, ConfigDict
from mmengine.evaluator import DumpResults
from mmengine.runner import Runner

from ..checkpoint import Checkpoint
from .config import scope_of, without_filename
from .errors import UserError
from .folders import refuse_used, work_dir_of
from .preflight import check_data_paths, check_runner_data
from .runner import build_runner, rethrow
from .weights import load_weights, read_weights, warn_of_other_names


def test(
    cfg: Config,
    checkpoint: str | os.PathLike,
    *,
    work_dir: str | os.PathLike | None = None,
    out: str | os.PathLike | None = None,
    show_dir: str | os.PathLike | None = None,
    tta: bool = False,
    launcher: str = 'none',
) -> dict[str, float]:
    """Evaluate a checkpoint on ``cfg.test_dataloader``, as mm's own ``tools/test.py`` does.

    Args:
        cfg: A config from :func:`load_config`; left as it is.
        checkpoint: A checkpoint file of the config's model.
        work_dir: Folder in which a folder of this test's time is made for logs and metrics;
            ``cfg.work_dir`` by default, then ``./work_dirs/<config name>``.
        out: Where to keep the predictions: a folder of label maps for mmseg, else a ``.pkl``
            file. It must not exist.
        show_dir: Folder for pictures of the predictions. It must be empty.
        tta: Test with the config's ``tta_model`` and ``tta_pipeline``.
        launcher: ``'none'``, ``'pytorch'``, ``'slurm'`` or ``'mpi'``.

    Returns:
        Metrics by name.

    Raises:
        UserError: Something the user can mend; see the module's checks.
    """
    cfg = copy.deepcopy(cfg)
    cfg.launcher = launcher
    absent = [key for key in ('model', 'test_dataloader', 'test_cfg', 'test_evaluator')
              if cfg.get(key) is None]
    if absent:
        raise UserError(f'config {cfg.filename} cannot be tested: it has no {", ".join(absent)}')
    weights = read_weights(checkpoint)
    check_data_paths(cfg, ['test'])
    if tta:
        _set_tta(cfg)
    if out is not None:
        _set_out(cfg, Path(out))
    if show_dir is not None:
        _set_show_dir(cfg, Path(show_dir).absolute())
    cfg.work_dir = str(work_dir_of(cfg, work_dir))
    cfg.load_from = str(weights.path)
    cfg.resume = False
    # a training's own dump of the config, in the same folder, stays what it is
    runner = build_runner(without_filename(cfg))
    _check(runner, weights)
    try:
        return runner.test()
    except Exception as error:
        rethrow(error)
        raise


def _check(runner: Runner, weights: Checkpoint) -> None:
    model = getattr(runner.model, 'module', runner.model)
    load_weights(model, weights)
    check_runner_data(runner, 'test')
    warn_of_other_names(weights, getattr(runner.test_dataloader.dataset, 'metainfo', {}))


def _set_tta(cfg: Config) -> None:
    absent = [key for key in ('tta_model', 'tta_pipeline') if cfg.get(key) is None]
    if absent:
        raise UserError(f'--tta: config {cfg.filename} has no {", ".join(absent)}')
    # inside a TTA model nobody else passes the config's preprocessor on
    if cfg.get('data_preprocessor') is not None:
        cfg.model.setdefault('data_preprocessor', cfg.data_preprocessor)
    cfg.model = ConfigDict(**cfg.tta_model, module=cfg.model)
    cfg.test_dataloader.dataset.pipeline = cfg.tta_pipeline


def _set_out(cfg: Config, out: Path) -> None:
    refuse_used(out, '--out', 'choose another path')
    if scope_of(cfg) == 'mmseg':
        metrics = _metrics(cfg)
        writers = [metric for metric in metrics if metric.type.split('.')[-1] == 'IoUMetric']
        if not writers:
            raise UserError('--out: label maps are written by IoUMetric, but test_evaluator is '
                            f'{", ".join(metric.type for metric in metrics)}')
        writers[0].output_dir = str(out)
        writers[0].keep_results = True
        return
    if out.suffix not in ('.pkl', '.pickle'):
        raise UserError(f'--out {out} should be a .pkl file')
    kind = 'DumpDetResults' if scope_of(cfg) == 'mmdet' else DumpResults.__name__
    cfg.test_evaluator = [*_metrics(cfg), ConfigDict(type=kind, out_file_path=str(out))]


def _metrics(cfg: Config) -> list[ConfigDict]:
    evaluator = cfg.test_evaluator
    return list(evaluator) if isinstance(evaluator, (list, tuple)) else [evaluator]


def _set_show_dir(cfg: Config, folder: Path) -> None:
    refuse_used(folder, '--show-dir', 'choose another folder')
    hook = (cfg.get('default_hooks') or {}).get('visualization')
    if hook is None:
        raise UserError(f'--show-dir: config {cfg.filename} has no default_hooks.visualization, '
                        'which draws the pictures')
    hook.interval = 1
    scope = scope_of(cfg)
    if scope == 'mmseg':
        hook.draw = True
        cfg.visualizer.save_dir = str(folder)
    elif scope == 'mmdet':
        hook.update(draw=True, test_out_dir=str(folder))
    else:
        hook.update(enable=True, out_dir=str(folder))
