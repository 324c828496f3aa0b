"""Every config of the paper's tables: what it costs, that it trains, that it is what it says."""
from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
import torch
from mmengine.config import Config
from mmengine.dataset import default_collate, pseudo_collate
from mmengine.optim import build_optim_wrapper
from mmengine.registry import DATASETS, MODELS, init_default_scope
from paper_layouts import ADE_LABELS, COCO_NAMES, IMAGENET_FOLDERS, shrunk

from flatten_mm.analysis.model_tables import metafiles, record, with_table
from flatten_mm.compat import load_from_local
from flatten_mm.engine import UserError, cli, load_config, train
from flatten_mm.engine import test as run_test

REPO = Path(__file__).resolve().parents[2]
CONFIGS = REPO / 'configs'
PATHS = {path.stem: path for path in sorted(CONFIGS.glob('mm*/flatten_*/*.py'))}
MODELS_OF_METAFILES = {model['Name']: model for file in metafiles(REPO) for model in file.models}
FAR_FROM_THE_PAPER = {  # what their READMEs say more about
    'fpn_flatten-pvt-t_4xb4-40k_ade20k-512x512': 'FLOPs of FLatten-PVT-T',
    'mask-rcnn_flatten-pvt-t_fpn_1x_coco': 'FLOPs of FLatten-PVT-T',
    'flatten-pvtv2-b1-softmax_16xb64_in1k': 'Parameters of PVTv2-B1',
}
TOLERANCES = {'Parameters': 0.015, 'FLOPs': 0.02}

names = pytest.mark.parametrize('name', PATHS)


@cache
def _config(name: str) -> Config:
    return Config.fromfile(PATHS[name])


def _small(name: str, layouts: Path) -> Config:
    return shrunk(Config(_config(name).to_dict(), filename=str(PATHS[name])), layouts)


# ---- what they cost


@names
def test_cost(name):
    """The metafile has what is measured, and that is the paper's where the paper has the row."""
    model = MODELS_OF_METAFILES[name]
    recorded = {key: model['Metadata'][key] for key in ('Parameters', 'FLOPs', 'FLOPs Input')}
    record(model, REPO)
    if not hasattr(torch.compiler, 'set_stance'):  # torch before 2.6 counts interpolation otherwise
        assert model['Metadata']['FLOPs'] == pytest.approx(recorded['FLOPs'], rel=1e-3)
        model['Metadata']['FLOPs'] = recorded['FLOPs']
    assert {key: model['Metadata'][key] for key in recorded} == recorded
    paper = model['Metadata'].get('Paper Reports', {})
    far = FAR_FROM_THE_PAPER.get(name, '').split(' of ')[0]
    for key, tolerance in TOLERANCES.items():
        if key in paper:
            close = _is_close(recorded[key], paper[key], tolerance)
            assert close == (key != far), (recorded[key], paper[key])


def _is_close(value: float, printed: str, tolerance: float) -> bool:
    """Whether ``value`` is within the tolerance of a number that rounds to what is printed."""
    digits, unit = printed[:-1], {'M': 1e6, 'G': 1e9}[printed[-1]]
    half = 0.5 * 10**-len(digits.partition('.')[2])
    return abs(value / unit - float(digits)) <= half + tolerance * float(digits)


def test_tolerance():
    assert _is_close(2.047e9, '2.0G', 0.) and not _is_close(2.06e9, '2.0G', 0.)
    assert _is_close(945.7e9, '945G', 0.02) and not _is_close(129e9, '169G', 0.02)


def test_metafiles_and_readmes_are_whole():
    listed = {model['Name']: REPO / model['Config'] for model in MODELS_OF_METAFILES.values()}
    assert listed == PATHS
    for file in metafiles(REPO):
        readme = file.readme.read_text()
        assert with_table(readme, file.models) == readme, 'run tools/update_model_tables.py'
        assert file.path.read_text() == file.dump()
        for name, heading in FAR_FROM_THE_PAPER.items():
            if any(model['Name'] == name for model in file.models):
                assert f'**{heading}.**' in readme


