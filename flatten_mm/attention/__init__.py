"""Focused linear attention, the softmax attention beside it, and the grids both live on."""
from .focused import FocusedAttention, focused_map, linear_attention
from .grid import Windows, resize_grid_table
from .softmax import SoftmaxAttention

__all__ = ['FocusedAttention', 'SoftmaxAttention', 'Windows', 'focused_map', 'linear_attention',
           'resize_grid_table']
