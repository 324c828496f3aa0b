"""Measure every config of model-index.yml; write the figures into metafiles and READMEs.

Exit status: 0; 1 with --check when a file is not what measuring makes of it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path

from mmengine.utils import track_iter_progress

from flatten_mm.analysis.model_tables import Metafile, metafiles, record, with_table

ROOT = Path(__file__).resolve().parent.parent


def main(argv: Sequence[str] | None = None) -> int:
    """Run the tool; returns its exit status."""
    tool = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    tool.add_argument('--check', action='store_true',
                      help='write nothing; say which files are not up to date')
    args = tool.parse_args(argv)
    found = list(metafiles(ROOT))
    with redirect_stdout(sys.stderr):  # mm libraries log while they build
        for model in track_iter_progress([model for file in found for model in file.models]):
            record(model, ROOT)
    outdated = [path for file in found for path in _refresh(file, write=not args.check)]
    for path in outdated:
        print(f'{"outdated" if args.check else "wrote"}: {path.relative_to(ROOT)}')
    return 1 if args.check and outdated else 0


def _refresh(file: Metafile, write: bool) -> list[Path]:
    """Files of one folder that change."""
    texts = {
        file.path: file.dump(),
        file.readme: with_table(file.readme.read_text(encoding='utf-8'), file.models),
    }
    changed = [path for path, text in texts.items() if path.read_text(encoding='utf-8') != text]
    if write:
        for path in changed:
            path.write_text(texts[path], encoding='utf-8')
    return changed


if __name__ == '__main__':
    sys.exit(main())
