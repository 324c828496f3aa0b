"""Focused Linear Attention backbones (FLatten Transformer, ICCV 2023) for OpenMMLab.

Importing this package registers the backbones and :class:`ResumableCheckpointHook` in mmengine's
root registries, so that the mmseg, mmdet and mmpretrain scopes all find them:
``custom_imports = dict(imports=['flatten_mm'])``.
"""
from .backbones import FLattenCSwin, FLattenDeiT, FLattenPVT, FLattenPVTv2, FLattenSwin
from .compat import mend
from .hooks import ResumableCheckpointHook

__version__ = '0.1.0'

__all__ = ['FLattenCSwin', 'FLattenDeiT', 'FLattenPVT', 'FLattenPVTv2', 'FLattenSwin',
           'ResumableCheckpointHook', '__version__']

mend()
