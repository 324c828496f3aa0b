"""Exported graphs: one for images of any size, with the results of the model."""
from __future__ import annotations

import pytest
import torch
from mmengine.registry import MODELS
from mmengine.utils import digit_version
from torch import nn

import flatten_mm.engine.export as export_module
from flatten_mm.engine import UserError, export_layers
from flatten_mm.engine.export import (
    ExportableModel,
    default_sizes,
    export_onnx,
    export_program,
    verify,
)

pytestmark = pytest.mark.skipif(
    digit_version(torch.__version__) < digit_version(export_module.OLDEST_TORCH),
    reason='export needs torch 2.9')
PYRAMID = dict(embed_dims=[8, 8, 8, 8], num_heads=[1, 1, 2, 2], mlp_ratios=[1] * 4, depths=[1] * 4)
BACKBONES = {
    'pvt': dict(type='FLattenPVT', arch=PYRAMID, attn_type='LSLL', out_indices=(1,)),
    'pvtv2': dict(type='FLattenPVTv2', arch=PYRAMID, attn_type='SLLL', out_indices=(0,)),
    'pvtv2-li': dict(type='FLattenPVTv2', arch=PYRAMID, linear=True, out_indices=(0,)),
    'swin': dict(type='FLattenSwin', attn_type='LSSL', out_indices=(1,),
                 arch=dict(embed_dims=8, depths=[1, 2, 1, 1], num_heads=[1, 1, 1, 1],
                           mlp_ratio=1.)),
    'cswin': dict(type='FLattenCSwin', attn_type='LSLL', out_indices=(1,),
                  arch=dict(embed_dims=8, depths=[1] * 4, num_heads=[2, 2, 2, 2], mlp_ratio=1.)),
    'deit': dict(type='FLattenDeiT', attn_type='LSLS', out_indices=(1,),
                 arch=dict(embed_dims=8, depths=[1] * 4, num_heads=2, mlp_ratio=1.,
                           patch_size=16)),
}


def build(name: str, **options) -> ExportableModel:
    """A backbone whose position tables, biases and scales are not the zeros they start from."""
    model = MODELS.build(dict(BACKBONES[name], **options)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return ExportableModel(model, None).eval()


@pytest.mark.parametrize('name', BACKBONES)
def test_one_program_for_every_size(name: str) -> None:
    model = build(name)
    program = export_program(model)
    symbols = set(program.range_constraints)
    assert len(symbols) == 3  # batch, height and width: nothing was fixed
    checks = verify(program.module(), model, default_sizes((224, 224)))
    assert len(checks) == 6 and {check.batch for check in checks} == {1, 2}


def test_program_refuses_smaller_images() -> None:
    program = export_program(build('pvt'))
    with pytest.raises(Exception, match='64'):
        program.module()(torch.zeros(1, 3, 40, 64))


def test_windows_that_would_be_cropped_are_refused() -> None:
    """The position table of focused windows is resized where a map is smaller than they are."""
    with pytest.raises(UserError, match='--fixed-size') as error:
        export_program(build('swin', window_size=20, attn_type='LLLL', out_indices=(0,)))
    assert '77 <= ' in str(error.value)  # from 20 cells of 4 pixels on


@pytest.mark.parametrize('name', ['pvtv2-li', 'cswin'])
def test_onnx_has_the_results_of_the_model(name: str, tmp_path) -> None:
    onnx = pytest.importorskip('onnx', reason='onnx is not installed')
    pytest.importorskip('onnxruntime', reason='onnxruntime is not installed')
    pytest.importorskip('onnxscript', reason='onnxscript is not installed')
    report = export_onnx(build(name), tmp_path / 'model.onnx', metadata=dict(config='a'))
    assert [path.name for path in tmp_path.iterdir()] == ['model.onnx']
    assert len(report.checks) == 6
    proto = onnx.load(report.path)
    onnx.checker.check_model(proto)
    axes = [axis.dim_param or axis.dim_value for axis in
            proto.graph.input[0].type.tensor_type.shape.dim]
    assert axes == ['batch', 3, 'height', 'width']
    assert [output.name for output in proto.graph.output] == report.outputs
    assert {item.key: item.value for item in proto.metadata_props}['config'] == 'a'


@pytest.mark.parametrize('wrong', [lambda out: out * 1.001, lambda out: out[..., 1:],
                                   lambda out: out * float('nan')], ids=['value', 'shape', 'nan'])
def test_wrong_graph_is_refused(wrong) -> None:
    model = ExportableModel(nn.Conv2d(3, 4, 3, padding=1), None).eval()
    assert verify(model, model, [(65, 80)])[0].difference == 0
    with pytest.raises(UserError, match='on 1 images of 65x80'):
        verify(lambda images: [wrong(out) for out in model(images)], model, [(65, 80)])


def test_pooling_is_that_of_torch() -> None:
    x = torch.randn(2, 3, 10, 13)
    for size in ((1, 1), (2, 3), (7, 7), (6, 16)):
        ours, theirs = export_layers.AveragePool(size)(x), nn.AdaptiveAvgPool2d(size)(x)
        torch.testing.assert_close(ours, theirs)


def test_layers_are_put_back_after_an_export() -> None:
    model = nn.Sequential(nn.AdaptiveAvgPool2d(2))
    with pytest.raises(RuntimeError), export_layers.exportable_layers(model):
        assert isinstance(model[0], export_layers.AveragePool)
        raise RuntimeError
    assert isinstance(model[0], nn.AdaptiveAvgPool2d)


def test_missing_packages_are_named(monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(export_module, 'PACKAGES', ('onnx', 'no_such_runtime'))
    with pytest.raises(UserError, match='no_such_runtime'):
        export_onnx(build('pvt'), tmp_path / 'model.onnx')
    assert not list(tmp_path.iterdir())
