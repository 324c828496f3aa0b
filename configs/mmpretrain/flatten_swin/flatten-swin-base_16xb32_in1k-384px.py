# FLatten-Swin-B fine-tuned at 384x384 from its 224x224 weights.
_base_ = [
    '../../_base_/datasets/imagenet_bs32_384.py',
    '../../_base_/schedules/imagenet_bs512_384.py',
    'mmpretrain::_base_/default_runtime.py',
]
custom_imports = dict(imports=['flatten_mm'], allow_failed_imports=False)
default_hooks = dict(checkpoint=dict(type='ResumableCheckpointHook'))

# A classifier that mmpretrain trained here, or a released file after
# `tools/convert_checkpoint.py RELEASED.pth CHECKPOINT --to classifier`.
checkpoint = '{{$FLATTEN_CHECKPOINTS:checkpoints}}/flatten_swin_b_classifier.pth'
model = dict(
    type='ImageClassifier',
    backbone=dict(
        type='FLattenSwin',
        arch='base',
        softmax_window_size=12,
        drop_path_rate=0.5,
        pretrain_img_size=384,
        out_indices=(3, ),
        init_cfg=dict(type='Pretrained', checkpoint=checkpoint)),
    neck=dict(type='GlobalAveragePooling'),
    head=dict(
        type='LinearClsHead',
        num_classes=1000,
        in_channels=1024,
        init_cfg=dict(type='Pretrained', checkpoint=checkpoint, prefix='head.'),
        loss=dict(type='LabelSmoothLoss', label_smooth_val=0.1, mode='original')),
    train_cfg=dict(augments=[
        dict(type='Mixup', alpha=0.8),
        dict(type='CutMix', alpha=1.0),
    ]))

test_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='Resize', scale=(384, 384), backend='pillow', interpolation='bicubic'),
    dict(type='PackInputs'),
]
val_dataloader = dict(dataset=dict(pipeline=test_pipeline))
test_dataloader = val_dataloader

optim_wrapper = dict(optimizer=dict(lr=2e-5), clip_grad=dict(max_norm=5.0))
param_scheduler = [
    dict(
        type='LinearLR', start_factor=1e-3, by_epoch=True, begin=0, end=5,
        convert_to_iter_based=True),
    dict(
        type='CosineAnnealingLR', eta_min=2e-7, by_epoch=True, begin=5, end=30,
        convert_to_iter_based=True),
]
train_cfg = dict(max_epochs=30)
