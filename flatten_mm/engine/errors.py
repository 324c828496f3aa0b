"""Errors a user can mend, told in one sentence."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from ..checkpoint.read import printable


class UserError(Exception):
    """Something in the command, the config or the files given to it is wrong.

    The message is one sentence that names the value, what was expected and the mend; the tools
    print it without a traceback.

    Args:
        message: The sentence.
        exit_code: Exit status of the tool that meets this error.
    """

    def __init__(self, message: str, exit_code: int = 1) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def one_line(error: BaseException) -> str:
    """The message of ``error`` on one line, without the traceback a worker process adds."""
    if isinstance(error, KeyError) and len(error.args) == 1:
        text = str(error.args[0])  # str(KeyError) would add quotes
    else:
        text = str(error)
    if 'Original Traceback' in text:  # raised again by torch's DataLoader
        text = re.sub(r'^\w+(\.\w+)*: ', '', text.strip().splitlines()[-1])
    # a file's names may hold anything, also codes that a terminal obeys
    return printable(re.sub(r'\s+', ' ', text)).strip() or type(error).__name__


@contextmanager
def reported_as(doing: str) -> Iterator[None]:
    """Turn any exception of the block into a :class:`UserError` that begins with ``doing``.

    Args:
        doing: What could not be done, such as ``'cannot build the model'``.

    Raises:
        UserError: In place of the exception, which stays as its cause.
    """
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        raise UserError(f'{doing}: {one_line(error)}') from error
