"""Test a checkpoint on the test set of a config of mmseg, mmdet or mmpretrain."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from mmengine.dist import get_rank

from flatten_mm.engine import cli, test


def main(argv: Sequence[str] | None = None) -> int:
    """Run the tool; returns its exit status."""
    tool = cli.parser(__doc__, ('checkpoint', 'checkpoint file of the config\'s model'))
    tool.add_argument('--work-dir', metavar='DIR',
                      help='folder in which a folder of this test\'s time is made')
    tool.add_argument('--out', metavar='PATH',
                      help='keep the predictions: a folder of label maps for mmseg, a .pkl file '
                      'otherwise')
    tool.add_argument('--show-dir', metavar='DIR', help='draw the predictions into this folder')
    tool.add_argument('--tta', action='store_true',
                      help='test with the config\'s tta_model and tta_pipeline')
    cli.add_launcher(tool)
    cli.add_data_options(tool, 'data_root', 'classes', 'img_size', 'batch_size')
    return cli.run(tool, _test, argv)


def _test(args: argparse.Namespace) -> None:
    metrics = test(cli.read_config(args), args.checkpoint, work_dir=args.work_dir, out=args.out,
                   show_dir=args.show_dir, tta=args.tta, launcher=args.launcher)
    if get_rank() == 0:  # every process of a distributed test has them
        for name, value in metrics.items():
            print(f'{name}: {value}')


if __name__ == '__main__':
    sys.exit(main())
