"""Focused linear attention, softmax and other linear attentions beside it, and their grids."""
from .focused import FocusedAttention, focused_linear_attention, focused_map
from .grid import Windows, resize_grid_table
from .softmax import SoftmaxAttention
from .variants import VARIANTS, VariantAttention

__all__ = ['VARIANTS', 'FocusedAttention', 'SoftmaxAttention', 'VariantAttention', 'Windows',
           'focused_linear_attention', 'focused_map', 'resize_grid_table']
