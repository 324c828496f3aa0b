"""Time and memory of backbones side by side: inference and training steps, CPU and CUDA.

A MODEL is a config (its backbone is measured) or a name: FLattenPVT:tiny, FLattenPVT:tiny:SSSS,
FLattenSwin:small:window_size=7, mmdet.SwinTransformer, mmdet.PyramidVisionTransformer:tiny.
released:FLattenPVT:tiny computes as the released code does (from a checkout of the repository
only); compiled:MODEL goes through torch.compile. Models take turns, so that whatever else the
machine does falls on all alike; ratios are to the baseline's median in the same case.

Exit status: 0, 3 when some models failed in some cases, 1 on another error.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from flatten_mm.analysis import benchmark as bench
from flatten_mm.analysis.benchmark_figures import accuracy_figure, pixels_figure
from flatten_mm.analysis.benchmark_models import paper_accuracies, parse_spec
from flatten_mm.engine import UserError, cli
from flatten_mm.engine.errors import reported_as
from flatten_mm.engine.folders import make_folder, refuse_used
from flatten_mm.engine.inference import resolve_device

SOME_FAILED = 3


def main(argv: Sequence[str] | None = None) -> int:
    """Run the tool; returns its exit status."""
    tool = argparse.ArgumentParser(description=__doc__,
                                   formatter_class=argparse.RawDescriptionHelpFormatter)
    tool.add_argument('models', nargs='*', metavar='MODEL', help='see above')
    tool.add_argument('--from', dest='records', nargs='+', metavar='FILE', help='in place of '
                      'models: JSON files of earlier runs, to make a table and pictures of')
    tool.add_argument('--baseline', metavar='MODEL', help='what ratios are to; the first model')
    tool.add_argument('--modes', nargs='+', choices=bench.MODES, default=['infer'],
                      help='forward passes, forward and backward, or both (infer)')
    tool.add_argument('--sizes', nargs='+', type=_size, default=[(224, 224)], metavar='N|HxW',
                      help='image sizes in pixels (224)')
    tool.add_argument('--dtypes', nargs='+', choices=list(bench.DTYPES), default=['fp32'],
                      help='bf16 and fp16 are autocast, fp16 on CUDA only (fp32)')
    tool.add_argument('--batch-sizes', nargs='+', type=_count, default=[1], metavar='N',
                      help='images at once (1)')
    tool.add_argument('--devices', nargs='+', metavar='DEVICE',
                      help='cpu, cuda, cuda:1; the GPU by default where there is one')
    tool.add_argument('--repeats', type=_count, default=7, metavar='N',
                      help='rounds whose median counts (7)')
    tool.add_argument('--warmup', type=_count, default=1, metavar='N',
                      help='runs of each model before them (1)')
    tool.add_argument('--clock', choices=bench.CLOCKS, default='wall', help='cpu: processor time, '
                      'steadier on a busy machine, of one thread; CUDA is timed by events (wall)')
    tool.add_argument('--threads', type=_count, metavar='N', help='of torch on the CPU')
    tool.add_argument('--peak', action='store_true', help='on the CPU, the peak memory of a run '
                      'too, in a process of its own for every model and case (Linux; not of '
                      'compiled models); on CUDA it is always taken')
    tool.add_argument('--compile', action='store_true', help='every model through torch.compile')
    tool.add_argument('--json', metavar='FILE', help='write what was measured there, case by case')
    tool.add_argument('--figure', metavar='FILE', help='picture of time and memory by pixels')
    tool.add_argument('--accuracy-figure', metavar='FILE', help='picture of the accuracy the paper '
                      'reports by measured time, of the first case')
    tool.add_argument('--accuracy', nargs='+', default=[], type=_accuracy, metavar='MODEL=TOP1',
                      help='accuracies that picture has no other source for')
    tool.add_argument('--overwrite', action='store_true', help='replace files that exist')
    tool.add_argument('--debug', action='store_true', help='show the traceback of an error')
    return cli.run(tool, _benchmark, argv)


def _benchmark(args: argparse.Namespace) -> int:
    for option in ('json', 'figure', 'accuracy_figure'):
        file = getattr(args, option)
        if file:
            option = f'--{option.replace("_", "-")}'
            if not args.overwrite:
                refuse_used(Path(file), option, 'choose another path or give --overwrite')
            make_folder(Path(file).parent, option)
    if bool(args.models) == bool(args.records):
        raise UserError('give models to measure, or --from FILE with earlier runs: one of the two')
    found = _read(args.records) if args.records else _measure(args)
    print(bench.table(found))
    if args.figure:
        _save(pixels_figure(found), args.figure, '--figure')
    if args.accuracy_figure:
        _save(_accuracy_figure(args, found), args.accuracy_figure, '--accuracy-figure')
    if all(m.error for m in found):
        raise UserError(f'no model could be measured; the first: {found[0].error}')
    return SOME_FAILED if any(m.error for m in found) else 0


def _measure(args: argparse.Namespace) -> list[bench.Measurement]:
    names = list(dict.fromkeys(args.models))
    if args.baseline and args.baseline not in names:
        names.insert(0, args.baseline)
    if args.compile:
        names = [name if name.startswith('compiled:') else f'compiled:{name}' for name in names]
    specs = [parse_spec(name) for name in names]
    baseline = names[0]
    if args.baseline:
        baseline = next(name for name in names if name.removeprefix('compiled:') ==
                        args.baseline.removeprefix('compiled:'))
    devices = [resolve_device(device) for device in args.devices or [None]]
    cases = [bench.Case(mode, dtype, *size, batch, device) for device, mode, dtype, batch, size in
             itertools.product(devices, args.modes, args.dtypes, args.batch_sizes, args.sizes)]
    threads = args.threads or (1 if args.clock == 'cpu' else None)
    settings = bench.Settings(args.repeats, args.warmup, args.clock, args.peak, threads)
    found: list[bench.Measurement] = []
    for measurements in bench.benchmark(specs, cases, settings, baseline, _say):
        found += measurements
        if args.json:  # after every case: what an interrupted run has measured stays
            _write(args, found, bench.environment(settings, devices), baseline)
    where = bench.environment(settings, devices)
    print(', '.join(f'{name} {value}' for name, value in where.items()))
    print(f'ratios to {baseline}\n')
    return found


def _write(args: argparse.Namespace, found: list[bench.Measurement], environment: dict,
           baseline: str) -> None:
    content = dict(environment=environment, baseline=baseline, measurements=bench.to_json(found))
    with reported_as('cannot write --json'):
        Path(args.json).write_text(json.dumps(content, indent=1) + '\n', encoding='utf-8')


def _read(files: Sequence[str]) -> list[bench.Measurement]:
    found = []
    for file in files:
        with reported_as(f'--from {file} is no record of this tool'):
            content = json.loads(Path(file).read_text(encoding='utf-8'))
            found += bench.from_json(content['measurements'])
    return found


def _accuracy_figure(args: argparse.Namespace, found: list[bench.Measurement]):
    first = [m for m in found if m.case == found[0].case]
    accuracies = paper_accuracies([parse_spec(m.model) for m in first]) | dict(args.accuracy)
    missing = [m.model for m in first if m.model not in accuracies]
    if missing:
        _say(f'not in the accuracy picture, as no accuracy is known: {", ".join(missing)}')
    if len(missing) == len(first):
        raise UserError('the paper\'s accuracy is known for none of these models; give '
                        f'--accuracy {first[0].model}=PERCENT')
    return accuracy_figure(first, accuracies)


def _save(figure, file: str, option: str) -> None:
    with reported_as(f'cannot write {option}'):
        figure.savefig(file, dpi=100)
    _say(f'written: {file}')


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _size(text: str) -> tuple[int, int]:
    sides = text.lower().split('x')
    if len(sides) > 2 or not all(side.isdecimal() and int(side) for side in sides):
        raise argparse.ArgumentTypeError(f'{text!r} should be a size in pixels such as 512 or '
                                         '512x2048 (height x width)')
    return int(sides[0]), int(sides[-1])


def _accuracy(text: str) -> tuple[str, float]:
    name, equals, value = text.rpartition('=')
    try:
        number = float(value)
    except ValueError:
        equals = ''
    if not equals:
        raise argparse.ArgumentTypeError(f'{text!r} should be MODEL=PERCENT')
    return name, number


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f'{text!r} should be a whole number of at least 1')
    return int(text)


if __name__ == '__main__':
    sys.exit(main())