def test_metafiles_repeat_the_paper(shared):
    """Every figure of the page that lists the paper's stands in a metafile, and no other."""
    text = shared('golden', 'paper_tables.md').read_text()
    in_tables = sorted(re.findall(r'(?<![\w.])(\d+(?:\.\d+)?[MG])\b', text.split('## Other')[0]))
    reported = [model['Metadata'].get('Paper Reports', {}) for model in
                MODELS_OF_METAFILES.values()]
    # Two Swin-T baselines of Mask R-CNN and the like are printed once a row, as here.
    assert sorted(str(paper[key]) for paper in reported for key in TOLERANCES if key in paper) == (
        in_tables)


# ---- that they train


@names
def test_one_step(name, layouts):
    """A step on the config's own data pipeline moves every parameter there is."""
    cfg = _small(name, layouts)
    init_default_scope(cfg.default_scope)
    dataset = DATASETS.build(cfg.train_dataloader.dataset)
    cfg.model.setdefault('data_preprocessor', cfg.get('data_preprocessor'))  # as the Runner does
    model = MODELS.build(cfg.model)
    model.init_weights()
    optim_wrapper = build_optim_wrapper(model, cfg.optim_wrapper)
    collate = default_collate if cfg.default_scope == 'mmpretrain' else pseudo_collate
    batch = model.data_preprocessor(collate([dataset[0], dataset[1]]), training=True)
    loss, _ = model.parse_losses(model(**batch, mode='loss'))
    assert torch.isfinite(loss)
    optim_wrapper.backward(loss)
    without = [key for key, value in model.named_parameters()
               if value.requires_grad and value.grad is None]
    assert not without, 'DistributedDataParallel stops at parameters without a gradient'
    before = _sizes(model)
    optim_wrapper.step()
    still = {key for key, size in _sizes(model).items() if size == before[key]}
    assert still <= {key for key, value in model.named_parameters()
                     if not value.requires_grad or not value.grad.any()}


def _sizes(model: torch.nn.Module) -> dict[str, float]:
    """A number a parameter, which changes with its values."""
    return {key: value.detach().double().square().sum().item()
            for key, value in model.named_parameters()}


@pytest.mark.slow
@pytest.mark.parametrize('name, metrics', [
    ('fpn_flatten-pvt-t_4xb4-40k_ade20k-512x512', {'mIoU', 'mAcc'}),
    ('upernet_flatten-swin-t-softmax_8xb2-160k_ade20k-512x512', {'mIoU', 'mAcc'}),
    ('mask-rcnn_flatten-swin-t_fpn_ms-crop-3x_coco', {'coco/bbox_mAP', 'coco/segm_mAP'}),
    ('cascade-mask-rcnn_flatten-swin-s_fpn_ms-crop-3x_coco', {'coco/bbox_mAP', 'coco/segm_mAP'}),
    ('retinanet_flatten-pvt-t_fpn_1x_coco', {'coco/bbox_mAP'}),
    ('flatten-pvtv2-b0_16xb64_in1k', {'accuracy/top1', 'accuracy/top5'}),
    ('flatten-deit-tiny-hydra_16xb64_in1k', {'accuracy/top1', 'accuracy/top5'}),
    ('flatten-cswin-tiny_16xb64_in1k', {'accuracy/top1', 'accuracy/top5'}),
])
def test_run(name, metrics, layouts, tmp_path):
    """The Runner trains, validates, saves and tests, with the config's hooks and schedules."""
    cfg = _small(name, layouts)
    if 'max_epochs' in cfg.train_cfg:
        cfg.train_cfg.max_epochs = 1
    else:
        cfg.train_cfg.update(max_iters=2, val_interval=2)
        cfg.default_hooks.checkpoint.interval = 2
    cfg.default_hooks.checkpoint.save_optimizer = False  # hundreds of megabytes
    test_cfg = cfg.model.get('test_cfg') or {}
    for part in (test_cfg, *(test_cfg.get(key, {}) for key in ('rpn', 'rcnn'))):
        if 'score_thr' in part:
            part.score_thr = 0.  # a detector this young is sure of nothing
        if 'max_per_img' in part:
            part.max_per_img = 10
    runner = train(cfg, work_dir=tmp_path)
    assert runner.iter == 2
    rate = runner.optim_wrapper.get_lr()['lr'][-1]
    base = cfg.optim_wrapper.optimizer.lr
    warms_up = any(schedule.type == 'LinearLR' for schedule in cfg.param_scheduler)
    assert (rate < 0.5 * base) if warms_up else (rate == pytest.approx(base, rel=1e-3))
    checkpoint, = tmp_path.glob('*_[12].pth')
    assert metrics <= set(run_test(cfg, checkpoint, work_dir=tmp_path / 'test'))
    saved = load_from_local(str(checkpoint), 'cpu')
    assert ('ema_state_dict' in saved) == ('cswin' in name)


