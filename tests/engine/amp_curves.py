"""Train a config in fp32 and in mixed precision from the same seed and compare the loss curves.

    python tests/engine/amp_curves.py configs/demo/fpn_flatten-pvt_demo-128x128.py \
        --data-root work_dirs/demo/data --steps 300 --work-dir work_dirs/amp_curves

Both runs see the same images in the same order; the work folders fp32/ and amp/ are those of any
training, for tools/compare_runs.py.
"""
from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from flatten_mm.engine import load_config, train

SMOOTHED_OVER = 20  # steps


def losses_of(config: str | Path, work_dir: Path, steps: int, amp: bool,
              **options) -> np.ndarray:
    """(steps,): the loss of every step of a training without validation."""
    cfg = load_config(config, **options)
    share = steps / cfg.train_cfg.max_iters
    for scheduler in cfg.get('param_scheduler') or []:
        scheduler.begin = int(scheduler.get('begin', 0) * share)
        scheduler.end = max(int(scheduler.end * share), scheduler.begin + 1)
    cfg.train_cfg.update(max_iters=steps, val_interval=steps + 1)
    cfg.default_hooks.logger.interval = 1
    cfg.default_hooks.checkpoint = dict(type='CheckpointHook', by_epoch=False, interval=steps)
    cfg.setdefault('randomness', dict(seed=0))
    runner = train(cfg, work_dir=work_dir, amp=amp)
    return np.array(runner.message_hub.get_scalar('train/loss')._log_history[-steps:])


def smoothed(losses: np.ndarray, over: int = SMOOTHED_OVER) -> np.ndarray:
    """Running mean of the last ``over`` steps, of full windows only."""
    return np.convolve(losses, np.full(over, 1 / over), mode='valid')


def main() -> None:
    """Run both trainings and print the comparison."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('config')
    parser.add_argument('--data-root', default=None)
    parser.add_argument('--steps', type=int, default=300)
    parser.add_argument('--work-dir', type=Path, default=Path('work_dirs/amp_curves'))
    args = parser.parse_args()
    curves = {name: losses_of(args.config, args.work_dir / name, args.steps, name == 'amp',
                              data_root=args.data_root) for name in ('fp32', 'amp')}
    fp32, amp = (smoothed(curves[name]) for name in ('fp32', 'amp'))
    gap = np.abs(amp - fp32)
    worst = int(gap.argmax())
    print(f'{args.config}: {args.steps} steps, means over {SMOOTHED_OVER}\n'
          f'loss first  fp32 {fp32[0]:.4f}  amp {amp[0]:.4f}\n'
          f'loss last   fp32 {fp32[-1]:.4f}  amp {amp[-1]:.4f}\n'
          f'largest gap {gap[worst]:.4f} ({gap[worst] / fp32[worst]:.1%} of fp32) at step '
          f'{worst + SMOOTHED_OVER}, mean gap {gap.mean():.4f} ({(gap / fp32).mean():.1%})')


if __name__ == '__main__':
    main()
