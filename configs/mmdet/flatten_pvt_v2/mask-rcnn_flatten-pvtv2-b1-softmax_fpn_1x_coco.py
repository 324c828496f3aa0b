# PVTv2-B1: the same with softmax attention and spatial reduction.
_base_ = './mask-rcnn_flatten-pvtv2-b1_fpn_1x_coco.py'
model = dict(
    backbone=dict(
        attn_type='SSSS',
        init_cfg=dict(
            checkpoint='https://github.com/whai362/PVT/releases/download/v2/pvt_v2_b1.pth')))
