"""Training, testing and inference of any mm config, with errors a user can mend."""

from .config import load_config
from .errors import UserError
from .inference import infer
from .runner import build_runner
from .testing import test
from .training import train

__all__ = ['UserError', 'build_runner', 'infer', 'load_config', 'test', 'train']
