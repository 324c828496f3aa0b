"""Checkpoints: reading them safely, telling what they are, loading and converting them."""
from .convert import convert_checkpoint, save_atomically
from .identify import Identity, identify
from .load import LoadReport, load_backbone
from .read import Checkpoint, CheckpointError, read_checkpoint

__all__ = ['Checkpoint', 'CheckpointError', 'Identity', 'LoadReport', 'convert_checkpoint',
           'identify', 'load_backbone', 'read_checkpoint', 'save_atomically']
