"""Checkpoints: reading them safely, telling what they are, loading them into a backbone."""
from .identify import Identity, identify
from .load import LoadReport, load_backbone
from .read import Checkpoint, CheckpointError, read_checkpoint

__all__ = ['Checkpoint', 'CheckpointError', 'Identity', 'LoadReport', 'identify',
           'load_backbone', 'read_checkpoint']