# ---- that they are what they say


@pytest.mark.parametrize('name', [name for name in PATHS if 'softmax' in name])
def test_softmax_twin(name):
    """The same file but for the attention and the weights it starts from."""
    def comparable(cfg):
        content = cfg.to_dict()
        letters = content['model']['backbone'].pop('attn_type', None)
        for part in (content['model']['backbone'], content['model'].get('head', {})):
            part.get('init_cfg', {}).pop('checkpoint', None)
        content.pop('checkpoint', None)
        return letters, content
    letters, own = comparable(_config(name))
    other_letters, other = comparable(_config(name.replace('-softmax', '')))
    assert letters == 'SSSS' and other_letters is None
    assert own == other


# What a word in a name stands for in the backbone.
WORDS = {
    **{word: dict(attention=word)
       for word in ('linear', 'efficient', 'hydra', 'angular', 'enhanced')},
    'no-focus': dict(focusing_factor=1),
    'no-dwc': dict(rank_restoration=False),
}


@pytest.mark.parametrize('word', WORDS)
@pytest.mark.parametrize('name', ['flatten-deit-tiny_16xb64_in1k', 'flatten-swin-tiny_16xb64_in1k',
                                  'fpn_flatten-pvt-t_4xb4-40k_ade20k-512x512'])
def test_other_attentions_are_one_word(name, word):
    """The same file but for one argument of the backbone."""
    stem, rest = re.match(r'(.*?(?:tiny|-t))(_.*)', name).groups()
    own, other = _config(f'{stem}-{word}{rest}').to_dict(), _config(name).to_dict()
    backbone = own['model']['backbone']
    assert {key: backbone.pop(key) for key in WORDS[word]} == WORDS[word]
    assert own == other


def test_every_word_has_its_configs():
    named = [word for name in PATHS for word in WORDS if re.search(rf'-{word}_', name)]
    assert sorted(named) == sorted([*WORDS] * 3)


def test_accuracies_of_other_attentions_are_the_papers(shared):
    """Each that the page of the paper's figures lists stands in a metafile, and no other."""
    text = shared('golden', 'paper_tables.md').read_text()
    found = {}
    for model, title in (('deit', 'DeiT-T'), ('swin', 'Swin-T')):
        row = re.search(rf'{title}: (Hydra [^(]*)\(', text)[1]
        for phrase, word in (('Hydra', 'hydra'), ('Efficient', 'efficient'),
                             ('Linear Angular', 'angular'), ('Enhanced', 'enhanced')):
            found[model, word] = float(re.search(rf'{phrase} ([\d.]+)', row)[1])
    steps = re.search(r'vanilla linear attention ([\d.]+), \+ focused function ([\d.]+)', text)
    found['deit', 'linear'], found['deit', 'no-dwc'] = map(float, steps.groups())
    ours = {(model, word): meta['Metadata']['Paper Reports']['top-1']
            for name, meta in MODELS_OF_METAFILES.items() for model in ('deit', 'swin')
            for word in WORDS
            if f'-{word}_' in name and model in name and 'Paper Reports' in meta['Metadata']}
    assert ours == found


