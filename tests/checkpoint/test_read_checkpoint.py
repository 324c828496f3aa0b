"""Reading files of every layout, and what must never happen while reading."""
from __future__ import annotations

import functools
import http.server
import io
import operator
import os
import pickle
import random
import resource
import subprocess
import sys
import tarfile
import threading
import types
import zipfile
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from mmengine.logging import HistoryBuffer

from flatten_mm.checkpoint import CheckpointError, read_checkpoint

# ---- layouts


@pytest.fixture
def weights() -> dict[str, torch.Tensor]:
    shared = torch.randn(6)
    return {'norm.weight': torch.randn(4), 'norm.bias': torch.randn(8)[2:6],
            'fc.weight': torch.randn(3, 5).t(), 'fc.half': torch.randn(3).half(),
            'tied.a': shared, 'tied.b': shared, 'count': torch.tensor(7)}


def saved(tmp_path: Path, content: object, name: str = 'file.pth', **kwargs) -> Path:
    path = tmp_path / name
    torch.save(content, path, **kwargs)
    return path


def assert_same(ours: dict, theirs: dict) -> None:
    assert list(ours) == list(theirs)
    for name, tensor in theirs.items():
        assert ours[name].dtype == tensor.dtype
        assert torch.equal(ours[name], tensor), name


LAYOUTS = {
    'plain': ('', lambda w: w),
    'ordered': ('', lambda w: OrderedDict(w)),
    'released': ('model', lambda w: {'model': w}),
    'mm': ('state_dict', lambda w: {'meta': {'epoch': 3, 'cfg': 'x = 1'}, 'state_dict': w,
                                    'optimizer': {'state': {0: {'exp_avg': torch.ones(2)}}},
                                    'message_hub': {'log_scalars': {
                                        'loss': HistoryBuffer(np.arange(3.), np.ones(3))}}}),
    'timm with an average': ('state_dict_ema', lambda w: {
        'state_dict': {k: v * 0 for k, v in w.items()}, 'state_dict_ema': w}),
    'DeiT with an average': ('model_ema', lambda w: {
        'model': {k: v * 0 for k, v in w.items()}, 'model_ema': w}),
    'mm with an average': ('state_dict', lambda w: {
        'state_dict': w, 'ema_state_dict': {k: v * 0 for k, v in w.items()}}),
}


@pytest.mark.parametrize('legacy', [False, True], ids=['zip', 'legacy'])
@pytest.mark.parametrize('layout', LAYOUTS)
def test_layouts(tmp_path, weights, layout, legacy):
    key, wrap = LAYOUTS[layout]
    path = saved(tmp_path, wrap(weights), _use_new_zipfile_serialization=not legacy)
    checkpoint = read_checkpoint(str(path))
    assert_same(checkpoint.state_dict, weights)
    assert checkpoint.weights_key == key
    assert checkpoint.format == ('torch (legacy)' if legacy else 'torch')
    assert ('EMA' in str(checkpoint)) == key.endswith('ema')


def test_safetensors(tmp_path, weights):
    weights = {k: v.contiguous().clone() for k, v in weights.items()}
    path = tmp_path / 'file.safetensors'
    safetensors.torch.save_file(weights, path, metadata={'epoch': '3'})
    checkpoint = read_checkpoint(path)
    assert checkpoint.format == 'safetensors'
    assert checkpoint.meta == {'epoch': '3'}
    assert_same(checkpoint.state_dict, {k: weights[k] for k in checkpoint.state_dict})
    assert set(checkpoint.state_dict) == set(weights)


@pytest.mark.parametrize('protocol', [2, 3, 4, 5])
def test_pickle_protocols_and_parameters(tmp_path, weights, protocol):
    weights['parameter'] = torch.nn.Parameter(torch.randn(2))
    weights['tagged'] = torch.randn(2)
    weights['tagged'].note = 'an attribute makes torch pickle the tensor another way'
    path = saved(tmp_path, {'model': weights}, pickle_protocol=protocol)
    ours = read_checkpoint(path).state_dict
    assert_same(ours, weights)
    assert not any(t.requires_grad for t in ours.values())


def test_state_dict_of_a_module_and_its_skipped_entries(tmp_path):
    model = torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), torch.nn.BatchNorm2d(2))
    state = model.state_dict()  # an OrderedDict with an attribute, _metadata
    state['_extra_state'] = None
    checkpoint = read_checkpoint(saved(tmp_path, state))
    assert checkpoint.skipped == ['_extra_state']
    del state['_extra_state']
    assert_same(checkpoint.state_dict, state)


