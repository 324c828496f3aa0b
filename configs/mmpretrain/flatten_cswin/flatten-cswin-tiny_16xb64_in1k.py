# FLatten-CSwin-T.
_base_ = [
    '../../_base_/datasets/imagenet_bs64_224.py',
    '../../_base_/schedules/imagenet_bs1024_300e.py',
    'mmpretrain::_base_/default_runtime.py',
]
custom_imports = dict(imports=['flatten_mm'], allow_failed_imports=False)
default_hooks = dict(checkpoint=dict(type='ResumableCheckpointHook'))

model = dict(
    type='ImageClassifier',
    backbone=dict(type='FLattenCSwin', arch='tiny', out_indices=(3, ), drop_path_rate=0.2),
    neck=dict(type='GlobalAveragePooling'),
    head=dict(
        type='LinearClsHead',
        num_classes=1000,
        in_channels=512,
        init_cfg=dict(type='TruncNormal', layer='Linear', std=0.02, bias=0.),
        loss=dict(type='LabelSmoothLoss', label_smooth_val=0.1, mode='original')),
    train_cfg=dict(augments=[
        dict(type='Mixup', alpha=0.8),
        dict(type='CutMix', alpha=1.0),
    ]))

# The average of the weights is what is tested: decay 0.99984 an iteration.
custom_hooks = [dict(type='EMAHook', momentum=1.6e-4, priority='ABOVE_NORMAL')]
