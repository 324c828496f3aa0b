# UperNet on FLatten-Swin-T: 160k iterations of batch 16, the recipe of Swin.
_base_ = [
    # Not 'mmseg::': that looks for a distribution called mmsegmentation, which forks are not.
    f'{__import__("mmseg").__path__[0]}/.mim/configs/_base_/{name}.py'
    for name in (
        'models/upernet_swin', 'datasets/ade20k', 'schedules/schedule_160k', 'default_runtime')
]
custom_imports = dict(imports=['flatten_mm'], allow_failed_imports=False)
default_hooks = dict(checkpoint=dict(type='ResumableCheckpointHook'))

crop_size = (512, 512)
model = dict(
    data_preprocessor=dict(size=crop_size),
    backbone=dict(
        _delete_=True,
        type='FLattenSwin',
        arch='tiny',
        drop_path_rate=0.3,
        init_cfg=dict(
            type='Pretrained',
            checkpoint='{{$FLATTEN_CHECKPOINTS:checkpoints}}/flatten_swin_t.pth')),
    decode_head=dict(in_channels=[96, 192, 384, 768], num_classes=150),
    auxiliary_head=dict(in_channels=384, num_classes=150))

train_dataloader = dict(batch_size=2)
optim_wrapper = dict(
    optimizer=dict(
        _delete_=True, type='AdamW', lr=6e-5, betas=(0.9, 0.999), weight_decay=0.01),
    paramwise_cfg=dict(  # no decay on norms and position tables
        custom_keys={
            'absolute_pos_embed': dict(decay_mult=0.),
            'relative_position_bias_table': dict(decay_mult=0.),
            'positional_encoding': dict(decay_mult=0.),
            'norm': dict(decay_mult=0.),
        }))
param_scheduler = [
    dict(type='LinearLR', start_factor=1e-6, by_epoch=False, begin=0, end=1500),
    dict(type='PolyLR', power=1.0, eta_min=0., begin=1500, end=160000, by_epoch=False),
]
auto_scale_lr = dict(enable=False, base_batch_size=16)
