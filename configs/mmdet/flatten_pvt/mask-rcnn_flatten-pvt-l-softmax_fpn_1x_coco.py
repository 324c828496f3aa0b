# PVT-L: the same with softmax attention and spatial reduction.
_base_ = './mask-rcnn_flatten-pvt-l_fpn_1x_coco.py'
model = dict(
    backbone=dict(
        attn_type='SSSS',
        init_cfg=dict(
            checkpoint='https://github.com/whai362/PVT/releases/download/v2/pvt_large.pth')))