# Model: warm-up epochs, epochs, least and first learning rate, weight decay, clipping, EMA.
_PVT = (5, 310, 1e-5, 1e-6, 0.05, None, None)
_CLIPPED = (5, 310, 1e-5, 1e-6, 0.05, 1.0, None)
_SWIN = (20, 300, 5e-6, 5e-7, 0.05, 5.0, None)
_CSWIN = (20, 310, 1e-5, 1e-6, 0.05, None, 0.99984)
RECIPES = {
    'flatten-deit-tiny': (20, 310, 1e-5, 1e-6, 0.05, None, None),
    'flatten-pvt-tiny': _PVT, 'flatten-pvt-small': _PVT,
    'flatten-pvt-medium': _CLIPPED, 'flatten-pvt-large': _CLIPPED,
    'flatten-pvtv2-b0': _PVT, 'flatten-pvtv2-b1': _PVT, 'flatten-pvtv2-b2': _PVT,
    'flatten-pvtv2-b3': _CLIPPED, 'flatten-pvtv2-b4': _CLIPPED,
    'flatten-swin-tiny': _SWIN, 'flatten-swin-small': _SWIN, 'flatten-swin-base': _SWIN,
    'flatten-cswin-tiny': _CSWIN, 'flatten-cswin-small': _CSWIN,
    'flatten-cswin-base': (20, 310, 1e-5, 1e-6, 0.1, None, 0.99982),
}


@pytest.mark.parametrize('model', RECIPES)
def test_imagenet_recipe(model):
    cfg = _config(f'{model}_16xb64_in1k')
    warm_up, cosine = cfg.param_scheduler
    optimizer = cfg.optim_wrapper.optimizer
    assert optimizer.type == 'AdamW' and optimizer.lr == 1e-3
    assert (tuple(optimizer.betas), optimizer.eps) == ((0.9, 0.999), 1e-8)
    assert cfg.train_dataloader.batch_size * 16 == cfg.auto_scale_lr.base_batch_size == 1024
    assert cosine.end == 300 and warm_up.end == cosine.begin
    assert warm_up.convert_to_iter_based and cosine.convert_to_iter_based
    clip = (cfg.optim_wrapper.get('clip_grad') or {}).get('max_norm')
    ema = [1 - hook.momentum for hook in cfg.get('custom_hooks', ()) if hook.type == 'EMAHook']
    assert RECIPES[model] == (
        warm_up.end, cfg.train_cfg.max_epochs, cosine.eta_min,
        pytest.approx(warm_up.start_factor * optimizer.lr), optimizer.weight_decay, clip,
        pytest.approx(ema[0]) if ema else None)


@pytest.mark.parametrize('model, official', [
    ('flatten-pvt-tiny', 'pvt_t'), ('flatten-pvt-small', 'pvt_s'), ('flatten-pvt-medium', 'pvt_m'),
    ('flatten-pvt-large', 'pvt_b'), *((f'flatten-pvtv2-b{i}', f'pvt_v2_b{i}') for i in range(5)),
    *((f'flatten-{family}-{size}', f'{family}_{size[0]}') for family in ('swin', 'cswin')
      for size in ('tiny', 'small', 'base')),
    ('flatten-swin-base_384', 'swin_b_384'), ('flatten-cswin-base_384', 'cswin_b_384')])
def test_configs_build_the_released_models(model, official, shared):
    known = json.loads(shared('golden', 'official_checkpoints.json').read_text())
    known = known[f'flatten_{official}']
    model, fine_tuned, _ = model.partition('_384')
    name = f'{model}_16xb32_in1k-384px' if fine_tuned else f'{model}_16xb64_in1k'
    backbone = _config(name).model.backbone
    assert backbone.drop_path_rate == known['drop_path_rate']
    assert backbone.get('pretrain_img_size', 224) == known['img_size']
    assert MODELS_OF_METAFILES[name]['Metadata']['Parameters'] == known['num_params']


