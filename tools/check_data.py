"""Check the data sets of a config: counts, sizes, classes, every problem, and contact sheets.

Exit status: 0 without errors (warnings do not count), 1 with.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path

from flatten_mm.datasets.check import check_data
from flatten_mm.datasets.check_report import as_dict, as_text, save_sheets
from flatten_mm.engine import UserError, cli
from flatten_mm.engine.config import stem_of
from flatten_mm.engine.errors import reported_as
from flatten_mm.engine.folders import make_folder, refuse_used


def main(argv: Sequence[str] | None = None) -> int:
    """Run the tool; returns its exit status."""
    tool = cli.parser(__doc__)
    tool.add_argument('--out-dir', metavar='DIR',
                      help='folder for contact_sheet_SPLIT.png, which are replaced there; '
                      './outputs/check_data/CONFIG by default')
    tool.add_argument('--json', metavar='PATH', help='write the report and all problems there too; '
                      '- for stdout in place of the text')
    tool.add_argument('--max-images', type=int, metavar='N',
                      help='read the pixels of N images a split only, evenly spread; annotations '
                      'are checked all')
    cli.add_data_options(tool, 'data_root', 'classes', 'img_size', 'batch_size', 'max_iters')
    return cli.run(tool, _check, argv)


def _check(args: argparse.Namespace) -> int:
    if args.max_images is not None and args.max_images < 1:
        raise UserError(f'--max-images {args.max_images} should be at least 1')
    if args.json not in (None, '-'):
        refuse_used(Path(args.json), '--json', 'choose another path')
    cfg = cli.read_config(args)
    folder = Path(args.out_dir or Path('outputs') / 'check_data' / stem_of(cfg)).expanduser()
    with redirect_stdout(sys.stderr):  # what mm libraries print must not get into the report
        report = check_data(cfg, max_images=args.max_images, progress=_show)
        make_folder(folder, '--out-dir')
        with reported_as(f'cannot write contact sheets to {folder}'):
            sheets = save_sheets(report, folder)
    content = json.dumps(as_dict(report), indent=1)
    if args.json == '-':
        print(content)
    else:
        print(as_text(report))
        print(f'contact sheets: {", ".join(map(str, sheets)) or "none"}')
        if args.json:
            with reported_as('cannot write --json'):
                Path(args.json).write_text(content + '\n', encoding='utf-8')
    return 1 if report.errors else 0


def _show(split: str, done: int, total: int) -> None:
    if done % max(1, total // 50) == 0 or done == total:
        end = '\n' if done == total else ''
        print(f'\r{split}: {done} of {total} images read', end=end, file=sys.stderr, flush=True)


if __name__ == '__main__':
    sys.exit(main())
