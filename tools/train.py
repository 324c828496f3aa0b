"""Train a config of mmseg, mmdet or mmpretrain."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from flatten_mm.engine import cli, train


def main(argv: Sequence[str] | None = None) -> int:
    """Run the tool; returns its exit status."""
    tool = cli.parser(__doc__)
    tool.add_argument('--work-dir', metavar='DIR',
                      help='folder for logs and checkpoints; the config\'s work_dir by default, '
                      'then ./work_dirs/CONFIG')
    tool.add_argument('--resume', nargs='?', const=True, metavar='CHECKPOINT',
                      help='continue from a checkpoint, or from the latest in the work dir '
                      '(from the start where that is empty); after CONFIG')
    tool.add_argument('--amp', action='store_true',
                      help='mixed precision; in bf16 where there is no GPU')
    tool.add_argument('--auto-scale-lr', action='store_true',
                      help='scale the learning rate by the batch size')
    cli.add_launcher(tool)
    cli.add_data_options(tool, 'data_root', 'classes', 'img_size', 'batch_size', 'max_iters')
    return cli.run(tool, _train, argv)


def _train(args: argparse.Namespace) -> None:
    train(cli.read_config(args), work_dir=args.work_dir, resume=args.resume, amp=args.amp,
          auto_scale_lr=args.auto_scale_lr, launcher=args.launcher)


if __name__ == '__main__':
    sys.exit(main())