@pytest.mark.parametrize('name, epochs, warm_up, rate, drop_path, resize, crop', [
    ('flatten-swin-base_16xb32_in1k-384px', 30, 5, 2e-5, 0.5, (384, 384), None),
    ('flatten-cswin-base_16xb32_in1k-384px', 20, 0, 5e-6, 0.7, (438, 438), 384)])
def test_fine_tuning_recipe(name, epochs, warm_up, rate, drop_path, resize, crop):
    cfg = _config(name)
    optimizer = cfg.optim_wrapper.optimizer
    assert (optimizer.lr, optimizer.weight_decay) == (rate, 1e-8)
    assert cfg.train_cfg.max_epochs == cfg.param_scheduler[-1].end == epochs
    assert cfg.param_scheduler[-1].begin == warm_up
    assert cfg.model.backbone.drop_path_rate == drop_path
    assert _test_sizes(cfg) == (resize, crop)
    assert [step.scale for step in cfg.train_dataloader.dataset.pipeline
            if step.type == 'RandomResizedCrop'] == [384]


_ADE = 'ade20k-512x512'
# Config: optimizer steps or epochs, learning rate, weight decay, warm-up, drop path.
DENSE_RECIPES = {
    f'fpn_flatten-pvt-t_4xb4-40k_{_ADE}': (40000, 2e-4, 1e-4, 0, None),
    f'fpn_flatten-pvtv2-b2_4xb4-40k_{_ADE}': (40000, 2e-4, 1e-4, 0, None),
    f'upernet_flatten-swin-t_8xb2-160k_{_ADE}': (160000, 6e-5, 0.01, 1500, 0.3),
    f'upernet_flatten-swin-b_8xb2-160k_{_ADE}': (160000, 6e-5, 0.01, 1500, 0.3),
    f'upernet_flatten-cswin-t_8xb2-160k_{_ADE}': (160000, 6e-5, 0.01, 1500, 0.3),
    'mask-rcnn_flatten-pvt-l_fpn_1x_coco': (12, 2e-4, 1e-4, 500, 0.3),
    'mask-rcnn_flatten-pvtv2-b0_fpn_1x_coco': (12, 2e-4, 1e-4, 500, None),
    'retinanet_flatten-pvt-s_fpn_1x_coco': (12, 2e-4, 1e-4, 500, None),
    'mask-rcnn_flatten-swin-t_fpn_1x_coco': (12, 1e-4, 0.05, 1000, 0.2),
    'mask-rcnn_flatten-swin-s_fpn_ms-crop-3x_coco': (36, 1e-4, 0.05, 1000, 0.2),
    'cascade-mask-rcnn_flatten-swin-t_fpn_1x_coco': (12, 1e-4, 0.05, 1000, 0.2),
    'cascade-mask-rcnn_flatten-swin-b_fpn_ms-crop-3x_coco': (36, 1e-4, 0.05, 1000, 0.3),
}


@pytest.mark.parametrize('name', DENSE_RECIPES)
def test_dense_recipe(name):
    cfg = _config(name)
    optimizer = cfg.optim_wrapper.optimizer
    warm_up = [schedule.end for schedule in cfg.param_scheduler if schedule.type == 'LinearLR']
    length = cfg.train_cfg.get('max_iters') or cfg.train_cfg.max_epochs
    assert optimizer.type == 'AdamW' and set(optimizer) <= {'type', 'lr', 'betas', 'weight_decay'}
    assert DENSE_RECIPES[name] == (length, optimizer.lr, optimizer.weight_decay, sum(warm_up),
                                   cfg.model.backbone.get('drop_path_rate'))
    assert cfg.param_scheduler[-1].end == length
    gpus = MODELS_OF_METAFILES[name]['Metadata']['GPUs']
    assert gpus * cfg.train_dataloader.batch_size == cfg.auto_scale_lr.base_batch_size == 16


