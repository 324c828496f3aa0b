"""tools/export_onnx.py on a config of each scope, read back by ONNX Runtime alone."""
from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from mmengine.utils import digit_version
from tiny import SCOPES, write_config

from flatten_mm.engine import load_config
from flatten_mm.engine.export import OLDEST_TORCH
from flatten_mm.engine.inference import build_model
from flatten_mm.engine.weights import read_weights

onnxruntime = pytest.importorskip('onnxruntime', reason='onnxruntime is not installed')
pytest.importorskip('onnxscript', reason='onnxscript is not installed')
pytestmark = pytest.mark.skipif(
    digit_version(torch.__version__) < digit_version(OLDEST_TORCH), reason='needs torch 2.9')


def test_trained_segmentor_takes_pixels(run, trained, tmp_path) -> None:
    done = trained('mmseg')
    result = run('export_onnx', done.config, done.checkpoint, '--normalize', '--shape', '96',
                 '--verify-sizes', '97x131', '80')
    assert result.code == 0, result.err
    assert '97x131' in result.out and '80x80' in result.out
    session = onnxruntime.InferenceSession(tmp_path / 'mmseg.onnx')
    info = session.get_modelmeta().custom_metadata_map
    assert json.loads(info['classes']) == ['background', 'square', 'disc']
    assert info['channel_order'] == 'RGB' and info['pixels'] == '0 to 255'
    image = np.random.default_rng(0).integers(0, 256, (1, 3, 70, 85)).astype(np.float32)
    (logits,) = session.run(None, {'image': image})
    assert logits.shape == (1, 3, 70, 85)
    cfg = load_config(done.config)
    model = build_model(cfg, read_weights(done.checkpoint))
    inputs = (torch.from_numpy(image) - model.data_preprocessor.mean) / model.data_preprocessor.std
    shape = inputs.shape[2:]
    with torch.no_grad():
        expected = model.encode_decode(inputs, [dict(img_shape=shape, pad_shape=shape)])
    np.testing.assert_allclose(logits, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize('scope', SCOPES[1:])
def test_fixed_size(run, tmp_path, data, scope) -> None:
    config = write_config(scope, tmp_path, data)
    result = run('export_onnx', config, 'none', '--fixed-size', '--shape', 64, 96)
    assert result.code == 0, result.err
    session = onnxruntime.InferenceSession(tmp_path / f'{scope}.onnx')
    outputs = session.run(None, {'image': np.zeros((2, 3, 64, 96), np.float32)})
    shapes = {'mmdet': [(2, 8, 16, 24), (2, 8, 8, 12), (2, 8, 4, 6), (2, 8, 2, 3)],
              'mmpretrain': [(2, 2)]}
    assert [out.shape for out in outputs] == shapes[scope]
    again = run('export_onnx', config, 'none')
    assert again.code == 1 and 'exists' in again.error


def test_checkpoint_must_fit(run, trained, tmp_path, data) -> None:
    config = write_config('mmseg', tmp_path, data)
    assert 'does not exist' in run('export_onnx', config, 'gone.pth').error
    assert 'does not fit' in run('export_onnx', config, trained('mmpretrain').checkpoint).error
    assert not list(tmp_path.glob('*.onnx*'))


def test_too_small_to_trace(run, tmp_path, data) -> None:
    config = write_config('mmseg', tmp_path, data)
    assert '--shape 32' in run('export_onnx', config, 'none', '--shape', 32).error


def test_operators_no_version_of_which_is_written(run, tmp_path, data) -> None:
    pytest.importorskip('onnx')
    config = write_config('mmseg', tmp_path, data)
    for opset in (17, 999):
        ran = run('export_onnx', config, 'none', '--opset', opset)
        assert ran.code == 1 and f'opset {opset}: expected 18 ' in ran.error
    assert not list(tmp_path.glob('*.onnx*'))
