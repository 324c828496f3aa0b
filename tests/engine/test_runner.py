"""What cannot be started, and what stops a run, is told in a sentence."""
from __future__ import annotations

import pytest
import torch
from mmengine.config import Config

from flatten_mm.engine import UserError
from flatten_mm.engine.errors import one_line, reported_as
from flatten_mm.engine.inference import resolve_device
from flatten_mm.engine.runner import check_launcher, rethrow, set_dataloader_defaults
from flatten_mm.engine.training import train

no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason='there is a GPU')


@pytest.mark.parametrize('launcher, command', [
    ('pytorch', 'torchrun'), ('slurm', 'srun'), ('mpi', 'mpirun')])
def test_launcher_without_its_command(launcher, command, monkeypatch):
    for name in ('RANK', 'SLURM_PROCID', 'OMPI_COMM_WORLD_RANK'):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(UserError, match=f'--launcher {launcher} expects .*{command}'):
        check_launcher(launcher)


@no_gpu
def test_launcher_without_a_gpu(monkeypatch):
    for name in ('SLURM_PROCID', 'RANK'):
        monkeypatch.setenv(name, '0')
    for name in ('SLURM_NTASKS', 'WORLD_SIZE'):
        monkeypatch.setenv(name, '1')
    with pytest.raises(UserError, match='needs a GPU'):
        check_launcher('slurm')
    check_launcher('pytorch')  # processes on the CPU


@no_gpu
@pytest.mark.parametrize('device', ['cuda', 'cuda:3'])
def test_gpu_that_is_not_there(device):
    with pytest.raises(UserError, match=f'--device {device}: torch finds no CUDA device'):
        resolve_device(device)


def test_devices():
    assert resolve_device('cpu') == 'cpu'
    with pytest.raises(UserError, match='--device gpu is no device'):
        resolve_device('gpu')


def trainable(**changes):
    return Config(dict(default_scope='mmseg', model=dict(), train_dataloader=dict(),
                       train_cfg=dict(), optim_wrapper=dict(type='OptimWrapper'), **changes))


def test_amp_with_another_wrapper():
    cfg = trainable()
    cfg.optim_wrapper.type = 'MyWrapper'
    with pytest.raises(UserError, match='MyWrapper'):
        train(cfg, amp=True)


def test_auto_scale_lr_without_a_base():
    with pytest.raises(UserError, match='base_batch_size'):
        train(trainable(), auto_scale_lr=True)


def test_config_without_training():
    with pytest.raises(UserError, match='has no train_dataloader, train_cfg, optim_wrapper'):
        train(Config(dict(default_scope='mmseg', model=dict())))


@pytest.mark.parametrize('error, message', [
    (FileNotFoundError(2, 'No such file', 'x.jpg'), 'x.jpg'),
    (AssertionError('failed to load image: x.jpg'), 'image cannot be read: failed.*x.jpg'),
    (IndexError('Target 12 is out of bounds.'), 'outside the classes of the head .Target 12'),
    (AssertionError('The image size in a batch should be the same.'), 'batch_size=1'),
    (torch.cuda.OutOfMemoryError('no 2 GiB left'), '--amp'),
])
def test_errors_that_data_explain(error, message):
    with pytest.raises(UserError, match=message):
        rethrow(error)


def test_other_errors_keep_their_traceback():
    rethrow(RuntimeError('a bug'))
    rethrow(IndexError('list index out of range'))


class Refusing(torch.utils.data.Dataset):
    def __len__(self):
        return 2

    def __getitem__(self, index):
        raise ValueError('label.png holds the label values [7]')


@pytest.mark.parametrize('num_workers', [0, 1])
def test_data_that_a_data_set_refuses(num_workers):
    loader = torch.utils.data.DataLoader(Refusing(), num_workers=num_workers)
    with pytest.raises(ValueError) as info:
        next(iter(loader))
    with pytest.raises(UserError, match=r'^the data cannot be loaded: label.png holds .*\[7\]$'):
        rethrow(info.value)
    rethrow(ValueError('from elsewhere'))


def test_messages_fit_one_line():
    worker = ('Caught FileNotFoundError in DataLoader worker process 0.\n'
              'Original Traceback (most recent call last):\n  File "x.py", line 1\n'
              "FileNotFoundError: [Errno 2] No such file or directory: 'x.jpg'\n")
    assert one_line(FileNotFoundError(worker)) == "[Errno 2] No such file or directory: 'x.jpg'"
    assert one_line(KeyError('a key')) == 'a key'
    assert one_line(ValueError('two\n  lines')) == 'two lines'
    assert one_line(AssertionError()) == 'AssertionError'


def test_reported_as_keeps_sentences_and_causes():
    with pytest.raises(UserError, match='^cannot do it: bad value$') as info, \
            reported_as('cannot do it'):
        raise ValueError('bad value')
    assert isinstance(info.value.__cause__, ValueError)
    with pytest.raises(UserError, match='^a sentence$'), reported_as('cannot do it'):
        raise UserError('a sentence')


def test_dataloader_defaults_of_mmpretrain():
    cfg = Config(dict(train_dataloader=dict(num_workers=2),
                      val_dataloader=dict(num_workers=0, pin_memory=True), test_dataloader=None))
    set_dataloader_defaults(cfg)
    assert cfg.train_dataloader.persistent_workers
    assert cfg.train_dataloader.collate_fn.type == 'default_collate'
    assert not cfg.val_dataloader.persistent_workers
    assert cfg.val_dataloader.pin_memory
