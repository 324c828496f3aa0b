"""Hooks of mmengine for trainings that are interrupted: nothing is lost, nothing differs."""

from .checkpoint import ResumableCheckpointHook
from .files import CheckpointWriteError, newest_checkpoint
from .stop import EXIT_STOPPED, TrainingStopped

__all__ = ['EXIT_STOPPED', 'CheckpointWriteError', 'ResumableCheckpointHook', 'TrainingStopped',
           'newest_checkpoint']
