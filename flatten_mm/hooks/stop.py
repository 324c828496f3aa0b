"""Stopping when the machine asks for it (SIGTERM of Slurm and spot machines)."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Sequence

import torch
import torch.distributed as dist
from mmengine.dist import is_main_process

EXIT_STOPPED = 75  # EX_TEMPFAIL of sysexits.h: try again later


class TrainingStopped(SystemExit):
    """Ends a training that was asked to stop and has saved where it was.

    Its ``code`` is :data:`EXIT_STOPPED`, the exit status of the process that does not catch it.
    """

    def __init__(self, message: str) -> None:
        super().__init__(EXIT_STOPPED)
        self.message = message

    def __str__(self) -> str:
        return self.message


class StopSignals:
    """Takes signals down, and lets all processes of a run agree on the step at which to stop.

    Args:
        names: Names of the signals, such as ``'SIGTERM'``; those a platform lacks are left out.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self.numbers = [getattr(signal, name) for name in names if hasattr(signal, name)]
        self.received: str | None = None
        self._before: dict[int, object] = {}
        self._group = None
        self._asked = None  # the running sum of the step before: (work, flag)
        self._agreed = False

    def install(self) -> None:
        """Take signals from now on. All processes of a distributed run must call it."""
        if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
            # on the CPU, so that asking never waits for the GPU
            self._group = self._group or dist.new_group(
                backend='gloo' if dist.is_gloo_available() else None)
        if threading.current_thread() is threading.main_thread():  # Python takes them there only
            for number in self.numbers:
                self._before.setdefault(number, signal.signal(number, self._receive))

    def release(self, finished: bool) -> None:
        """Give signals back to what took them before.

        Args:
            finished: All processes call this, so that the last sum can be waited for.
        """
        if threading.current_thread() is threading.main_thread():
            for number, handler in self._before.items():
                signal.signal(number, handler if handler is not None else signal.SIG_DFL)
        self._before.clear()
        if self._asked is not None and finished:
            self._asked[0].wait()
        self._asked = None

    @property
    def alone(self) -> bool:
        """Whether the run has one process."""
        return self._group is None

    def agreed(self) -> bool:
        """Whether to stop at this step; the same answer in all processes that ask as often.

        Asking costs nothing in a single process. Several sum up a flag in the background from
        one step to the next, so they stop one step later.
        """
        if self._group is None:
            self._agreed = self.received is not None
        if self._group is None or self._agreed:
            return self._agreed
        if self._asked is not None:
            work, flag = self._asked
            work.wait()
            self._asked, self._agreed = None, bool(flag.item())
        if not self._agreed:
            flag = torch.tensor([self.received is not None], dtype=torch.int32)
            work = dist.all_reduce(flag, op=dist.ReduceOp.MAX, group=self._group, async_op=True)
            self._asked = work, flag
        return self._agreed

    def least(self, number: int) -> int:
        """The least of the processes' numbers."""
        if self._group is None:
            return number
        value = torch.tensor([number])
        dist.all_reduce(value, op=dist.ReduceOp.MIN, group=self._group)
        return int(value)

    def wait_for_all(self) -> None:
        """Return when all processes are here."""
        if self._group is not None:
            dist.barrier(group=self._group)

    def _receive(self, number: int, frame: object) -> None:
        if self.received is None and is_main_process():
            # print and logging are not safe in a signal handler
            os.write(2, f'{signal.Signals(number).name}: saving a checkpoint at the next step, '
                        'then stopping\n'.encode())
        self.received = signal.Signals(number).name
