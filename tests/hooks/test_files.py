"""Files appear whole or not at all; the newest whole checkpoint is found."""
from __future__ import annotations

import os
import resource
import stat

import pytest
import torch
from interrupted import cut_in_half, in_child, kill_at

from flatten_mm.checkpoint import CheckpointError
from flatten_mm.hooks import CheckpointWriteError, files
from flatten_mm.hooks.files import newest_checkpoint, remove_partial, write_whole


def save(path, when):
    torch.save(dict(state_dict=dict(w=torch.ones(300)), meta=dict(iter=1)), path)
    os.utime(path, ns=(when, when))
    return path


def name(folder, path, when):
    (folder / 'last_checkpoint').write_text(str(path))
    os.utime(folder / 'last_checkpoint', ns=(when, when))


@pytest.mark.parametrize('place, options, left', [
    ('fsync', dict(first=cut_in_half), b'old'),
    ('replace', {}, b'old'),
    ('replace', dict(after=True), b'new'),
])
def test_killed_while_writing(place, options, left, tmp_path):
    path = tmp_path / 'iter_1.pth'
    path.write_bytes(b'old')

    def write():
        kill_at(files.os, place, 1, **options)
        write_whole(b'new', path)
    assert in_child(write, tmp_path / 'log') < 0
    assert path.read_bytes() == left
    removed = remove_partial(tmp_path)
    assert len(removed) == (left == b'old')
    assert sorted(tmp_path.iterdir()) == [path, tmp_path / 'log']


def test_a_limit_leaves_the_old_file(tmp_path):
    path = tmp_path / 'iter_1.pth'
    path.write_bytes(b'old')

    def write():
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
        with pytest.raises(CheckpointWriteError, match='needs 0.1 MB.*are free in') as caught:
            write_whole(bytes(100_000), path)
        assert f'{path} cannot be written (File too large)' in str(caught.value)
    assert in_child(write, tmp_path / 'log') == 0, (tmp_path / 'log').read_text()
    assert path.read_bytes() == b'old'
    assert not list(tmp_path.glob('*.partial'))


def test_rights_are_those_of_any_new_file(tmp_path):
    (tmp_path / 'plain').write_bytes(b'')
    write_whole(b'', tmp_path / 'whole')
    modes = {stat.S_IMODE((tmp_path / file).stat().st_mode) for file in ('plain', 'whole')}
    assert len(modes) == 1


def test_the_named_checkpoint_is_the_newest(tmp_path):
    save(tmp_path / 'iter_9.pth', 3)  # of a branch left behind: last_checkpoint is newer
    named = save(tmp_path / 'iter_4.pth', 5)
    save(tmp_path / 'best_mIoU_iter_12.pth', 9)  # holds no optimizer
    name(tmp_path, named, 6)
    assert newest_checkpoint(tmp_path, pytest.fail) == named


def test_one_completed_before_last_checkpoint_was_written(tmp_path):
    name(tmp_path, save(tmp_path / 'iter_4.pth', 5), 6)
    newer = save(tmp_path / 'iter_8.pth', 7)
    assert newest_checkpoint(tmp_path, pytest.fail) == newer


@pytest.mark.parametrize('damage', [
    lambda path: path.write_bytes(b''),
    lambda path: path.write_bytes(bytes(5000)),
    lambda path: os.truncate(path, path.stat().st_size // 2),
    lambda path: path.write_bytes(path.read_bytes().replace(b'\x00\x00\x80\x3f', bytes(4))),
    lambda path: path.unlink(),
], ids=['empty', 'zeros', 'truncated', 'zeros inside', 'absent'])
def test_a_damaged_one_is_passed_over_with_a_word(damage, tmp_path):
    older = save(tmp_path / 'epoch_1.pth', 4)
    newest = save(tmp_path / 'epoch_2.pth', 5)
    name(tmp_path, newest, 6)
    damage(newest)
    said = []
    assert newest_checkpoint(tmp_path, said.append) == older
    assert len(said) == 1
    assert str(newest) in said[0] and said[0].endswith(f'resuming from {older} instead')
    older.unlink()
    with pytest.raises(CheckpointError, match=r'epoch_2.pth.*holds no other checkpoint'):
        newest_checkpoint(tmp_path, pytest.fail)


def test_without_a_name_or_moved(tmp_path):
    assert newest_checkpoint(tmp_path) is None
    (tmp_path / 'last_checkpoint').write_text('')  # killed while another tool wrote it
    assert newest_checkpoint(tmp_path) is None
    stopped = save(tmp_path / 'stopped_iter_3.pth', 5)
    assert newest_checkpoint(tmp_path) == stopped
    name(tmp_path, '/where/it/was/stopped_iter_3.pth', 6)
    assert newest_checkpoint(tmp_path, pytest.fail) == stopped