def test_fpn_decays_by_power_and_upernet_linearly():
    powers = [_config(f'{name}_{_ADE}').param_scheduler[-1] for name in (
        'fpn_flatten-pvt-t_4xb4-40k', 'upernet_flatten-swin-t_8xb2-160k')]
    assert [(item.type, item.power) for item in powers] == [('PolyLR', 0.9), ('PolyLR', 1.0)]


def test_crops_and_scales_of_the_3x_schedule_are_mmdets():
    pipelines = [_config(f'{name}-rcnn_flatten-swin-t_fpn_ms-crop-3x_coco')
                 .train_dataloader.dataset.pipeline for name in ('mask', 'cascade-mask')]
    plain = [json.loads(json.dumps(pipeline).replace('"backend_args": null, ', '')
                        .replace(', "backend_args": null', '')) for pipeline in pipelines]
    assert plain[0] == plain[1]


@pytest.mark.parametrize('name', [name for name in PATHS if name.endswith('_16xb64_in1k')])
def test_images_are_stretched_to_256_for_testing(name):
    assert _test_sizes(_config(name)) == ((256, 256), 224)


def _test_sizes(cfg: Config) -> tuple:
    """(size resized to without keeping the ratio, size cropped to) of the test pipeline."""
    steps = {step.type: step for step in cfg.test_dataloader.dataset.pipeline}
    assert steps['Resize'].interpolation == 'bicubic' and not steps['Resize'].get('keep_ratio')
    crop = steps.get('CenterCrop')
    return tuple(steps['Resize'].scale), crop and crop.crop_size


@pytest.mark.parametrize('name, free', [
    ('flatten-swin-tiny-softmax_16xb64_in1k', {'relative_position_bias_table', 'bias', 'norm'}),
    ('flatten-swin-tiny_16xb64_in1k', {'relative_position_bias_table', 'bias', 'norm'}),
    ('upernet_flatten-swin-t_8xb2-160k_ade20k-512x512',
     {'relative_position_bias_table', 'positional_encoding', 'norm'}),
    ('mask-rcnn_flatten-swin-t_fpn_1x_coco',
     {'relative_position_bias_table', 'positional_encoding', 'norm'}),
    ('cascade-mask-rcnn_flatten-swin-t_fpn_1x_coco',
     {'relative_position_bias_table', 'positional_encoding', 'norm'}),
    ('mask-rcnn_flatten-pvt-t_fpn_1x_coco', set())])
def test_weight_decay(name, free, layouts):
    """Which parameters of the backbone do not decay."""
    cfg = _small(name, layouts)
    init_default_scope(cfg.default_scope)
    model = MODELS.build(cfg.model)
    groups = build_optim_wrapper(model, cfg.optim_wrapper).optimizer.param_groups
    decay = {id(value): group['weight_decay'] for group in groups for value in group['params']}
    for key, value in model.backbone.named_parameters():
        expected = any(part in key for part in free)
        assert (decay[id(value)] == 0) == expected, key


# ---- the three layouts


def test_ade20k_drops_its_label_zero(layouts):
    cfg = _small('fpn_flatten-pvt-t_4xb4-40k_ade20k-512x512', layouts)
    init_default_scope('mmseg')
    dataset = DATASETS.build(cfg.val_dataloader.dataset)
    assert len(dataset.metainfo['classes']) == cfg.model.decode_head.num_classes == 150
    values = set(torch.cat([dataset[i]['data_samples'].gt_sem_seg.data.unique()
                            for i in range(len(dataset))]).tolist())
    assert 255 in values
    assert {255} < values <= {255, *(label - 1 for label in ADE_LABELS)}


