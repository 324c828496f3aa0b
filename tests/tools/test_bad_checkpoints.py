"""Every bad checkpoint on every way into the tools: one sentence, at once, and nothing is run."""
from __future__ import annotations

import io
import json
import os
import re
import resource
import struct
import time

import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

MAX_SECONDS, MAX_KIB = 10, 512 << 10
WEIGHT = 'backbone.layers.0.blocks.0.mlp.fc1.weight'


class Command:
    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return os.system, (f'touch {self.mark}',)


def _image(fmt):
    content = io.BytesIO()
    Image.new('RGB', (40, 30)).save(content, fmt)
    return content.getvalue()


def _header(**entry):
    header = json.dumps({WEIGHT: entry}).encode()
    return struct.pack('<Q', len(header)) + header + bytes(16)


def _with(state, value):
    return dict(state, **{WEIGHT: value})


def _saved(content):
    file = io.BytesIO()
    torch.save(content, file)
    return file.getvalue()


def _safetensors(state, name, folder):
    state = {key: value.contiguous().clone() for key, value in state.items()}
    save_file({**state, name: torch.ones(2)}, folder / 'made.safetensors')
    return (folder / 'made.safetensors').read_bytes()


# name -> (bytes of the file from the whole training file, its weights and a folder; the sentence)
FILES = {
    'truncated': (lambda whole, state, folder: whole[:len(whole) // 2], 'truncated or damaged'),
    'empty': (lambda *_: b'', 'is empty'),
    'zero-filled': (lambda whole, *_: bytes(len(whole)), 'begins with zeros'),
    'zeros at the end': (lambda whole, *_: whole[:-2000] + bytes(2000), 'truncated or damaged'),
    'jpeg': (lambda *_: _image('JPEG'), 'a JPEG image'),
    'png': (lambda *_: _image('PNG'), 'a PNG image'),
    'zip': (lambda *_: b'PK\x05\x06' + bytes(18), 'an empty zip archive'),
    'html': (lambda *_: b'<!DOCTYPE html><html>sign in</html>', 'web page'),
    'command': (lambda whole, state, folder: _saved(dict(
        state_dict=state, meta=dict(iter=1), optimizer=Command(folder / 'ran'))),
        r'tries to call posix\.system'),
    'billion': (lambda whole, state, folder: _saved(dict(
        meta=dict(iter=1), optimizer={},
        state_dict=_with(state, torch.zeros(1).half().expand(10**9)))),
        r'fc1\.weight has the shape \(1000000000,\), far more than'),
    'billion in a header': (lambda *_: _header(dtype='F32', shape=[10**9], data_offsets=[0, 16]),
                            'damaged safetensors'),
    'nan': (lambda whole, state, folder: _saved(dict(
        meta=dict(iter=1), optimizer={},
        state_dict=_with(state, state[WEIGHT] * float('nan')))),
        r'fc1\.weight holds NaN or infinite'),
}
WAYS = {
    'init_cfg': ['train', '--cfg-options', 'model.backbone.init_cfg.type=Pretrained',
                 'model.backbone.init_cfg.checkpoint=bad.pth'],
    'load_from': ['train', '--cfg-options', 'load_from=bad.pth'],
    'resume': ['train', '--resume', 'bad.pth'],
    'test': ['test', 'bad.pth'],
    'infer': ['infer', 'bad.pth', 'photo.jpg'],
    'convert': ['convert_checkpoint', 'bad.pth', 'out.pth'],
}


@pytest.fixture
def way(trained, run, tmp_path):
    """Run one of WAYS with a file of the folder."""
    done = trained('mmpretrain')
    Image.new('RGB', (40, 30)).save(tmp_path / 'photo.jpg')

    def call(name, file='bad.pth'):
        tool, *options = [item.replace('bad.pth', file) for item in WAYS[name]]
        return run(tool, *([] if name == 'convert' else [done.config]), *options)
    return call


@pytest.mark.parametrize('kind', FILES)
def test_is_told_in_one_sentence_whichever_way_it_comes(kind, trained, way, tmp_path):
    make, sentence = FILES[kind]
    whole = trained('mmpretrain').checkpoint
    content = make(whole.read_bytes(), torch.load(whole)['state_dict'], tmp_path)
    (tmp_path / 'bad.pth').write_bytes(content)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for name in WAYS:
        start = time.process_time()
        outcome = way(name)
        assert outcome.code == 1, (name, outcome.out)
        assert 'bad.pth' in outcome.error
        assert re.search(sentence, outcome.error), (name, outcome.error)
        assert time.process_time() - start < MAX_SECONDS, name
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory < MAX_KIB
    assert not (tmp_path / 'ran').exists() and not (tmp_path / 'out.pth').exists()


def test_names_in_a_header_are_names_and_no_paths(trained, way, run, tmp_path):
    state = torch.load(trained('mmpretrain').checkpoint)['state_dict']
    bad = tmp_path / 'inner' / 'bad.pth'
    bad.parent.mkdir()
    bad.write_bytes(_safetensors(state, '../escaped\x1b[31m', tmp_path))
    bad.rename(tmp_path / 'bad.pth')
    assert 'not in the model (../escaped?[31m)' in way('test').error
    outcome = way('convert')
    assert outcome.code == 0 and '../escaped?[31m' in outcome.out and '\x1b' not in outcome.out
    assert not list(tmp_path.parent.glob('escaped*')) and not list(tmp_path.glob('**/escaped*'))


@pytest.mark.parametrize('name', ['init_cfg', 'load_from', 'test', 'infer'])
def test_weights_of_another_type(name, trained, way, tmp_path):
    """Whole numbers are no weights; half precision is, and the conversion is told."""
    state = torch.load(trained('mmpretrain').checkpoint)['state_dict']
    torch.save(dict(state_dict=_with(state, state[WEIGHT].int())), tmp_path / 'bad.pth')
    assert 'fc1.weight is torch.int32; expected torch.float32' in way(name).error
    torch.save(dict(state_dict={key: value.half() if value.is_floating_point() else value
                                for key, value in state.items()}), tmp_path / f'{name}.pth')
    outcome = way(name, f'{name}.pth')  # mmengine logs the same warning once a process
    assert outcome.code == 0, outcome.err
    told = outcome.out + outcome.err
    assert 'weights of type float16 are converted' in told or 'converted from float16' in told
