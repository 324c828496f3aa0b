"""Write a model as ONNX for images of any size, and compare the file with PyTorch.

mmseg: logits at the size of the image. mmpretrain: logits. mmdet: the maps of backbone and neck.
The file appears only when its results in ONNX Runtime are the model's, to 1e-4, at every size.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from flatten_mm.engine import UserError, cli
from flatten_mm.engine.config import stem_of
from flatten_mm.engine.export import (
    MIN_SIDE,
    PARTS,
    ExportReport,
    export_onnx,
    load_exportable,
)
from flatten_mm.engine.folders import make_folder, refuse_used


def main(argv: Sequence[str] | None = None) -> int:
    """Run the tool; returns its exit status."""
    tool = cli.parser(__doc__, (
        'checkpoint', 'checkpoint file of the config\'s model; none for random weights'))
    tool.add_argument('--output', metavar='FILE', help='file to write (./CONFIG.onnx)')
    tool.add_argument('--overwrite', action='store_true', help='replace FILE if it exists')
    tool.add_argument('--part', choices=PARTS, default='model',
                      help='what to export; a config of a bare backbone has only that')
    tool.add_argument('--shape', type=int, nargs='+', metavar=('H', 'W'), default=[224],
                      help='image size to trace with, one number for a square (224)')
    tool.add_argument('--fixed-size', action='store_true',
                      help='a graph for images of --shape alone; the batch stays free')
    tool.add_argument('--normalize', action='store_true',
                      help='the graph takes pixels from 0 to 255 (RGB where the model was trained '
                      'on it) and normalises them itself')
    tool.add_argument('--opset', type=int, metavar='N', help='version of the ONNX operators')
    tool.add_argument('--verify-sizes', nargs='+', type=_size, metavar='HxW',
                      help='image sizes to compare at, in place of six made of --shape')
    cli.add_data_options(tool, 'classes', 'img_size')
    return cli.run(tool, _export, argv)


def _export(args: argparse.Namespace) -> None:
    if len(args.shape) > 2 or min(args.shape) < (1 if args.fixed_size else MIN_SIDE):
        raise UserError(f'--shape {" ".join(map(str, args.shape))}: expected H W, or one number, '
                        f'in pixels, of at least {MIN_SIDE} (or any with --fixed-size)')
    shape = args.shape[0], args.shape[-1]
    if args.fixed_size and any(size != shape for size in args.verify_sizes or ()):
        raise UserError('--verify-sizes: with --fixed-size only --shape can be compared')
    cfg = cli.read_config(args)
    path = Path(args.output or f'{stem_of(cfg)}.onnx').expanduser()
    if path.is_dir() or not args.overwrite:
        refuse_used(path, '--output', 'choose another file or give --overwrite')
    make_folder(path.parent, '--output')
    checkpoint = None if args.checkpoint == 'none' else args.checkpoint
    model, metadata = load_exportable(cfg, checkpoint, args.part, args.normalize)
    report = export_onnx(model, path, shape, metadata=metadata, opset=args.opset,
                         fixed_size=args.fixed_size, verify_sizes=args.verify_sizes)
    print(_table(report))


def _table(report: ExportReport) -> str:
    lines = [f'{"images":>6}  {"size":>11}  largest difference (relative)']
    lines += [f'{check.batch:>6}  {f"{check.height}x{check.width}":>11}  {check.difference:.1e}'
              for check in report.checks]
    lines += ['']
    lines += [f'{key}: {value if len(value) < 80 else value[:76] + " ..."}'
              for key, value in report.metadata.items()]
    return '\n'.join(lines + [f'outputs: {", ".join(report.outputs)}',
                              f'written: {report.path} (opset {report.opset})'])


def _size(text: str) -> tuple[int, int]:
    sides = text.lower().split('x')
    if len(sides) > 2 or not all(side.isdecimal() and int(side) for side in sides):
        raise argparse.ArgumentTypeError(f'{text!r} should be a size in pixels such as 512 or '
                                         '512x683 (height x width)')
    return int(sides[0]), int(sides[-1])


if __name__ == '__main__':
    sys.exit(main())
