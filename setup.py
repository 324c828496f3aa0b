"""Packaging of flatten_mm.

The heavy packages are extras: `pip install .` in an environment that has an mm stack (the official
one or the onedl fork, whose distributions have other names) installs and replaces nothing of it.
"""

from __future__ import annotations

import re
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent

# Where `mim` looks for the configs and tools of an installed package.
MIM = Path('flatten_mm', '.mim')


def version() -> str:
    """`__version__` of flatten_mm/__init__.py, read without importing it (and torch)."""
    source = (ROOT / 'flatten_mm' / '__init__.py').read_text(encoding='utf-8')
    match = re.search(r"""(?m)^__version__ *= *['"]([^'"]+)['"]""", source)
    if match is None:
        raise RuntimeError("flatten_mm/__init__.py has no line `__version__ = '…'`")
    return match.group(1)


class BuildWithConfigs(build_py):
    """Puts configs and tools into the built package; the source tree stays as it is."""

    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            for source, target in self.mim_files():
                self.mkpath(str(target.parent))
                self.copy_file(str(source), str(target))

    def mim_files(self) -> list[tuple[Path, Path]]:
        """(file in the source tree, where it goes) of everything for `.mim`."""
        configs = (ROOT / 'configs').rglob('*')
        files = [path for path in configs if path.suffix in ('.py', '.yml', '.yaml', '.md')]
        files += (ROOT / 'tools').glob('*.py')
        if (ROOT / 'model-index.yml').exists():
            files.append(ROOT / 'model-index.yml')
        folder = Path(self.build_lib) / MIM
        return [(path, folder / path.relative_to(ROOT)) for path in sorted(files)]

    def get_outputs(self, include_bytecode: bool = True) -> list[str]:
        outputs = super().get_outputs(include_bytecode)
        if self.editable_mode:
            return outputs
        return outputs + [str(target) for _, target in self.mim_files()]


setup(
    name='flatten-mm',
    version=version(),
    description='Focused Linear Attention (FLatten Transformer) backbones for mmseg, mmdet and '
    'mmpretrain',
    license='Apache-2.0',
    python_requires='>=3.9',
    packages=find_packages(include=['flatten_mm', 'flatten_mm.*']),
    # No bounds: whatever version is there stays, and it has no needs of its own.
    install_requires=['safetensors'],
    extras_require={
        # What requirements/ pins for the project's own environment. mmcv needs its operators.
        'mm': [
            'torch>=2.1',
            'torchvision>=0.16',
            'mmengine>=0.10.7',
            'mmcv>=2.1.0,<2.2',
            'mmdet>=3.3.0',
            'mmsegmentation>=1.2.2',
            'mmpretrain>=1.2.0',
            'ftfy',
            'regex',
        ],
        # For tools/export_onnx.py, with torch 2.9 or later.
        'export': ['onnx', 'onnxruntime', 'onnxscript'],
        'dev': ['pytest', 'hypothesis', 'ruff'],
    },
    cmdclass={'build_py': BuildWithConfigs},
    zip_safe=False,
    classifiers=[
        'Programming Language :: Python :: 3',
        'Operating System :: POSIX :: Linux',
        'Topic :: Scientific/Engineering :: Artificial Intelligence',
    ],
)
