"""The families; importing this package registers them in mmengine's root MODELS."""
from .cswin import FLattenCSwin
from .deit import FLattenDeiT
from .pvt import FLattenPVT
from .pvt_v2 import FLattenPVTv2
from .swin import FLattenSwin

__all__ = ['FLattenCSwin', 'FLattenDeiT', 'FLattenPVT', 'FLattenPVTv2', 'FLattenSwin']