def test_meta_is_plain(tmp_path, weights):
    path = saved(tmp_path, {'model': weights, 'epoch': 299, 'max_accuracy': np.float64(79.1),
                            'meta': {'classes': ('cat', 'dog'), 'dtype': torch.float32,
                                     'seen': np.int64(3), 'path': Path('x')}})
    meta = read_checkpoint(path).meta
    assert meta['epoch'] == 299
    assert type(meta['max_accuracy']) is float and meta['max_accuracy'] == 79.1
    assert meta['meta']['classes'] == ['cat', 'dog']
    assert meta['meta']['seen'] == 3
    assert all(isinstance(meta['meta'][k], str) for k in ('dtype', 'path'))


# ---- files with classes that are not installed


@pytest.fixture
def yacs_file(tmp_path, weights, monkeypatch) -> Path:
    """A file as the released training script saves it, its config of a class nobody has."""
    package, module = types.ModuleType('yacs'), types.ModuleType('yacs.config')
    CfgNode = type('CfgNode', (dict,), {'__module__': 'yacs.config'})
    module.CfgNode, package.config = CfgNode, module
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, 'yacs', package)
        patch.setitem(sys.modules, 'yacs.config', module)
        config = CfgNode(MODEL=CfgNode(TYPE='swin', DEPTHS=[2, 2]), LR=0.1)
        config.__dict__['__immutable__'] = True
        path = saved(tmp_path, {'model': weights, 'optimizer': {'state': {}}, 'lr_scheduler': {},
                                'max_accuracy': 1.5, 'epoch': 2, 'config': config})
    monkeypatch.setitem(sys.modules, 'yacs', None)
    monkeypatch.setitem(sys.modules, 'yacs.config', None)
    return path


def test_training_file_without_yacs(yacs_file, weights):
    with pytest.raises(ModuleNotFoundError):  # or this test would prove nothing
        torch.load(yacs_file, weights_only=False)
    checkpoint = read_checkpoint(yacs_file)
    assert_same(checkpoint.state_dict, weights)
    assert checkpoint.meta == {'epoch': 2, 'max_accuracy': 1.5}


def test_released_training_file(shared, monkeypatch):
    path = shared('golden', 'training_checkpoint_pvt_v2_llll.pth')
    record = torch.load(shared('golden', 'pvt_v2_llll.pt'), weights_only=True)
    monkeypatch.setitem(sys.modules, 'yacs', None)
    monkeypatch.setitem(sys.modules, 'yacs.config', None)
    ours = read_checkpoint(path).state_dict
    assert_same(dict(sorted(ours.items())), dict(sorted(record['state_dict'].items())))


def test_unknown_classes_are_not_imported_or_built(tmp_path, weights, monkeypatch):
    """Every hook pickle has for a class, each of which would leave a mark."""
    mark = tmp_path / 'ran'
    source = f'''
def mark(*args, **kwargs):
    open({str(mark)!r}, 'a').write('x')
class Thing:
    __new__ = lambda cls, *a, **k: (mark(), object.__new__(cls))[1]
    __init__ = append = extend = add = __setitem__ = __setstate__ = __setattr__ = mark
mark()  # importing runs this
'''
    (tmp_path / 'owners_module.py').write_text(source)
    name = b'cowners_module\nThing\n'
    unicode_name = b'\x8c\x0downers_module\x8c\x05Thing\x93'
    pieces = [
        name + b')R',  # call
        name + b')\x81',  # cls.__new__
        unicode_name + b')}\x92',  # cls.__new__ with keywords
        b'(' + name + b'o',  # old instance
        b'(iowners_module\nThing\n',  # old instance by name
        name + b')R}(K\x01K\x02ub',  # __setstate__
        name + b')RK\x01a' + name + b')R(K\x01K\x02e',  # append, extend
        name + b')RK\x01K\x02s' + name + b')R(K\x01\x90',  # __setitem__, add
        b'ccopyreg\n_reconstructor\n(' + name + b'cbuiltins\nobject\nNtR',
        name,  # the class itself as a value
    ]
    monkeypatch.syspath_prepend(str(tmp_path))
    for i, piece in enumerate(pieces):
        path = with_pickle(saved(tmp_path, {'model': weights, 'x': 1}), b'\x80\x04}K\x01](' + piece
                           + b'es.')
        with pytest.raises(CheckpointError, match='holds no state dict'):
            read_checkpoint(path)
        assert not mark.exists(), (i, piece)
        assert 'owners_module' not in sys.modules


