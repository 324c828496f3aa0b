_base_ = './cascade-mask-rcnn_flatten-swin-t_fpn_ms-crop-3x_coco.py'
model = dict(
    backbone=dict(
        arch='base',
        drop_path_rate=0.3,
        init_cfg=dict(checkpoint='{{$FLATTEN_CHECKPOINTS:checkpoints}}/flatten_swin_b.pth')),
    neck=dict(in_channels=[128, 256, 512, 1024]))
