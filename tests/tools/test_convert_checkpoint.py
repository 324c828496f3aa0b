"""Released files to mm and back, and the tool around it."""
from __future__ import annotations

import importlib.util
import os
import stat
from pathlib import Path

import pytest
import torch
from mmengine.runner import load_checkpoint
from mmpretrain.registry import MODELS
from torch import nn

from flatten_mm import backbones
from flatten_mm.checkpoint import CheckpointError, convert_checkpoint, read_checkpoint

REPO = Path(__file__).resolve().parents[2]
PVT_ARCH = dict(embed_dims=[8, 16, 24, 32], num_heads=[1, 2, 2, 4], mlp_ratios=[2, 2, 2, 2],
                depths=[1, 1, 2, 1])
SWIN_ARCH = dict(embed_dims=12, depths=[1, 2, 2, 1], num_heads=[1, 2, 3, 6], mlp_ratio=2.)
CSWIN_ARCH = dict(embed_dims=16, depths=[1, 1, 2, 1], num_heads=[2, 2, 4, 8], mlp_ratio=2.)
DEIT_ARCH = dict(embed_dims=16, depths=[1, 1, 1, 1], num_heads=2, mlp_ratio=2., patch_size=16)
FAMILIES = {
    'FLattenPVT': (PVT_ARCH, 32), 'FLattenPVTv2': (PVT_ARCH, 32), 'FLattenSwin': (SWIN_ARCH, 96),
    'FLattenCSwin': (CSWIN_ARCH, 128), 'FLattenDeiT': (DEIT_ARCH, 16),
}


def _tool():
    spec = importlib.util.spec_from_file_location('convert_checkpoint_tool',
                                                  REPO / 'tools' / 'convert_checkpoint.py')
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.main


main = _tool()


def classifier(family: str, num_classes: int = 10) -> nn.Module:
    arch, width = FAMILIES[family]
    return MODELS.build(dict(
        type='ImageClassifier', _scope_='mmpretrain',
        backbone=dict(type=family, arch=arch, pretrain_img_size=64, out_indices=(3,)),
        neck=dict(type='GlobalAveragePooling'),
        head=dict(type='LinearClsHead', num_classes=num_classes, in_channels=width))).eval()


def released(family: str) -> dict[str, torch.Tensor]:
    arch, width = FAMILIES[family]
    model = getattr(backbones, family)(arch=arch, pretrain_img_size=64, out_indices=(3,))
    state = {name: torch.randn(t.shape) * 0.1 for name, t in model.state_dict().items()}
    return {**state, 'head.weight': torch.randn(10, width), 'head.bias': torch.randn(10)}


def save(path: Path, content: object) -> str:
    torch.save(content, path)
    return str(path)


def same(ours: dict, theirs: dict) -> bool:
    return set(ours) == set(theirs) and all(torch.equal(ours[k], theirs[k]) for k in theirs)


@pytest.mark.parametrize('family', FAMILIES)
def test_released_to_classifier_and_back(tmp_path, family):
    state = released(family)
    source = save(tmp_path / 'released.pth', {'model': state, 'epoch': 299, 'max_accuracy': 80.})
    mm, back = str(tmp_path / 'mm.pth'), str(tmp_path / 'back.pth')
    assert main([source, mm, '--to', 'classifier']) == 0
    model = classifier(family)
    content = load_checkpoint(model, mm, strict=True)
    assert content['meta']['epoch'] == 299
    image = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        features = model.backbone(image)[-1].mean(dim=(2, 3))
        expected = features @ state['head.weight'].T + state['head.bias']
        assert torch.allclose(model(image), expected, atol=1e-5)
    assert main([mm, back, '--to', 'released']) == 0
    assert same(torch.load(back, weights_only=True)['model'], state)


def test_backbone_loads_plainly(tmp_path):
    state = released('FLattenSwin')
    state['layers.2.blocks.0.attn.relative_position_index'] = torch.zeros(4, 4).long()
    state['layers.2.blocks.1.attn_mask'] = torch.zeros(4, 4, 4)
    content, report = convert_checkpoint(save(tmp_path / 'in.pth', state), 'backbone')
    model = backbones.FLattenSwin(arch=SWIN_ARCH, pretrain_img_size=64, out_indices=(3,))
    model.load_state_dict(content['state_dict'], strict=True)
    assert report.left_over == ['head.weight', 'head.bias']
    assert len(report.recomputed) == 2
    assert len(report.loaded) == len(model.state_dict())
    assert content['meta']['converted_from'] == 'in.pth'


def test_backbone_of_a_segmentor(tmp_path):
    state = released('FLattenSwin')
    del state['head.weight'], state['head.bias']
    mm = {**{f'backbone.{k}': v for k, v in state.items()}, 'backbone.norm0.weight': torch.ones(12),
          'decode_head.conv_seg.weight': torch.zeros(3)}
    path = save(tmp_path / 'seg.pth', {'state_dict': mm, 'meta': {'iter': 5}})
    content, report = convert_checkpoint(path, 'backbone')
    assert same(content['state_dict'], {**state, 'norm0.weight': torch.ones(12)})
    assert report.prefix == 'backbone.' and report.left_over == ['decode_head.conv_seg.weight']
    # The released model has no norm after earlier stages.
    content, report = convert_checkpoint(path, 'released')
    assert same(content['model'], state)
    assert report.left_over == ['decode_head.conv_seg.weight', 'backbone.norm0.weight']
    with pytest.raises(CheckpointError, match=r'no classification head .* --to backbone'):
        convert_checkpoint(path, 'classifier')


