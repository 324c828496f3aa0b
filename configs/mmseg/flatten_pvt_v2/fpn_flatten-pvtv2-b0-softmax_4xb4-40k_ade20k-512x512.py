# PVTv2-B0: the same with softmax attention and spatial reduction.
_base_ = './fpn_flatten-pvtv2-b0_4xb4-40k_ade20k-512x512.py'
model = dict(
    backbone=dict(
        attn_type='SSSS',
        init_cfg=dict(
            checkpoint='https://github.com/whai362/PVT/releases/download/v2/pvt_v2_b0.pth')))
