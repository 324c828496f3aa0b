_base_ = './mask-rcnn_flatten-pvt-t_fpn_1x_coco.py'
model = dict(
    backbone=dict(
        arch='large',
        drop_path_rate=0.3,
        init_cfg=dict(checkpoint='{{$FLATTEN_CHECKPOINTS:checkpoints}}/flatten_pvt_b.pth')))
