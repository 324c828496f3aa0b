# mmdet's own recipe for Swin-T with the backbone changed.
_base_ = 'mmdet::swin/mask-rcnn_swin-t-p4-w7_fpn_ms-crop-3x_coco.py'
custom_imports = dict(imports=['flatten_mm'], allow_failed_imports=False)
default_hooks = dict(checkpoint=dict(type='ResumableCheckpointHook'))

model = dict(
    backbone=dict(
        _delete_=True,
        type='FLattenSwin',
        arch='tiny',
        drop_path_rate=0.2,
        init_cfg=dict(
            type='Pretrained',
            checkpoint='{{$FLATTEN_CHECKPOINTS:checkpoints}}/flatten_swin_t.pth')))

# Beside what mmdet's Swin recipe leaves out of the weight decay: norms and its position tables.
optim_wrapper = dict(
    paramwise_cfg=dict(custom_keys={'positional_encoding': dict(decay_mult=0.)}))
