"""Make the embedded data set, train two small models on it, show what they learned."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

# Read when torch is loaded. Threads that spin while they wait for each other make small models more
# than ten times slower on a machine that does something else besides.
os.environ.setdefault('OMP_WAIT_POLICY', 'PASSIVE')

from flatten_mm.demo import LEAST_BOX_AP, LEAST_MIOU, DemoReport, run_demo
from flatten_mm.engine import UserError

CONFIGS = Path(__file__).resolve().parent.parent / 'configs' / 'demo'
SEG_CONFIG = CONFIGS / 'fpn_flatten-pvt_demo-128x128.py'
DET_CONFIG = CONFIGS / 'mask-rcnn_flatten-swin_demo.py'


def main(argv: Sequence[str] | None = None) -> int:
    """Run the tool; returns 0 when the models learned what they should, else 1."""
    tool = argparse.ArgumentParser(description=__doc__)
    tool.add_argument('--root', default='work_dirs/demo', metavar='DIR',
                      help='folder for the data and for a numbered folder a run '
                      '(default: %(default)s)')
    tool.add_argument('--quick', action='store_true',
                      help='a few steps on a few images: shows that it runs, learns nothing')
    args = tool.parse_args(argv)
    try:
        report = run_demo(SEG_CONFIG, DET_CONFIG, args.root, args.quick)
    except (UserError, FileExistsError) as error:
        print(f'error: {error}', file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print('interrupted', file=sys.stderr)
        return 130
    print(_summary(report, args.quick))
    return 0 if report.learned or args.quick else 1


def _summary(report: DemoReport, quick: bool) -> str:
    total = sum(report.seconds.values())
    lines = [
        '',
        'On held-out images:',
        f'  mIoU     {report.miou:.3f}   (SemanticFPN on FLatten-PVT; at least {LEAST_MIOU:.2f})',
        f'  box AP   {report.box_ap:.3f}   (Mask R-CNN on FLatten-Swin; at least '
        f'{LEAST_BOX_AP:.2f})',
        f'  mask AP  {report.mask_ap:.3f}',
        f'Time: {total / 60:.1f} min',
        *(f'  {seconds:6.1f} s  {part}' for part, seconds in report.seconds.items()),
        'Pictures:',
        *(f'  {path}' for path in report.pictures),
        f'Logs and checkpoints: {report.work_dir}',
    ]
    if quick:
        lines.append('These few steps learn nothing; leave --quick out for the demo itself.')
    elif not report.learned:
        lines.append('FAILED: the scores are below what the demo reaches elsewhere '
                     f'(mIoU {LEAST_MIOU:.2f}, box AP {LEAST_BOX_AP:.2f}).')
    return '\n'.join(lines)


if __name__ == '__main__':
    sys.exit(main())