def with_pickle(path: Path, data: bytes) -> Path:
    """The same torch file with another ``data.pkl``."""
    out = path.with_name('crafted.pth')
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(out, 'w') as new:
        for item in old.infolist():
            new.writestr(item.filename,
                         data if item.filename.endswith('/data.pkl') else old.read(item))
    return out


# ---- files that try to run something


class Call:
    """Unpickled by plain pickle it calls ``function(*args)``."""

    def __init__(self, function, *args):
        self.function, self.args = function, args

    def __reduce__(self):
        return self.function, self.args


def owners_function(*args):
    raise AssertionError('this ran')


HOSTILE = {
    'posix.system': lambda mark: Call(os.system, f'touch {mark}'),
    'subprocess.Popen': lambda mark: Call(subprocess.Popen, ['touch', mark]),
    'builtins.eval': lambda mark: Call(eval, f'open({mark!r}, "w")'),
    'builtins.exec': lambda mark: Call(exec, f'open({mark!r}, "w")'),
    'builtins.getattr': lambda mark: Call(getattr, torch.nn.Module, '__call__'),
    'builtins.__import__': lambda mark: Call(__import__, 'os'),
    'io.open': lambda mark: Call(open, mark, 'w'),
    'functools.partial': lambda mark: Call(functools.partial, owners_function),
    'operator.methodcaller': lambda mark: Call(operator.methodcaller, 'x'),
    'torch.serialization.load': lambda mark: Call(torch.load, mark),
    'torch.storage._load_from_bytes': lambda mark: Call(torch.storage._load_from_bytes, b''),
    'torch.hub.load': lambda mark: Call(torch.hub.load, 'repo', 'model'),
    f'{__name__}.owners_function': lambda mark: Call(owners_function),
}


@pytest.mark.parametrize('legacy', [False, True], ids=['zip', 'legacy'])
@pytest.mark.parametrize('name', HOSTILE)
def test_a_call_is_refused_by_name(tmp_path, weights, name, legacy):
    mark = str(tmp_path / 'ran')
    path = saved(tmp_path, {'model': weights, 'config': HOSTILE[name](mark)},
                 _use_new_zipfile_serialization=not legacy)
    assert_refused(path, name)
    assert not os.path.exists(mark)


@pytest.mark.parametrize('name, opcodes', [
    ('types.FunctionType', b'ctypes\nFunctionType\n)R'),
    ('numpy.lib.npyio.load', b'cnumpy.lib.npyio\nload\n)R'),
    ('os.system', b'(S"true"\nios\nsystem\n'),
    ('nt.system', b'(cnt\nsystem\nS"true"\no'),
    ('os.system', b'cos\nsystem\n)\x81'),
    ('builtins.getattr', b'c__builtin__\ngetattr\n('
     b'cmmengine.logging.history_buffer\nHistoryBuffer\nS"min"\nNtR'),
    ('builtins.getattr', b'c__builtin__\ngetattr\n)R'),
    ('pickle.loads', b'c__builtin__\nset\n(ccPickle\nloads\nltR'),
])
def test_a_crafted_call_is_refused_by_name(tmp_path, weights, name, opcodes):
    crafted = b'\x80\x02}U\x05model' + opcodes + b's.'
    assert_refused(with_pickle(saved(tmp_path, weights), crafted), name)


def assert_refused(path: Path, name: str) -> None:
    with pytest.raises(CheckpointError, match='tries to call') as error:
        read_checkpoint(path)
    assert f' {name};' in str(error.value) and str(path) in str(error.value)
    assert '\n' not in str(error.value)


def test_state_cannot_alter_what_rebuilds_tensors(tmp_path, weights):
    """BUILD would set attributes of a function; later files would then run what it says."""
    crafted = (b'\x80\x02}(U\x01aN' + b'ctorch._utils\n_rebuild_tensor_v2\n'
               b'N}U\x0c__defaults__K\x01\x85s\x86b' + b'K\x01u.')
    before = torch._utils._rebuild_tensor_v2.__defaults__
    with pytest.raises(CheckpointError):
        read_checkpoint(with_pickle(saved(tmp_path, weights), crafted))
    assert torch._utils._rebuild_tensor_v2.__defaults__ == before
    assert_same(read_checkpoint(saved(tmp_path, weights)).state_dict, weights)


