"""Time and memory of backbones side by side: forward passes and training steps.

Models take turns, one run each a round, so that whatever else the machine does falls on all of
them alike; what is told is the median and how far the middle half of the runs lies apart.
"""
from __future__ import annotations

import multiprocessing
import os
import platform
import re
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..engine.errors import UserError, one_line
from .benchmark_models import ModelSpec, build

MODES = ('infer', 'train')
DTYPES = {'fp32': None, 'bf16': torch.bfloat16, 'fp16': torch.float16}  # the last two: autocast
CLOCKS = ('wall', 'cpu')
_WARM_UP_SIDE = 64  # pixels, of the image before a peak is taken
Say = Callable[[str], None]


@dataclass(frozen=True)
class Case:
    """What every model does in turn.

    Attributes:
        mode: ``'infer'`` (forward, eval mode, no gradients) or ``'train'`` (forward in train mode
            and backward of the sum of the outputs; no optimizer step).
        dtype: ``'fp32'``, or ``'bf16'``, ``'fp16'`` under autocast.
        height, width: of the images in pixels.
        batch: images at once.
        device: as torch names it.
    """

    mode: str
    dtype: str
    height: int
    width: int
    batch: int = 1
    device: str = 'cpu'

    def __str__(self) -> str:
        return (f'{self.mode} {self.dtype} {self.height}x{self.width} batch {self.batch} '
                f'on {self.device}')


@dataclass(frozen=True)
class Settings:
    """How to measure.

    Attributes:
        repeats: rounds whose median counts.
        warmup: runs of each model before them.
        clock: ``'wall'``, or ``'cpu'``: processor time of this process, which other processes
            disturb less; on CUDA events are taken whatever this says.
        peak: take peak memory on the CPU too, in a process a model and case.
        threads: of torch on the CPU; None leaves torch's own choice.
    """

    repeats: int = 7
    warmup: int = 1
    clock: str = 'wall'
    peak: bool = False
    threads: int | None = None


@dataclass
class Measurement:
    """One model in one case. Ratios are to the baseline's figure in the same case.

    Attributes:
        times: seconds of every round.
        median: of ``times``.
        spread: interquartile range of ``times`` over their median.
        images_per_second: throughput at the median.
        saved_bytes: distinct storages that autograd keeps for the backward pass (train only).
        peak_bytes: most memory that one run adds to what is there before it.
        error: why there are no figures.
    """

    model: str
    case: Case
    times: list[float] = field(default_factory=list)
    median: float | None = None
    spread: float | None = None
    images_per_second: float | None = None
    ratio: float | None = None
    saved_bytes: int | None = None
    saved_ratio: float | None = None
    peak_bytes: int | None = None
    peak_ratio: float | None = None
    error: str | None = None


def benchmark(specs: Sequence[ModelSpec], cases: Iterable[Case], settings: Settings,
              baseline: str, say: Say = lambda text: None) -> Iterator[list[Measurement]]:
    """Measure every model in every case; a case's measurements as soon as they are there.

    Args:
        specs: the models.
        cases: a model that fails in a case (memory) is left out of it and says so.
        settings: how.
        baseline: text of the spec that ratios are to.
        say: is told what goes on.

    Raises:
        UserError: a model cannot be built, or a case or setting cannot be measured here.
    """
    cases = list(cases)
    check(cases, settings)
    if settings.threads:
        torch.set_num_threads(settings.threads)
    if settings.peak:  # the server of the children imports once and forks from then on
        libraries = {f'{spec.scope}.models' for spec in specs if spec.scope}
        multiprocessing.set_forkserver_preload([__name__, *sorted(libraries)])
    models: dict[str, dict[str, nn.Module]] = {}
    for number, case in enumerate(cases, 1):
        if case.device not in models:
            models.clear()
            models[case.device] = {spec.text: build(spec, case.device) for spec in specs}
        heading = f'[{number}/{len(cases)}] {case}'
        say(heading)
        found = measure(models[case.device], case, settings, lambda text, heading=heading:
                        say(f'{heading}: {text}'))
        if settings.peak and not case.device.startswith('cuda'):
            for spec, measurement in zip(specs, found):
                if not measurement.error and not spec.compiled:
                    say(f'{heading}: peak memory of {spec.text}')
                    measurement.peak_bytes = peak_in_child(spec, case, settings.threads)
        add_ratios(found, baseline)
        yield found


