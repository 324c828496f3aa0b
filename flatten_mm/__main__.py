"""Runs a script with flatten_mm imported first: ``python -m flatten_mm SCRIPT [ARGUMENTS]``.

mm's own tools resolve ``_base_`` before ``custom_imports`` bring this package. On the onedl fork a
config that inherits ``mmseg::…`` needs it before (see :func:`.compat.find_mmseg_configs`):
``python -m flatten_mm PATH/TO/mmsegmentation/tools/train.py CONFIG``. With several processes:
``torchrun … -m flatten_mm SCRIPT …``. This project's tools import it by themselves.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path


def main() -> None:
    """Run the script that the command line names, as Python itself would."""
    if len(sys.argv) < 2 or sys.argv[1] in ('-h', '--help'):
        sys.exit('usage: python -m flatten_mm SCRIPT [ARGUMENTS]')
    script = Path(sys.argv[1])
    if not script.is_file():
        sys.exit(f'python -m flatten_mm: there is no script {script}')
    del sys.argv[0]
    sys.path[0] = str(script.resolve().parent)
    runpy.run_path(str(script), run_name='__main__')


if __name__ == '__main__':
    main()
