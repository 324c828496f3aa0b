"""Trainings killed and stopped at chosen moments end as one without a break, bit for bit."""
from __future__ import annotations

import functools
import os
import signal
import time
from pathlib import Path

import mmpretrain.datasets
import mmpretrain.evaluation
import mmpretrain.models
import mmpretrain.visualization  # noqa: F401  once, before children fork
import pytest
import torch
from interrupted import (
    CHECKPOINT,
    LAST,
    cut_in_half,
    differences,
    in_child,
    interruptible_config,
    kill_at,
    outcome,
)
from mmengine.evaluator import Evaluator
from mmengine.hooks import EMAHook
from mmengine.runner import Runner
from tiny import write_data

from flatten_mm.engine import load_config, train
from flatten_mm.engine import training as training_module
from flatten_mm.hooks import EXIT_STOPPED, files

PLACES = {
    'step': (torch.optim.AdamW, 'step', {}),
    'validation': (Evaluator, 'process', {}),
    'half written': (files.os, 'fsync', dict(first=cut_in_half)),
    'not renamed': (files.os, 'replace', {}),
    'renamed': (files.os, 'replace', dict(after=True)),
    'removal': (files.WholeFilesBackend, 'remove', {}),
}


@pytest.fixture(scope='module', autouse=True)
def one_thread():
    """Threads do not survive a fork."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Trainings:
    """Trains one config in child processes."""

    def __init__(self, folder: Path, data: Path, by_epoch: bool, **replaced: str) -> None:
        self.folder = folder
        self.last = LAST[by_epoch]
        self.config = interruptible_config(folder, data, by_epoch, **replaced)
        assert self.run('whole') == 0, self.log('whole')
        self.whole = outcome(folder / 'whole', self.last)

    def run(self, name: str, interrupt=lambda: None) -> int:
        """Begin or resume the training in a folder; ``interrupt`` prepares its end."""
        def work():
            interrupt()
            cfg = load_config(self.config)
            cfg.experiment_name = str(os.getpid())
            train(cfg, work_dir=self.folder / name, resume=name != 'whole')
        return in_child(work, self.folder / f'{name}.log')

    def log(self, name: str) -> str:
        return (self.folder / f'{name}.log').read_text()

    def differences(self, name: str) -> list[str]:
        """What the training in a folder left that the one without a break did not."""
        return list(differences(self.whole, outcome(self.folder / name, self.last)))


@pytest.fixture(scope='module')
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp('interruption') / 'data'
    write_data(folder)
    return folder


@pytest.fixture(scope='module')
def trainings(tmp_path_factory, data):
    """Function of (by_epoch, num_workers) that gives its :class:`Trainings`."""
    made = {}

    def get(by_epoch=False, workers=0):
        if (by_epoch, workers) not in made:
            made[by_epoch, workers] = Trainings(
                tmp_path_factory.mktemp('trainings'), data, by_epoch,
                **{'num_workers=0': f'num_workers={workers}, persistent_workers={workers > 1}'})
        return made[by_epoch, workers]
    return get


def send(place: str, count: int, **options):
    owner, name, more = PLACES[place]
    return lambda: kill_at(owner, name, count, **{**more, **options})


def test_the_seed_alone_decides(trainings):
    """What the comparisons below rest on."""
    same = trainings()
    assert same.run('again') == 0
    assert same.differences('again') == []
    assert same.whole['files'] == ['best_accuracy_top1_iter_6.pth', 'iter_12.pth']


# Each list is one training: killed, resumed, killed, …
@pytest.mark.parametrize('by_epoch, workers, kills', [
    (False, 0, [('step', 2), ('half written', 1), ('not renamed', 2), ('validation', 2),
                ('half written', 1), ('step', 2)]),
    (False, 0, [('renamed', 1), ('renamed', 3), ('renamed', 4), ('removal', 1), ('removal', 2),
                ('step', 3)]),
    (True, 0, [('step', 6), ('validation', 3), ('half written', 5), ('removal', 1), ('step', 3)]),
    (False, 1, [('step', 5), ('half written', 1), ('step', 4)]),
    (True, 2, [('step', 6), ('half written', 5)]),
], ids=['steps', 'renames', 'epochs', 'worker', 'persistent workers'])
def test_killed(by_epoch, workers, kills, trainings, request):
    training = trainings(by_epoch, workers)
    name = f'killed {request.node.callspec.id}'
    step = 0
    for kill in kills:
        assert training.run(name, send(*kill)) == -signal.SIGKILL, training.log(name)
        newest = files.newest_checkpoint(training.folder / name, pytest.fail)
        before, step = step, torch.load(newest)['meta']['iter'] if newest else 0
        assert step >= before  # none was lost
    assert training.run(name) == 0, training.log(name)
    assert training.differences(name) == []


@pytest.mark.parametrize('by_epoch, workers, stops', [
    (False, 0, [('step', 1, 1), ('step', 4, 5), ('validation', 2, 6), ('half written', 1, 7)]),
    (True, 0, [('step', 2, 2), ('step', 4, 6), ('step', 2, 8)]),
    (True, 2, [('step', 6, 6)]),
], ids=['iters', 'epochs', 'persistent workers'])
def test_stopped(by_epoch, workers, stops, trainings, request):
    """A signal while a step, a validation or a checkpoint is under way; ``step`` is where."""
    training = trainings(by_epoch, workers)
    name = f'stopped {request.node.callspec.id}'
    for place, count, step in stops:
        number = signal.SIGUSR1 if count % 2 else signal.SIGTERM
        code = training.run(name, send(place, count, number=number, first=lambda *args: None))
        assert code == EXIT_STOPPED == 75, training.log(name)
        newest = files.newest_checkpoint(training.folder / name)
        assert torch.load(newest)['meta']['iter'] == step
        said = training.log(name).splitlines()
        assert f'{number.name}: saving a checkpoint at the next step, then stopping' in said
        assert any(line.endswith(f'stopped by {number.name} at iteration {step}; go on from '
                                 f'{newest} with --resume') for line in said)
    assert training.run(name) == 0, training.log(name)
    assert training.differences(name) == []


def test_a_second_signal_changes_nothing(trainings):
    training = trainings()

    def twice():
        send('step', 2, number=signal.SIGTERM)()
        send('half written', 1, number=signal.SIGTERM, first=lambda *args: None)()
    assert training.run('twice', twice) == EXIT_STOPPED
    assert files.newest_checkpoint(training.folder / 'twice').name == 'stopped_iter_2.pth'


def test_a_signal_to_all_processes_spares_the_workers(trainings):
    """Slurm sends it to each process of a job step."""
    training = trainings(False, 1)

    def signal_all(*args):
        pid = os.fork()
        if pid == 0:  # torch's workers take one from their parent as the end of the work
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            os.killpg(0, signal.SIGTERM)
            os._exit(0)
        os.waitpid(pid, 0)
        time.sleep(0.3)

    def group():
        os.setpgid(0, 0)
        send('step', 5, number=0, first=signal_all)()
    assert training.run('group', group) == EXIT_STOPPED, training.log('group')
    assert training.run('group') == 0
    assert training.differences('group') == []


def test_a_stop_in_validation_saves_the_weights_of_training(tmp_path, data):
    """Not those of EMA, which are in the model then; no checkpoint was due at the step."""
    training = Trainings(tmp_path, data, False, **{'val_interval=3': 'val_interval=2'})
    signalled = send('validation', 2, number=signal.SIGTERM)
    assert training.run('stopped', signalled) == EXIT_STOPPED, training.log('stopped')
    assert files.newest_checkpoint(tmp_path / 'stopped').name == 'stopped_iter_2.pth'
    assert training.run('stopped') == 0, training.log('stopped')
    assert training.differences('stopped') == []


def test_mmengines_own_hook_is_what_differs(tmp_path, data, monkeypatch):
    """The comparisons can fail: so they do without our hook."""
    monkeypatch.setattr(training_module, 'use_resumable_checkpoints', lambda cfg: None)
    training = Trainings(tmp_path, data, False, **{CHECKPOINT: 'CheckpointHook'})
    assert training.run('killed', send('step', 5)) == -signal.SIGKILL
    assert training.run('killed') == 0
    assert any(place.startswith('.state_dict') for place in training.differences('killed'))


def test_mms_own_tools_resume_from_the_newest_whole_checkpoint(trainings):
    """They build the Runner with ``resume=True`` and leave the rest to hooks."""
    training = trainings()
    work = training.folder / 'own tools'
    assert training.run(work.name, send('step', 8)) == -signal.SIGKILL
    (work / 'iter_7.pth').write_bytes(b'half')  # of a tool that does not write whole files
    (work / 'last_checkpoint').write_text(str(work / 'iter_7.pth'))

    def resume():
        cfg = load_config(training.config)
        cfg.update(work_dir=str(work), resume=True, experiment_name='own_tools')
        Runner.from_cfg(cfg).train()
    assert in_child(resume, training.folder / 'own tools.log') == 0, training.log(work.name)
    assert f'resuming from {work}/iter_6.pth instead' in training.log(work.name)
    (work / 'iter_7.pth').unlink()
    assert training.differences(work.name) == []


def test_a_stop_waits_for_accumulated_gradients(tmp_path, data):
    training = Trainings(tmp_path, data, False, **{
        "type='OptimWrapper'": "type='OptimWrapper', accumulative_counts=2",
        'interval=3, max': 'interval=4, max'})
    signalled = functools.partial(kill_at, EMAHook, 'after_train_iter', 5, number=signal.SIGTERM)
    assert training.run('stopped', signalled) == EXIT_STOPPED, training.log('stopped')
    assert files.newest_checkpoint(tmp_path / 'stopped').name == 'stopped_iter_6.pth'
    assert training.run('stopped') == 0, training.log('stopped')
    assert training.differences('stopped') == []