def check(cases: Sequence[Case], settings: Settings) -> None:
    """Refuse what cannot be measured before anything is."""
    for case in cases:
        on_cuda = case.device.startswith('cuda')
        if case.dtype == 'fp16' and not on_cuda:
            raise UserError(f'dtype fp16 is for CUDA; on {case.device} choose fp32 or bf16')
        if settings.clock == 'cpu' and on_cuda:
            raise UserError('--clock cpu sees nothing of a GPU; leave it out for CUDA, where '
                            'events are taken')
    if settings.clock == 'cpu' and settings.threads != 1:
        raise UserError(f'--clock cpu with {settings.threads or "several"} threads adds their '
                        'times up, which is no latency; give --threads 1 or --clock wall')
    if settings.peak and not Path('/proc/self/clear_refs').exists():
        raise UserError('--peak reads the peak of a process from /proc, which only Linux has; '
                        'leave it out')


def measure(models: dict[str, nn.Module], case: Case, settings: Settings,
            say: Say = lambda text: None) -> list[Measurement]:
    """Measure models in one case, round by round; the order turns round every round."""
    torch.manual_seed(0)
    found = [Measurement(name, case) for name in models]
    steps = [_Step(model, case) for model in models.values()]
    for step, measurement in zip(steps, found):
        say(f'warming up {measurement.model}')
        try:
            _warm_up(step, measurement, settings)
        except (RuntimeError, MemoryError, ValueError, TypeError, AssertionError) as error:
            measurement.error = one_line(error)[:200]
            say(f'{measurement.model} fails: {measurement.error}')
    running = [pair for pair in zip(steps, found) if pair[1].error is None]
    for number in range(settings.repeats):
        say(f'round {number + 1} of {settings.repeats}')
        for step, measurement in running[::-1] if number % 2 else running:
            measurement.times.append(step.time(settings.clock))
    for _, measurement in running:
        summarize(measurement)
    return found


def _warm_up(step: _Step, measurement: Measurement, settings: Settings) -> None:
    for _ in range(max(settings.warmup, 1)):
        step.time(settings.clock)
    if step.case.mode == 'train':
        measurement.saved_bytes = saved_bytes(step.forward)
    if step.on_cuda:
        measurement.peak_bytes = step.cuda_peak()


def summarize(measurement: Measurement) -> None:
    """Median, spread and throughput from the times."""
    times = measurement.times
    measurement.median = statistics.median(times)
    low, _, high = statistics.quantiles(times, n=4, method='inclusive') if len(times) > 1 else (
        times * 3)
    measurement.spread = (high - low) / measurement.median
    measurement.images_per_second = measurement.case.batch / measurement.median


def add_ratios(found: Sequence[Measurement], baseline: str) -> None:
    """Ratios to the baseline's figures, where it has them."""
    base = next((m for m in found if m.model == baseline), None)
    for measurement in found:
        for figure, ratio in (('median', 'ratio'), ('saved_bytes', 'saved_ratio'),
                              ('peak_bytes', 'peak_ratio')):
            own, its = getattr(measurement, figure), base and getattr(base, figure)
            setattr(measurement, ratio, own / its if own is not None and its else None)


class _Step:
    """A model doing what a case asks for."""

    def __init__(self, model: nn.Module, case: Case) -> None:
        self.model, self.case = model, case
        self.on_cuda = case.device.startswith('cuda')
        channels = getattr(model, 'in_channels', 3)
        self.image = torch.randn(case.batch, channels, case.height, case.width,
                                 device=case.device)

    def forward(self) -> list[Tensor]:
        self.model.train(self.case.mode == 'train')
        with _autocast(self.case), torch.set_grad_enabled(self.case.mode == 'train'):
            return _tensors(self.model(self.image))

    def run(self) -> None:
        outputs = self.forward()
        if self.case.mode == 'train':
            sum(out.sum(dtype=torch.float32) for out in outputs).backward()

    def time(self, clock: str) -> float:
        """Seconds of one run, gradients of the one before thrown away."""
        self.model.zero_grad(set_to_none=True)
        if self.on_cuda:
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda.synchronize()
            start.record()
            self.run()
            end.record()
            torch.cuda.synchronize()
            return start.elapsed_time(end) / 1000
        now = time.process_time if clock == 'cpu' else time.perf_counter
        start = now()
        self.run()
        return now() - start

    def cuda_peak(self) -> int:
        self.model.zero_grad(set_to_none=True)
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        self.run()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before


def _autocast(case: Case) -> AbstractContextManager:
    dtype = DTYPES[case.dtype]
    if dtype is None:
        return nullcontext()
    return torch.autocast(case.device.split(':')[0], dtype)


def _tensors(outputs: Any) -> list[Tensor]:
    """The tensors of what a backbone returns, however nested."""
    if isinstance(outputs, Tensor):
        return [outputs]
    return [tensor for out in outputs for tensor in _tensors(out)]