def test_a_storage_larger_than_its_record_is_refused(tmp_path):
    """Or the tensor would show whatever lies behind it in memory."""
    path = saved(tmp_path, {'w': torch.zeros(4)})
    with zipfile.ZipFile(path) as archive:
        pkl = archive.read('file/data.pkl')
    four = b'K\x04tq'  # numel of the storage, the last of its id
    assert pkl.count(four) == 1
    with pytest.raises(CheckpointError):
        size = pkl.replace(four, b'J\x00\x00\x00\x10tq').replace(b'K\x04\x85', b'J\0\0\0\x10\x85')
        read_checkpoint(with_pickle(path, size))


def test_torchscript_is_refused(tmp_path):
    path = tmp_path / 'script.pth'
    torch.jit.save(torch.jit.script(torch.nn.Linear(2, 2)), str(path))
    with pytest.raises(CheckpointError, match='TorchScript'):
        read_checkpoint(path)


def test_tar_file_of_old_torch_is_refused(tmp_path):
    path = tmp_path / 'old.pth'
    with tarfile.open(path, 'w') as archive:
        archive.addfile(tarfile.TarInfo('storages'), io.BytesIO())
    with pytest.raises(CheckpointError, match='not a checkpoint'):
        read_checkpoint(path)


def test_whole_pickled_model_is_told(tmp_path):
    with pytest.raises(CheckpointError, match=r'torch\.nn\.modules\.linear\.Linear.*state_dict'):
        read_checkpoint(saved(tmp_path, torch.nn.Linear(2, 2)))
    with pytest.raises(CheckpointError, match=r'entries are model'):
        read_checkpoint(saved(tmp_path, {'model': torch.nn.Linear(2, 2)}))


# ---- damaged files


def assert_told(path: Path, match: str | None = None) -> None:
    with pytest.raises(CheckpointError, match=match) as error:
        read_checkpoint(path)
    assert '\n' not in str(error.value)
    assert str(path) in str(error.value)


@pytest.mark.parametrize('share', [0.01, 0.3, 0.7, 0.95, 0.999])
@pytest.mark.parametrize('kind', ['zip', 'legacy', 'safetensors'])
def test_truncated(tmp_path, kind, share):
    path = tmp_path / 'file.pth'
    big = {'a': torch.randn(100, 100), 'b': torch.randn(100)}
    if kind == 'safetensors':
        safetensors.torch.save_file(big, path)
    else:
        torch.save(big, path, _use_new_zipfile_serialization=kind == 'zip')
    data = path.read_bytes()
    path.write_bytes(data[:int(len(data) * share)])
    assert_told(path)


@pytest.mark.parametrize('data, match', [
    (b'', 'is empty'),
    (bytes(100_000), 'zeros'),
    (b'<!DOCTYPE html><html><body>Sign in</body></html>', 'web page'),
    (b'\n  <HTML>', 'web page'),
    (b'\xff\xd8\xff\xe0\x00\x10JFIF' + bytes(range(256)), 'JPEG'),
    (b'version https://git-lfs.github.com/spec/v1\noid sha256:0\n', 'text file.*git-lfs'),
    (b'\x1f\x8b\x08\x00' + bytes(50), 'gzip'),
    (b'PK\x05\x06' + bytes(18), 'empty zip'),
    (bytes(range(255, 0, -1)) * 9, 'no format'),
    (pickle.dumps({'a': 1}), 'Python pickle'),
], ids=lambda x: x if isinstance(x, str) else '')
def test_files_of_another_kind(tmp_path, data, match):
    path = tmp_path / 'file.pth'
    path.write_bytes(data)
    assert_told(path, match)


def test_other_archives_and_places(tmp_path, weights):
    path = tmp_path / 'photos.pth'
    with zipfile.ZipFile(path, 'w') as archive:
        archive.writestr('photos/1.jpg', b'x')
        archive.writestr('photos/\n\x1b[2J.jpg', b'x')
    assert_told(path, r'zip archive but not a checkpoint.*photos/1\.jpg, photos/\?\?\[2J')
    assert_told(tmp_path, 'is a folder')
    with pytest.raises(FileNotFoundError, match=r'nowhere\.pth does not exist'):
        read_checkpoint(tmp_path / 'nowhere.pth')
    assert_told(Path('/dev/zero'), 'no regular file')
    assert_told(saved(tmp_path, [1, 2]), 'holds a list')
    assert_told(saved(tmp_path, {'epoch': 1, 'lr': 2.}), 'entries are epoch, lr')
    assert_told(saved(tmp_path, {}), 'entries are none')


