"""What the command-line tools share: their options, and how an error ends them."""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from collections.abc import Callable, Sequence

from mmengine.config import Config, DictAction

from ..hooks import TrainingStopped
from .config import DATA_VARIABLES, load_config
from .errors import UserError, one_line
from .interruption import is_interrupt


def parser(description: str, *positionals: tuple[str, str]) -> argparse.ArgumentParser:
    """A parser with the options of every tool: ``config``, ``--cfg-options``, ``--debug``.

    Args:
        description: First line of the tool's help.
        positionals: (name, help) of positional arguments after ``config``.
    """
    result = argparse.ArgumentParser(description=description)
    result.add_argument('config', help='config file; its default_scope says which mm library')
    for name, text in positionals:
        result.add_argument(name, help=text)
    result.add_argument(
        '--cfg-options', nargs='+', action=DictAction, metavar='KEY=VALUE',
        help='override keys of the config: model.backbone.depth=50, a list as key="[a,b]"')
    result.add_argument(
        '--debug', action='store_true', default=bool(os.environ.get('FLATTEN_DEBUG')),
        help='show the traceback of an error (FLATTEN_DEBUG=1 does the same)')
    return result


def add_data_options(tool: argparse.ArgumentParser, *names: str) -> None:
    """Add the options for a user's own data; ``names`` are keys of ``DATA_VARIABLES``."""
    group = tool.add_argument_group(
        'your own data', 'for configs that read the environment variable named in brackets')
    kinds = {
        'data_root': dict(metavar='DIR', help='folder of the data'),
        'classes': dict(type=_names, metavar='A,B,C', help='class names, in the order of labels'),
        'img_size': dict(type=int, nargs=2, metavar=('H', 'W'), help='image size in pixels'),
        'batch_size': dict(type=_positive, metavar='N', help='images a step and process'),
        'max_iters': dict(type=_positive, metavar='N', help='optimizer steps'),
    }
    for name in names:
        options = kinds[name]
        options['help'] += f' [{DATA_VARIABLES[name]}]'
        group.add_argument(f'--{name.replace("_", "-")}', **options)


def add_launcher(tool: argparse.ArgumentParser) -> None:
    """Add mm's ``--launcher`` and ``--local_rank``."""
    tool.add_argument('--launcher', choices=['none', 'pytorch', 'slurm', 'mpi'], default='none',
                      help='what started the processes of a distributed run')
    # torch.distributed.launch passes it, as --local-rank since torch 2.0
    tool.add_argument('--local_rank', '--local-rank', type=int, default=0, help=argparse.SUPPRESS)


def read_config(args: argparse.Namespace) -> Config:
    """The config that the parsed arguments of a tool name, with its overrides.

    Raises:
        UserError: See :func:`load_config`.
    """
    if 'local_rank' in args:
        os.environ.setdefault('LOCAL_RANK', str(args.local_rank))
    data_options = {name: getattr(args, name) for name in DATA_VARIABLES if name in args}
    return load_config(args.config, args.cfg_options, **data_options)


def run(tool: argparse.ArgumentParser, main: Callable[[argparse.Namespace], int | None],
        argv: Sequence[str] | None = None) -> int:
    """Parse ``argv`` and run ``main``; errors a user can mend are told in one sentence.

    Args:
        tool: The parser.
        main: The work; returns an exit status, None being 0.
        argv: Arguments, ``sys.argv[1:]`` by default.

    Returns:
        Exit status: that of ``main``, of the :class:`UserError` it raised, 75 when a signal stopped
        a training that saved a checkpoint, or 130 when the user interrupted it.
    """
    try:
        args = tool.parse_args(argv)
    except ValueError:  # from DictAction, which splits at the equals sign
        tool.error('--cfg-options takes KEY=VALUE pairs only; put it after the other arguments')
    except RecursionError:  # from DictAction, which reads lists and tuples but no dicts
        tool.error('--cfg-options takes values, lists and tuples; write a dict key by key, as in '
                   'model.backbone.init_cfg.type=Pretrained')
    try:
        return main(args) or 0
    except TrainingStopped as stop:  # has said so in its log
        return stop.code
    except (Exception, KeyboardInterrupt) as error:
        if is_interrupt(error):
            left = f'; {error}' if isinstance(error, KeyboardInterrupt) and str(error) else ''
            print(f'interrupted{left}', file=sys.stderr)
            return 130
        if not isinstance(error, UserError):
            raise
        if args.debug:
            traceback.print_exc()
        print(f'error: {one_line(error)}', file=sys.stderr)
        return error.exit_code


def _names(text: str) -> list[str]:
    names = [name.strip() for name in text.split(',')]
    if not all(names) or len(set(names)) < len(names):
        raise argparse.ArgumentTypeError(
            f'{text!r} should be different names with commas between, such as cat,dog')
    return names


def _positive(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f'{text!r} should be a whole number of at least 1')
    return number
