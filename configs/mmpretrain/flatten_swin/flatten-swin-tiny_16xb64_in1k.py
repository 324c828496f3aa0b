# FLatten-Swin-T.
_base_ = [
    '../../_base_/datasets/imagenet_bs64_224.py',
    '../../_base_/schedules/imagenet_bs1024_300e.py',
    'mmpretrain::_base_/default_runtime.py',
]
custom_imports = dict(imports=['flatten_mm'], allow_failed_imports=False)
default_hooks = dict(checkpoint=dict(type='ResumableCheckpointHook'))

model = dict(
    type='ImageClassifier',
    backbone=dict(type='FLattenSwin', arch='tiny', out_indices=(3, ), drop_path_rate=0.2),
    neck=dict(type='GlobalAveragePooling'),
    head=dict(
        type='LinearClsHead',
        num_classes=1000,
        in_channels=768,
        init_cfg=dict(type='TruncNormal', layer='Linear', std=0.02, bias=0.),
        loss=dict(type='LabelSmoothLoss', label_smooth_val=0.1, mode='original')),
    train_cfg=dict(augments=[
        dict(type='Mixup', alpha=0.8),
        dict(type='CutMix', alpha=1.0),
    ]))

optim_wrapper = dict(clip_grad=dict(max_norm=5.0))
param_scheduler = [
    dict(
        type='LinearLR', start_factor=5e-4, by_epoch=True, begin=0, end=20,
        convert_to_iter_based=True),
    dict(
        type='CosineAnnealingLR', eta_min=5e-6, by_epoch=True, begin=20, end=300,
        convert_to_iter_based=True),
]
train_cfg = dict(max_epochs=300)