def test_coco_has_its_80_classes(layouts):
    cfg = _small('retinanet_flatten-pvt-t_fpn_1x_coco', layouts)
    init_default_scope('mmdet')
    dataset = DATASETS.build(cfg.train_dataloader.dataset)
    classes = dataset.metainfo['classes']
    assert len(classes) == cfg.model.bbox_head.num_classes == 80
    labels = {label for i in range(len(dataset))
              for label in dataset[i]['data_samples'].gt_instances.labels.tolist()}
    assert {classes[label] for label in labels} <= set(COCO_NAMES) and len(labels) > 1


def test_imagenet_numbers_its_folders(layouts):
    cfg = _small('flatten-swin-tiny_16xb64_in1k', layouts)
    init_default_scope('mmpretrain')
    dataset = DATASETS.build(cfg.train_dataloader.dataset)
    assert len(dataset.metainfo['classes']) == cfg.model.head.num_classes == 1000
    labels = {int(dataset[i]['data_samples'].gt_label) for i in range(len(dataset))}
    assert labels <= set(IMAGENET_FOLDERS) and len(labels) > 1


@pytest.mark.parametrize('name, words', [
    ('fpn_flatten-pvt-t_4xb4-40k_ade20k-512x512', ['ADEChallengeData2016', 'images/training']),
    ('mask-rcnn_flatten-pvt-t_fpn_1x_coco', ['data/coco', 'instances_train2017.json']),
    ('flatten-pvt-tiny_16xb64_in1k', ['data/imagenet', 'a folder a class'])])