def saved_bytes(run: Callable[[], Any]) -> int:
    """Bytes of the distinct storages that autograd keeps for backward during ``run()``."""
    storages: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        storages[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        outputs = run()
    del outputs
    return sum(storages.values())


# ---- peak memory on the CPU: a fresh process a measurement, whose allocator has kept nothing


def peak_in_child(spec: ModelSpec, case: Case, threads: int | None) -> int | None:
    """Bytes by which one run raises the resident memory of a fresh process; None if it died."""
    context = multiprocessing.get_context('forkserver')
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=_send_peak, args=(sender, spec, case, threads))
    child.start()
    sender.close()
    try:
        return receiver.recv()
    except EOFError:
        return None
    finally:
        child.join()


def _send_peak(sender: Any, spec: ModelSpec, case: Case, threads: int | None) -> None:
    if threads:
        torch.set_num_threads(threads)
    model = build(spec)
    small = Case(case.mode, case.dtype, _WARM_UP_SIDE, _WARM_UP_SIDE, device=case.device)
    _Step(model, small).run()  # libraries load and plan at their first call
    model.zero_grad(set_to_none=True)
    step = _Step(model, case)
    Path('/proc/self/clear_refs').write_text('5')  # the peak starts again from here
    before = _resident('VmRSS')
    step.run()
    sender.send(_resident('VmHWM') - before)


def _resident(name: str) -> int:
    """A figure of /proc/self/status in bytes."""
    return 1024 * int(re.search(rf'{name}:\s+(\d+) kB', Path('/proc/self/status').read_text())[1])


# ---- what is told


def environment(settings: Settings, devices: Iterable[str]) -> dict[str, Any]:
    """Where and how it was measured, for the record."""
    names = ('torch', 'mmengine', 'mmcv', 'mmdet', 'mmseg', 'mmpretrain')
    libraries = {name: str(sys.modules[name].__version__) for name in names
                 if name in sys.modules}  # those that took part
    found = dict(
        date=datetime.now(timezone.utc).isoformat(timespec='seconds'),
        cpu=_cpu_name(), cores=os.cpu_count(), threads=torch.get_num_threads(),
        clock=settings.clock, repeats=settings.repeats, warmup=settings.warmup,
        load=os.getloadavg()[0] if hasattr(os, 'getloadavg') else None,
        python=platform.python_version(), system=platform.platform(), **libraries)
    gpus = [torch.cuda.get_device_name(device) for device in devices if device.startswith('cuda')]
    return dict(found, gpus=gpus, cuda=torch.version.cuda) if gpus else found


def _cpu_name() -> str:
    info = Path('/proc/cpuinfo')
    names = re.findall(r'model name\s*:\s*(.+)', info.read_text()) if info.exists() else []
    return names[0] if names else platform.processor() or platform.machine()


def table(found: Sequence[Measurement]) -> str:
    """A Markdown table, a row a model and case; columns without figures are left out."""
    columns: dict[str, Callable[[Measurement], str]] = {
        'case': lambda m: str(m.case),
        'model': lambda m: m.model,
        'median ms': lambda m: m.error or _figure(m.median, 1e3, '.1f'),
        'spread': lambda m: _figure(m.spread, 100, '.0f', ' %'),
        'images/s': lambda m: _figure(m.images_per_second, 1, '.2f'),
        'time ratio': lambda m: _figure(m.ratio, 1, '.2f'),
        'saved MiB': lambda m: _figure(m.saved_bytes, 2**-20, '.0f'),
        'saved ratio': lambda m: _figure(m.saved_ratio, 1, '.2f'),
        'peak MiB': lambda m: _figure(m.peak_bytes, 2**-20, '.0f'),
        'peak ratio': lambda m: _figure(m.peak_ratio, 1, '.2f'),
    }
    texts = {name: [text(m) for m in found] for name, text in columns.items()}
    texts = {name: column for name, column in texts.items() if any(column)}
    widths = {name: max(map(len, (name, *column))) for name, column in texts.items()}
    lines = ['| ' + ' | '.join(name.ljust(widths[name]) for name in texts) + ' |',
             '|' + '|'.join('-' * (width + 2) for width in widths.values()) + '|']
    for i in range(len(found)):
        lines.append('| ' + ' | '.join(column[i].ljust(widths[name])
                                       for name, column in texts.items()) + ' |')
    return '\n'.join(lines)


def _figure(value: float | None, factor: float, form: str, unit: str = '') -> str:
    return '' if value is None else f'{value * factor:{form}}{unit}'


def to_json(found: Sequence[Measurement]) -> list[dict[str, Any]]:
    """Plain types."""
    return [asdict(measurement) for measurement in found]


def from_json(records: Sequence[dict[str, Any]]) -> list[Measurement]:
    """What :func:`to_json` made.

    Raises:
        TypeError, KeyError: they are something else.
    """
    return [Measurement(**{**record, 'case': Case(**record['case'])}) for record in records]
