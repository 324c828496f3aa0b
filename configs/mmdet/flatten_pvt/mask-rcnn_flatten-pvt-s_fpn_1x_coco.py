_base_ = './mask-rcnn_flatten-pvt-t_fpn_1x_coco.py'
model = dict(
    backbone=dict(
        arch='small',
        init_cfg=dict(checkpoint='{{$FLATTEN_CHECKPOINTS:checkpoints}}/flatten_pvt_s.pth')))
