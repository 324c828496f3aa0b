# PVT-L: the same with softmax attention and spatial reduction.
_base_ = './fpn_flatten-pvt-l_4xb4-40k_ade20k-512x512.py'
model = dict(
    backbone=dict(
        attn_type='SSSS',
        init_cfg=dict(
            checkpoint='https://github.com/whai362/PVT/releases/download/v2/pvt_large.pth')))