def test_weights_alone_are_saved(tmp_path):
    """Not the storage of a whole file that each tensor is a view of."""
    big = torch.zeros(1_000_000)
    state = released('FLattenDeiT')
    state['norm.bias'] = big[:16]
    main([save(tmp_path / 'in.pth', {'model': state, 'optimizer': {'a': torch.zeros(10**6)}}),
          str(tmp_path / 'out.pth')])
    assert os.path.getsize(tmp_path / 'out.pth') < 500_000


def test_tool_prints_the_report(tmp_path, capsys):
    source = save(tmp_path / 'in.pth', {'model': released('FLattenPVT')})
    assert main([source, str(tmp_path / 'out.pth')]) == 0
    out = capsys.readouterr().out
    assert "mm backbone from " in out and "(entry 'model')" in out
    assert 'FLatten-PVT of no released size (width 8, ' in out
    assert 'left over (in the file, not in the model): 2: head.weight, head.bias' in out
    assert 'wrote ' in out


def test_nothing_is_overwritten_unasked_or_left_half(tmp_path, capsys, monkeypatch):
    source = save(tmp_path / 'in.pth', {'model': released('FLattenPVT')})
    target = tmp_path / 'out.pth'
    target.write_text('precious')
    assert main([source, str(target)]) == 1
    assert 'exists' in one_line(capsys) and target.read_text() == 'precious'

    def full(content, file):
        file.write(b'half')
        raise OSError(28, 'No space left on device')

    with monkeypatch.context() as patch:
        patch.setattr(torch, 'save', full)
        assert main([source, str(target), '--force']) == 1
    assert 'No space' in one_line(capsys) and target.read_text() == 'precious'
    assert sorted(p.name for p in tmp_path.iterdir()) == ['in.pth', 'out.pth']

    assert main([source, str(target), '--force']) == 0
    assert read_checkpoint(target).weights_key == 'state_dict'
    umask = os.umask(0)
    os.umask(umask)
    assert stat.S_IMODE(target.stat().st_mode) == 0o666 & ~umask
    assert main([str(target), str(target), '--force', '--to', 'released']) == 0
    assert read_checkpoint(target).weights_key == 'model'


def one_line(capsys) -> str:
    error = capsys.readouterr().err
    assert error.startswith('error: ') and error.count('\n') == 1 and 'Traceback' not in error
    return error


def test_failures_are_one_sentence(tmp_path, capsys):
    out = str(tmp_path / 'out.pth')
    assert main([str(tmp_path / 'absent.pth'), out]) == 1
    assert 'absent.pth does not exist' in one_line(capsys)
    assert main([save(tmp_path / 'resnet.pth', {'conv1.weight': torch.zeros(3)}), out]) == 1
    assert 'none of the families' in one_line(capsys)
    source = save(tmp_path / 'in.pth', released('FLattenPVT'))
    assert main([source, str(tmp_path)]) == 1
    assert 'is a folder' in one_line(capsys)
    assert main([source, str(tmp_path / 'nowhere' / 'out.pth')]) == 1
    assert 'nowhere does not exist' in one_line(capsys)
    state = {**released('FLattenDeiT'), 'cls_token': torch.zeros(1, 1, 16)}
    assert main([save(tmp_path / 'deit.pth', state), out, '--to', 'classifier']) == 1
    assert 'class token' in one_line(capsys)
    assert not os.path.exists(out)


@pytest.mark.parametrize('arguments', [[], ['in.pth'], ['in.pth', 'out.pth', '--to', 'onnx'],
                                       ['in.pth', 'out.safetensors']])
def test_usage(arguments, capsys):
    with pytest.raises(SystemExit) as end:
        main(arguments)
    assert end.value.code == 2
    assert 'usage:' in capsys.readouterr().err


def test_classifier_of_a_released_training_file_gives_its_logits(shared, tmp_path):
    record = torch.load(shared('golden', 'pvt_v2_llll.pt'), weights_only=True)
    source = shared('golden', 'training_checkpoint_pvt_v2_llll.pth')
    assert main([str(source), str(tmp_path / 'mm.pth'), '--to', 'classifier']) == 0
    keys = ('embed_dims', 'num_heads', 'mlp_ratios', 'depths')
    arch = {key: record['kwargs'][key] for key in keys}
    model = MODELS.build(dict(
        type='ImageClassifier', _scope_='mmpretrain',
        backbone=dict(type='FLattenPVTv2', arch=arch, out_indices=(3,)),
        neck=dict(type='GlobalAveragePooling'),
        head=dict(type='LinearClsHead', num_classes=10, in_channels=arch['embed_dims'][-1])))
    load_checkpoint(model.eval(), str(tmp_path / 'mm.pth'), strict=True)
    with torch.no_grad():
        logits = model(record['input'])
    assert (logits - record['logits']).abs().max() < 1e-5 * record['logits'].abs().max()
