"""Data: the embedded demo set, and data sets in folders of a user's own.

``folder_seg`` and ``folder_coco`` register mmseg and mmdet data sets and import those libraries,
so configs name them in ``custom_imports``; importing this package imports neither.
"""

from .demo import DEMO_CLASSES, DemoDataset, make_demo_dataset

__all__ = ['DEMO_CLASSES', 'DemoDataset', 'make_demo_dataset']
