# PVT-S: the same with softmax attention and spatial reduction.
_base_ = './retinanet_flatten-pvt-s_fpn_1x_coco.py'
model = dict(
    backbone=dict(
        attn_type='SSSS',
        init_cfg=dict(
            checkpoint='https://github.com/whai362/PVT/releases/download/v2/pvt_small.pth')))
