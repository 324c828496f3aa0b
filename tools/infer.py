"""Run a checkpoint on images: overlays, and results.json.

Exit status: 0, 3 when some images were skipped, 1 when none could be used or on another error.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from flatten_mm.engine import UserError, cli, infer

SOME_SKIPPED = 3


def main(argv: Sequence[str] | None = None) -> int:
    """Run the tool; returns its exit status."""
    tool = cli.parser(__doc__, ('checkpoint', 'checkpoint file of the config\'s model'))
    tool.add_argument('inputs', nargs='+', metavar='INPUT',
                      help='images, folders (searched in depth) or quoted glob patterns')
    tool.add_argument('--out-dir', metavar='DIR', help='output folder; ./outputs/CONFIG by default')
    tool.add_argument('--overwrite', action='store_true',
                      help='write into an output folder that is not empty')
    tool.add_argument('--device', help='cpu, cuda, cuda:1; the GPU by default where there is one')
    tool.add_argument('--score-thr', type=float, metavar='S',
                      help='leave detections of a lower score out (mmdet; default 0.3)')
    cli.add_data_options(tool, 'classes', 'img_size')
    return cli.run(tool, _infer, argv)


def _infer(args: argparse.Namespace) -> int:
    report = infer(cli.read_config(args), args.checkpoint, args.inputs, out_dir=args.out_dir,
                   device=args.device, score_thr=args.score_thr, overwrite=args.overwrite)
    if report.done == 0:
        file, reason = report.skipped[0]
        raise UserError(f'no image could be used; the first, {file}, {reason}')
    print(f'{report.done} images done, {len(report.skipped)} skipped; results: {report.results}')
    return SOME_SKIPPED if report.skipped else 0


if __name__ == '__main__':
    sys.exit(main())
