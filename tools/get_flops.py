"""Parameters and FLOPs (multiply-accumulates) of a config's model, part by part."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path

from flatten_mm.analysis.complexity import measure
from flatten_mm.engine import UserError, cli
from flatten_mm.engine.errors import reported_as
from flatten_mm.engine.folders import refuse_used


def main(argv: Sequence[str] | None = None) -> int:
    """Run the tool; returns its exit status."""
    tool = cli.parser(__doc__)
    tool.add_argument('--shape', type=int, nargs='+', metavar=('H', 'W'),
                      help='image size in pixels, one number for a square; by default the size '
                      'the paper reports (512 2048 for mmseg, 800 1280 for mmdet), for a '
                      'classifier its training size')
    tool.add_argument('--json', metavar='PATH', help='write the figures there too; - for stdout '
                      'in place of the table')
    return cli.run(tool, _get_flops, argv)


def _get_flops(args: argparse.Namespace) -> None:
    shape = _shape(args.shape)
    if args.json not in (None, '-'):
        refuse_used(Path(args.json), '--json', 'choose another path')
    cfg = cli.read_config(args)
    # What mm libraries log while building must not get between the figures.
    with reported_as(f'cannot count the model of {args.config}'), redirect_stdout(sys.stderr):
        complexity = measure(cfg, shape)
    content = json.dumps(dict(config=args.config, **complexity.to_dict()), indent=2)
    if args.json == '-':
        print(content)
        return
    height, width = complexity.shape
    print(f'{args.config} at {height}x{width} (height x width)')
    print(complexity.table())
    if args.json:
        with reported_as('cannot write --json'):
            Path(args.json).write_text(content + '\n', encoding='utf-8')


def _shape(sides: list[int] | None) -> tuple[int, int] | None:
    if sides is None:
        return None
    if len(sides) > 2 or min(sides) < 1:
        raise UserError(f'--shape {" ".join(map(str, sides))}: expected H W, or one number, in '
                        'pixels')
    return sides[0], sides[-1]


if __name__ == '__main__':
    sys.exit(main())
