"""Compare trainings: curves in one picture, final metrics and costs in one Markdown table."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from flatten_mm.analysis.runs import cost_of, markdown_table, read_runs, runs_figure
from flatten_mm.engine import UserError, cli
from flatten_mm.engine.folders import make_folder


def main(argv: Sequence[str] | None = None) -> int:
    """Run the tool; returns its exit status."""
    tool = argparse.ArgumentParser(description=__doc__)
    tool.add_argument('work_dirs', nargs='+', metavar='WORK_DIR',
                      help='work folders of trainings, each with */vis_data/scalars.json')
    tool.add_argument('--shape', type=int, nargs=2, metavar=('H', 'W'),
                      help='image size to count FLOPs at; by default the size the paper reports: '
                      '512x2048 (mmseg), 800x1280 (mmdet), the training size (mmpretrain)')
    tool.add_argument('--out-dir', default='outputs/compare_runs', metavar='DIR',
                      help='folder of runs.png and runs.md (outputs/compare_runs)')
    tool.add_argument('--overwrite', action='store_true', help='replace those files')
    tool.add_argument('--debug', action='store_true', help='show the traceback of an error')
    return cli.run(tool, _compare, argv)


def _compare(args: argparse.Namespace) -> None:
    folder = Path(args.out_dir).expanduser()
    picture, table = folder / 'runs.png', folder / 'runs.md'
    for file in (picture, table):
        if file.exists() and not args.overwrite:
            raise UserError(f'{file} exists; choose another --out-dir or give --overwrite')
    runs = read_runs(args.work_dirs)
    text = markdown_table(runs, [cost_of(run, args.shape) for run in runs])
    make_folder(folder, '--out-dir')
    runs_figure(runs).savefig(picture, dpi=100)
    table.write_text(text, encoding='utf-8')
    print(f'{text}\nwritten: {picture}, {table}')


if __name__ == '__main__':
    sys.exit(main())
