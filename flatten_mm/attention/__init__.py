"""Focused linear attention, the softmax attention beside it, and the grids both live on."""
from .focused import FocusedAttention, focused_linear_attention, focused_map
from .grid import Windows, resize_grid_table
from .softmax import SoftmaxAttention

__all__ = ['FocusedAttention', 'SoftmaxAttention', 'Windows', 'focused_linear_attention',
           'focused_map', 'resize_grid_table']
