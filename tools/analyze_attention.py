"""Look at what the attention of a model does on images: maps, ranks, how focused each block is.

Every image is analysed at its own size. Writes, into the output folder, for IMAGE.jpg:
IMAGE_stageI_blockJ_maps.png (attention of query points under focused attention with and without
DWC, vanilla linear and softmax attention), IMAGE_stageI_blockJ_rank.{png,json} (equivalent
attention matrices and their singular values), IMAGE_focus.{csv,json,png} (entropy and top mass of
every block); and focused_map.png (the focused map in two dimensions).

Exit status: 0, 3 when some images were skipped, 1 when none could be used or on another error.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from torch import nn

from flatten_mm.analysis import figures, report
from flatten_mm.analysis.models import LoadedImage, load_image, load_model
from flatten_mm.engine import UserError, cli
from flatten_mm.engine.config import stem_of
from flatten_mm.engine.errors import one_line
from flatten_mm.engine.folders import make_folder, refuse_used
from flatten_mm.engine.images import UnreadableImage, find_images
from flatten_mm.engine.inference import resolve_device
from flatten_mm.engine.runner import warn

CHECKPOINT_SUFFIXES = ('.pth', '.pt', '.safetensors', '.bin', '.ckpt', '.pkl')
KINDS = ('maps', 'rank', 'focus', 'geometry')
SOME_SKIPPED = 3


def main(argv: Sequence[str] | None = None) -> int:
    """Run the tool; returns its exit status."""
    tool = cli.parser(__doc__.splitlines()[0])
    tool.usage = '%(prog)s CONFIG [CHECKPOINT] IMAGE [IMAGE ...] [options]'
    tool.add_argument('inputs', nargs='+', metavar='CHECKPOINT, IMAGE',
                      help='a checkpoint of the config\'s model (weights of init_cfg or random '
                      'ones without), then images, folders or quoted glob patterns')
    tool.add_argument('--draw', nargs='+', choices=KINDS, metavar='KIND',
                      help=f'any of {", ".join(KINDS)}; all by default')
    tool.add_argument('--stage', type=int, metavar='N', help='stage for maps and rank, from 0; by '
                      'default the first focused one whose matrix is within --max-tokens')
    tool.add_argument('--block', type=int, metavar='N', help='block of the stage, from 0; the last')
    tool.add_argument('--head', type=int, metavar='N', help='head, from 0; by default maps show '
                      'the mean of the heads and the rank is head 0\'s')
    tool.add_argument('--channel', type=int, metavar='N', help='channel of the head whose DWC '
                      'kernel is used; by default maps show the mean kernel, the rank channel 0\'s')
    tool.add_argument('--query', nargs='+', type=_point, metavar='X,Y',
                      help='query points of the maps in pixels')
    tool.add_argument('--grid', type=_count, default=2, metavar='N',
                      help='without --query: N x N points spread over the image (2)')
    tool.add_argument('--max-tokens', type=_count, default=report.MAX_TOKENS, metavar='N',
                      help=f'largest matrix side for the rank ({report.MAX_TOKENS})')
    tool.add_argument('--dpi', type=_count, default=report.DPI, metavar='N',
                      help=f'dots per inch of the pictures ({report.DPI})')
    tool.add_argument('--out-dir', metavar='DIR',
                      help='output folder; ./outputs/CONFIG_attention by default')
    tool.add_argument('--overwrite', action='store_true',
                      help='write into an output folder that is not empty')
    tool.add_argument('--device', help='cpu, cuda, cuda:1; the GPU by default where there is one')
    return cli.run(tool, _analyze, argv)


def _analyze(args: argparse.Namespace) -> int:
    cfg = cli.read_config(args)
    inputs = list(args.inputs)
    checkpoint = inputs.pop(0) if inputs[0].endswith(CHECKPOINT_SUFFIXES) else None
    if not inputs:
        raise UserError(f'{checkpoint} is a checkpoint; give an image after it')
    images = find_images(inputs)
    device = resolve_device(args.device)
    folder = Path(args.out_dir or Path('outputs') / f'{stem_of(cfg)}_attention').expanduser()
    if not args.overwrite:
        refuse_used(folder, '--out-dir', 'choose another folder or give --overwrite')
    model = load_model(cfg, checkpoint, device)
    if checkpoint is None:
        warn('no checkpoint given: the weights are those of init_cfg, random where it names none')

    files: list[Path] = []
    skipped: list[str] = []
    for file, name in images.items():
        try:
            image = load_image(cfg, model, file)
            files += _analyze_image(args, model, image, folder / name)
        except UnreadableImage as error:
            skipped.append(f'{file} cannot be read: {error}')
            warn(f'skipped: {skipped[-1]}')
        except ValueError as error:  # a stage, head or point that is not there
            raise UserError(one_line(error)) from error
    if len(skipped) == len(images):
        raise UserError(f'no image could be used; the first, {skipped[0]}')
    if 'geometry' in (args.draw or KINDS):
        files.append(report.save(figures.focused_map_figure(), folder / 'focused_map.png',
                                 args.dpi))
    print('\n'.join(['written:', *(f'  {file}' for file in files)]))
    return SOME_SKIPPED if skipped else 0


def _analyze_image(args: argparse.Namespace, model: nn.Module, image: LoadedImage,
                   stem: Path) -> list[Path]:
    kinds = set(args.draw or KINDS)
    choice = report.choose(model, image, args.stage, args.block, args.head, args.channel,
                           args.max_tokens)
    if 'rank' in kinds:
        try:
            report.check_rank_size(model, image, choice)
        except ValueError as error:
            if args.draw:
                raise
            warn(f'{stem.name}: rank left out: {one_line(error)}; --max-tokens raises it')
            kinds.remove('rank')
    make_folder(stem.parent, '--out-dir')
    files: list[Path] = []
    if 'maps' in kinds:
        height, width = image.rgb.shape[:2]
        points = args.query or report.grid_points(width, height, args.grid)
        files += report.write_maps(model, image, points, choice, stem, args.dpi)
    if 'rank' in kinds:
        written, records = report.write_rank(model, image, choice, stem, args.dpi)
        files += written
        print(f'{stem.name}: {report.rank_text(records)}\n')
    if 'focus' in kinds:
        rows = report.focus_table(model, image)
        files += report.write_focus(rows, stem, args.dpi)
        print(f'{stem.name}: how focused each block is\n{report.focus_text(rows)}\n')
    return files


def _point(text: str) -> tuple[float, float]:
    try:
        x, y = map(float, text.split(','))
    except ValueError:
        raise argparse.ArgumentTypeError(
            f'{text!r} should be two numbers X,Y in pixels, such as 120,80') from None
    return x, y


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f'{text!r} should be a whole number of at least 1')
    return int(text)


if __name__ == '__main__':
    sys.exit(main())
