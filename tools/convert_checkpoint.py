"""Turn a released checkpoint into one of mm's (backbone or whole classifier), or back.

Exit status: 0, 1 when the file cannot be converted or written, 2 for a wrong command.
"""
from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from flatten_mm.checkpoint import CheckpointError, convert_checkpoint, save_atomically
from flatten_mm.checkpoint.convert import TARGETS


def main(argv: Sequence[str] | None = None) -> int:
    """Run the tool; returns its exit status."""
    tool = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    tool.add_argument('source', metavar='SRC', help='released, mm, plain or safetensors checkpoint')
    tool.add_argument('target', metavar='DST', type=Path, help='file to write, .pth')
    tool.add_argument('--to', choices=TARGETS, default='backbone',
                      help='backbone: mm backbone for init_cfg (default); classifier: mmpretrain '
                      'ImageClassifier with its head; released: layout of the authors\' scripts')
    tool.add_argument('--force', action='store_true', help='overwrite DST')
    args = tool.parse_args(argv)
    if args.target.suffix == '.safetensors':
        tool.error(f'{args.target} would be written by torch.save; expected a name such as '
                   f'{args.target.with_suffix(".pth").name}')
    try:
        convert(args.source, args.target, args.to, args.force)
    except (OSError, CheckpointError) as error:
        print(f'error: {error}', file=sys.stderr)
        return 1
    return 0


def convert(source: str, target: Path, to: str, force: bool) -> None:
    """Convert, write and report.

    Raises:
        CheckpointError: see :func:`convert_checkpoint`.
        OSError: SRC is missing, DST exists already or cannot be written.
    """
    if target.is_dir():
        raise IsADirectoryError(f'{target} is a folder; give the name of the file to write')
    if not target.parent.is_dir():
        raise FileNotFoundError(f'folder {target.parent} does not exist; make it first')
    if target.exists() and not force:
        raise FileExistsError(f'{target} exists; give another name, or --force to overwrite it')
    content, report = convert_checkpoint(source, to)
    save_atomically(content, target)
    print(report.summary())
    print(f'wrote {target}')


if __name__ == '__main__':
    sys.exit(main())
