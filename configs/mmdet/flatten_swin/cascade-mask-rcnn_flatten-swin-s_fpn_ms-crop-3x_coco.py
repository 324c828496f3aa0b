_base_ = './cascade-mask-rcnn_flatten-swin-t_fpn_ms-crop-3x_coco.py'
model = dict(
    backbone=dict(
        arch='small',
        init_cfg=dict(checkpoint='{{$FLATTEN_CHECKPOINTS:checkpoints}}/flatten_swin_s.pth')))
