"""Print a config as one file: everything inherited written out, overrides applied."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from flatten_mm.engine import cli


def main(argv: Sequence[str] | None = None) -> int:
    """Run the tool; returns its exit status."""
    return cli.run(cli.parser(__doc__), _print_config, argv)


def _print_config(args: argparse.Namespace) -> None:
    print(cli.read_config(args).pretty_text, end='')


if __name__ == '__main__':
    sys.exit(main())
