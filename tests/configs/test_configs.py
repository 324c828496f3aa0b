"""Every config loads and imports us; those of the demo and for a user's own data train."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from mmengine.config import Config
from mmengine.registry import MODELS, init_default_scope

from flatten_mm.datasets import make_demo_dataset
from flatten_mm.engine import UserError, build_runner, load_config

CONFIGS = Path(__file__).resolve().parents[2] / 'configs'
ALL = sorted(path for path in CONFIGS.rglob('*.py')
             if '_base_' not in path.relative_to(CONFIGS).parts)
CUSTOM = [path for path in ALL if path.parent.name == 'custom']
DEMO = [path for path in ALL if path.parent.name == 'demo']
SEG_CLASSES = ['background', 'disc', 'square', 'traffic light', 'cross', 'ring']


def _name(path: Path) -> str:
    return str(path.relative_to(CONFIGS))


@pytest.fixture(scope='module')
def data(tmp_path_factory):
    return make_demo_dataset(tmp_path_factory.mktemp('data') / 'demo', 4, 2).root


def _load(path: Path, data: Path, **options) -> Config:
    if path in CUSTOM:
        options = dict(img_size=(96, 128), batch_size=2, max_iters=40) | options
        if 'mmseg' in path.parts:
            options = dict(classes=SEG_CLASSES) | options
    return load_config(path, data_root=data if path in CUSTOM + DEMO else None, **options)


def test_the_folders_hold_what_the_readme_names():
    names = {_name(path) for path in CUSTOM + DEMO}
    assert names == {
        'demo/fpn_flatten-pvt_demo-128x128.py',
        'demo/mask-rcnn_flatten-swin_demo.py',
        'mmseg/custom/fpn_flatten-pvt-t_custom.py',
        'mmdet/custom/mask-rcnn_flatten-swin-t_custom.py',
        'mmdet/custom/faster-rcnn_flatten-swin-t_custom-boxes.py',
    }


@pytest.mark.parametrize('path', ALL, ids=_name)
def test_loads_and_imports_us(path, data):
    cfg = _load(path, data)
    assert 'flatten_mm' in cfg.custom_imports['imports']
    assert cfg.custom_imports['allow_failed_imports'] is False
    assert cfg.default_hooks.checkpoint.type == 'ResumableCheckpointHook'


@pytest.mark.parametrize('path', CUSTOM + DEMO, ids=_name)
def test_survives_a_dump(path, data, tmp_path):
    """The dump in the work folder is what one tests with later, without the options."""
    cfg = _load(path, data)
    assert 'SyncBN' not in str(cfg.model), 'SyncBN cannot train on a CPU'
    dumped = tmp_path / 'dumped.py'
    cfg.dump(dumped)
    assert Config.fromfile(dumped).to_dict() == cfg.to_dict()


@pytest.mark.parametrize('path', CUSTOM + DEMO, ids=_name)
def test_trains_and_predicts(path, data, tmp_path, monkeypatch):
    """One loss with gradients everywhere it should be, and one prediction, on real batches."""
    cfg = _load(path, data, cfg_options={'train_dataloader.num_workers': 0,
                                         'train_dataloader.persistent_workers': False,
                                         'val_dataloader.num_workers': 0,
                                         'val_dataloader.persistent_workers': False})
    cfg.work_dir = str(tmp_path)
    runner = build_runner(cfg)
    model = runner.model
    batch = next(iter(runner.build_dataloader(cfg.train_dataloader)))
    losses, _ = model.parse_losses(model(**model.data_preprocessor(batch, True), mode='loss'))
    losses.backward()
    without = {name for name, value in model.backbone.named_parameters()
               if value.requires_grad and value.grad is None}
    assert not without
    assert torch.isfinite(losses)
    model.eval()
    with torch.no_grad():
        sample = model.test_step(next(iter(runner.val_dataloader)))[0]
    runner.val_evaluator.process([sample])
    assert runner.val_evaluator.evaluate(1)
    assert 'pred_sem_seg' in sample if cfg.default_scope == 'mmseg' else 'pred_instances' in sample


@pytest.mark.parametrize('path', CUSTOM, ids=_name)
def test_options_of_a_custom_config_reach_every_place(path, data):
    classes = ['disc', 'ring'] if 'mmdet' in path.parts else ['background', 'traffic light']
    cfg = _load(path, data, classes=classes, img_size=(96, 128), batch_size=3, max_iters=70)
    for loader in (cfg.train_dataloader, cfg.val_dataloader, cfg.test_dataloader):
        assert loader.dataset.data_root == str(data)
        assert list(loader.dataset.metainfo.classes) == classes
        sizes = [step.scale for step in loader.dataset.pipeline if 'scale' in step]
        assert sizes == [(128, 96)]
    heads = [value for value in _walk(cfg.model) if 'num_classes' in value]
    assert heads and all(head['num_classes'] == 2 for head in heads)
    assert cfg.train_dataloader.batch_size == 3
    assert cfg.train_cfg.max_iters == cfg.param_scheduler[-1].end == 70
    assert cfg.train_cfg.val_interval == cfg.default_hooks.checkpoint.interval == 7


@pytest.mark.parametrize('path', [path for path in CUSTOM if 'mmdet' in path.parts], ids=_name)
def test_classes_of_detection_come_from_the_file(path, data):
    assert _load(path, data).classes == ['disc', 'square', 'triangle', 'cross', 'ring']


def test_custom_without_classes_or_data(data, tmp_path):
    seg, det = (next(path for path in CUSTOM if scope in path.parts)
                for scope in ('mmseg', 'mmdet'))
    with pytest.raises(UserError, match='give --classes'):
        load_config(seg, data_root=data)
    with pytest.raises(UserError, match=r'no annotation file .*train\.json'):
        load_config(det, data_root=tmp_path)
    with pytest.raises(UserError, match='--img-size'):
        load_config(det, data_root=data, img_size=(5, 5))


@pytest.mark.parametrize('path', CUSTOM, ids=_name)
def test_pretrained_backbone_from_the_command_line(path, data):
    """The two overrides of the README, on a config whose backbone has no init_cfg."""
    cfg = _load(path, data, cfg_options={'model.backbone.init_cfg.type': 'Pretrained',
                                         'model.backbone.init_cfg.checkpoint': 'file.pth'})
    assert cfg.model.backbone.init_cfg == dict(type='Pretrained', checkpoint='file.pth')


def test_no_decay_on_norms_biases_and_position_tables(data):
    path = next(path for path in DEMO if 'swin' in path.name)
    cfg = _load(path, data)
    init_default_scope('mmdet')
    model = MODELS.build(cfg.model)
    from mmengine.optim import build_optim_wrapper
    groups = build_optim_wrapper(model, cfg.optim_wrapper).optimizer.param_groups
    decays = {id(group['params'][0]): group['weight_decay'] for group in groups}
    free = [name for name, value in model.backbone.named_parameters()
            if value.requires_grad and decays[id(value)] == 0]
    decayed = [name for name, value in model.backbone.named_parameters()
               if value.requires_grad and decays[id(value)] > 0]
    assert any('positional_encoding' in name for name in free)
    assert any('relative_position_bias_table' in name for name in free)
    assert all(name.endswith('weight') and 'norm' not in name for name in decayed), decayed


def _walk(node):
    if isinstance(node, dict):
        yield node
        for value in node.values():
            yield from _walk(value)
    elif isinstance(node, (list, tuple)):
        for value in node:
            yield from _walk(value)