def test_missing_data_is_told_in_a_sentence(name, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    cfg = load_config(PATHS[name], cfg_options={'model.backbone.init_cfg': None})
    with pytest.raises(UserError) as caught:
        train(cfg)
    assert all(word in str(caught.value) for word in words), caught.value


# ---- the weights they start from


@names
def test_weights_to_start_from(name):
    """Dense prediction and fine-tuning start from ImageNet weights, the rest from scratch."""
    init_cfg = _config(name).model.backbone.get('init_cfg')
    if name.endswith('_in1k'):
        assert init_cfg is None
        return
    assert init_cfg.type == 'Pretrained'
    family = PATHS[name].parent.name
    where = init_cfg.checkpoint
    assert where.startswith((f'checkpoints/{family}_', 'https://github.com/', 'checkpoints/cswin_'))
    assert where.startswith('checkpoints/') or 'softmax' in name
    if name.endswith('384px'):
        assert _config(name).model.head.init_cfg == dict(
            type='Pretrained', checkpoint=where, prefix='head.')


def test_folder_of_checkpoints_from_the_environment(monkeypatch):
    monkeypatch.setenv('FLATTEN_CHECKPOINTS', '/some/where')
    cfg = Config.fromfile(PATHS['upernet_flatten-swin-s_8xb2-160k_ade20k-512x512'])
    assert cfg.model.backbone.init_cfg.checkpoint == '/some/where/flatten_swin_s.pth'


@pytest.mark.parametrize('family, tables', [
    ('swin', ['layers.0.blocks.0.attn.positional_encoding',
              'layers.2.blocks.0.attn.relative_position_bias_table']),
    ('cswin', ['stage1.0.attns.0.positional_encoding'])])
def test_fine_tuning_starts_from_the_classifier(family, tables, layouts, tmp_path):
    """Backbone and head of a 224x224 classifier, the position tables resized."""
    init_default_scope('mmpretrain')
    checkpoint = tmp_path / 'classifier.pth'
    first = MODELS.build(_small(f'flatten-{family}-base_16xb64_in1k', layouts).model)
    first.init_weights()
    torch.save(dict(meta={}, state_dict=first.state_dict()), checkpoint)
    cfg = _small(f'flatten-{family}-base_16xb32_in1k-384px', layouts)
    pretrained = dict(type='Pretrained', checkpoint=str(checkpoint))
    cfg.model.backbone.init_cfg = pretrained
    cfg.model.head.init_cfg = dict(pretrained, prefix='head.')
    second = MODELS.build(cfg.model)
    second.init_weights()
    old, new = first.state_dict(), second.state_dict()
    assert old.keys() == new.keys()
    resized = {key for key in old if old[key].shape != new[key].shape}
    assert {f'backbone.{key}' for key in tables} <= resized
    for key in old.keys() - resized:
        assert torch.equal(old[key], new[key]), key


@pytest.mark.parametrize('name, place', [
    ('fpn_flatten-pvt-t_4xb4-40k_ade20k-512x512', 'model.backbone.init_cfg'),
    ('mask-rcnn_flatten-swin-t_fpn_1x_coco', 'model.backbone.init_cfg')])
def test_missing_weights_are_told_in_a_sentence(name, place, layouts, tmp_path, monkeypatch):
    """By our tools and, when the backbone starts, by mm's own; what they advise works."""
    monkeypatch.chdir(tmp_path)
    cfg = load_config(PATHS[name])
    init_cfg = cfg.model.backbone.init_cfg
    cfg = shrunk(cfg, layouts)
    cfg.model.backbone.init_cfg = init_cfg
    with pytest.raises(UserError) as caught:
        train(cfg)
    sentence = str(caught.value)
    assert init_cfg.checkpoint in sentence and 'github.com' in sentence
    assert sentence.endswith(f'--cfg-options {place}=None')
    with pytest.raises(FileNotFoundError, match='github.com.*init_cfg=None'):
        MODELS.build(cfg.model.backbone).init_weights()
    parser = cli.parser('')
    args = parser.parse_args([str(PATHS[name]), '--cfg-options', f'{place}=None'])
    assert cli.read_config(args).model.backbone.init_cfg is None


# ---- in another place


@pytest.mark.parametrize('folder', ['mmseg/flatten_pvt', 'mmseg/flatten_swin', 'mmdet/flatten_pvt',
                                    'mmdet/flatten_swin'])
def test_copied_folder_works_in_another_checkout(folder, tmp_path):
    """mmseg's and mmdet's configs need nothing of ours but the installed package."""
    copied = shutil.copytree(CONFIGS / folder, tmp_path / 'configs' / Path(folder).name)
    for path in copied.glob('*.py'):
        assert Config.fromfile(path).to_dict() == _config(path.stem).to_dict()


@pytest.mark.parametrize('name', ['flatten-swin-base_16xb32_in1k-384px',
                                  'upernet_flatten-swin-t_8xb2-160k_ade20k-512x512',
                                  'cascade-mask-rcnn_flatten-swin-t_fpn_ms-crop-3x_coco'])
def test_flattened_config_is_the_config(name, tmp_path):
    path = tmp_path / 'flat.py'
    path.write_text(_config(name).pretty_text)
    assert Config.fromfile(path).to_dict() == _config(name).to_dict()


@pytest.mark.slow
@pytest.mark.parametrize('scope, name', [
    ('mmseg', 'fpn_flatten-pvt-t_4xb4-40k_ade20k-512x512'),
    ('mmdet', 'retinanet_flatten-pvt-t_fpn_1x_coco')])
def test_trains_with_the_librarys_own_tool(scope, name, layouts, tmp_path):
    """From an empty folder, as in a user's checkout."""
    cfg = _small(name, layouts)
    if 'max_epochs' in cfg.train_cfg:
        cfg.train_cfg.update(max_epochs=1, val_interval=2)
    else:
        cfg.train_cfg.update(max_iters=1, val_interval=2)
    (tmp_path / f'{scope}_config.py').write_text(cfg.pretty_text)
    tool = Path(__import__(scope).__path__[0]) / '.mim/tools/train.py'
    done = subprocess.run(
        [sys.executable, tool, f'{scope}_config.py', '--work-dir', 'out'], cwd=tmp_path,
        env={**os.environ, 'PYTHONPATH': str(REPO), 'CUDA_VISIBLE_DEVICES': '',
             'OMP_NUM_THREADS': '1'},
        capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-2000:]
    assert list((tmp_path / 'out').glob('*.pth'))