def test_damage_inside_a_record_and_recompression(tmp_path):
    path = saved(tmp_path, {'a': torch.zeros(10_000)})
    data = bytearray(path.read_bytes())
    data[len(data) // 2] = 1  # among the weights, which any value would suit
    flipped = tmp_path / 'flipped.pth'
    flipped.write_bytes(data)
    assert_told(flipped, 'damaged')
    packed = tmp_path / 'packed.pth'
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(packed, 'w', zipfile.ZIP_DEFLATED) as new:
        for item in old.infolist():
            new.writestr(item.filename, old.read(item), zipfile.ZIP_DEFLATED)
    assert_told(packed, 'compressed')


@pytest.mark.skipif(not hasattr(torch.serialization, 'set_crc32_options'), reason='older torch')
def test_file_saved_without_checksums(tmp_path, weights):
    before = torch.serialization.get_crc32_options()
    torch.serialization.set_crc32_options(False)
    try:
        path = saved(tmp_path, weights)
    finally:
        torch.serialization.set_crc32_options(before)
    assert_same(read_checkpoint(path).state_dict, weights)


@pytest.mark.parametrize('legacy', [False, True], ids=['zip', 'legacy'])
def test_any_mutation_reads_or_is_told(tmp_path, weights, legacy):
    path = saved(tmp_path, {'model': weights, 'config': Path('x'), 'epoch': np.float64(1)},
                 _use_new_zipfile_serialization=not legacy)
    if legacy:
        original = path.read_bytes()
    else:
        with zipfile.ZipFile(path) as archive:
            original = archive.read('file/data.pkl')
    draw = random.Random(0)
    outcomes = set()
    for _ in range(300):
        data = bytearray(original)
        for _ in range(draw.randint(1, 4)):
            data[draw.randrange(len(data))] = draw.randrange(256)
        if legacy:
            crafted = tmp_path / 'crafted.pth'
            crafted.write_bytes(data)
        else:
            crafted = with_pickle(path, bytes(data))
        try:
            read_checkpoint(crafted)
            outcomes.add('read')
        except CheckpointError:
            outcomes.add('told')
    assert outcomes == {'read', 'told'}


def test_a_damaged_length_takes_no_memory(tmp_path):
    path = tmp_path / 'file.pth'
    magic = pickle.dumps(torch.serialization.MAGIC_NUMBER, protocol=2)
    path.write_bytes(magic + b'\x80\x05' + pickle.BYTEARRAY8 + (2**31).to_bytes(8, 'little') + b'.')
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert_told(path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2**20  # KiB


# ---- switches and addresses


def test_the_users_weights_only_switch_is_kept(yacs_file, tmp_path, weights, monkeypatch):
    monkeypatch.setenv('TORCH_FORCE_WEIGHTS_ONLY_LOAD', '1')
    assert_told(yacs_file)  # torch's own reader, which the user asked for, knows no placeholders
    assert_same(read_checkpoint(saved(tmp_path, {'model': weights})).state_dict, weights)


def test_url_is_downloaded_once_and_read_safely(tmp_path, weights, monkeypatch):
    folder = tmp_path / 'served'
    folder.mkdir()
    saved(folder, {'model': weights}, 'good.pth')
    saved(folder, {'model': Call(os.system, 'true')}, 'bad.pth')
    (folder / 'other').mkdir()
    saved(folder / 'other', {'model': {'a': torch.ones(1)}}, 'good.pth')
    requests = []

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *args):
            requests.append(self.path)

    server = http.server.ThreadingHTTPServer(
        ('127.0.0.1', 0), functools.partial(Handler, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setattr(torch.hub, 'get_dir', lambda: str(tmp_path / 'hub'))
    base = f'http://127.0.0.1:{server.server_port}'
    try:
        for _ in range(2):
            assert_same(read_checkpoint(f'{base}/good.pth').state_dict, weights)
        assert requests == ['/good.pth']
        assert list(read_checkpoint(f'{base}/other/good.pth').state_dict) == ['a']
        with pytest.raises(CheckpointError, match=r'posix\.system'):
            read_checkpoint(f'{base}/bad.pth')
        with pytest.raises(CheckpointError, match='cannot download .*404'):
            read_checkpoint(f'{base}/absent.pth')
    finally:
        server.shutdown()
        server.server_close()


def test_other_schemes_are_told():
    with pytest.raises(CheckpointError, match="'s3://' is not supported"):
        read_checkpoint('s3://bucket/file.pth')
