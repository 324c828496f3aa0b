# Mask R-CNN on FLatten-PVT-T: 12 epochs of batch 16.
_base_ = [
    'mmdet::_base_/models/mask-rcnn_r50_fpn.py',
    'mmdet::_base_/datasets/coco_instance.py',
    'mmdet::_base_/schedules/schedule_1x.py',
    'mmdet::_base_/default_runtime.py',
]
custom_imports = dict(imports=['flatten_mm'], allow_failed_imports=False)
default_hooks = dict(checkpoint=dict(type='ResumableCheckpointHook'))

model = dict(
    backbone=dict(
        _delete_=True,
        type='FLattenPVT',
        arch='tiny',
        init_cfg=dict(
            type='Pretrained',
            checkpoint='{{$FLATTEN_CHECKPOINTS:checkpoints}}/flatten_pvt_t.pth')),
    neck=dict(in_channels=[64, 128, 320, 512]))

optim_wrapper = dict(optimizer=dict(_delete_=True, type='AdamW', lr=2e-4, weight_decay=1e-4))
