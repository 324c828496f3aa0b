# SemanticFPN on FLatten-PVTv2-B0: 40k iterations of batch 16.
_base_ = [
    # Not 'mmseg::': that looks for a distribution called mmsegmentation, which forks are not.
    f'{__import__("mmseg").__path__[0]}/.mim/configs/_base_/{name}.py'
    for name in (
        'models/fpn_r50', 'datasets/ade20k', 'schedules/schedule_40k', 'default_runtime')
]
custom_imports = dict(imports=['flatten_mm'], allow_failed_imports=False)
default_hooks = dict(checkpoint=dict(type='ResumableCheckpointHook'))

crop_size = (512, 512)
model = dict(
    data_preprocessor=dict(size=crop_size),
    pretrained=None,
    backbone=dict(
        _delete_=True,
        type='FLattenPVTv2',
        arch='b0',
        init_cfg=dict(
            type='Pretrained',
            checkpoint='{{$FLATTEN_CHECKPOINTS:checkpoints}}/flatten_pvt_v2_b0.pth')),
    neck=dict(in_channels=[32, 64, 160, 256]),
    decode_head=dict(num_classes=150))

# Sides that are multiples of 32, as PVT is tested: its maps would leave a rest of the image out.
test_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='Resize', scale=(2048, 512), keep_ratio=True),
    dict(type='ResizeToMultiple', size_divisor=32),
    dict(type='LoadAnnotations', reduce_zero_label=True),
    dict(type='PackSegInputs'),
]
val_dataloader = dict(dataset=dict(pipeline=test_pipeline))
test_dataloader = val_dataloader

optim_wrapper = dict(optimizer=dict(_delete_=True, type='AdamW', lr=2e-4, weight_decay=1e-4))
param_scheduler = [
    dict(type='PolyLR', power=0.9, eta_min=0., begin=0, end=40000, by_epoch=False),
]
auto_scale_lr = dict(enable=False, base_batch_size=16)
