_base_ = './fpn_flatten-pvtv2-b0_4xb4-40k_ade20k-512x512.py'
model = dict(
    backbone=dict(
        arch='b2',
        init_cfg=dict(checkpoint='{{$FLATTEN_CHECKPOINTS:checkpoints}}/flatten_pvt_v2_b2.pth')),
    neck=dict(in_channels=[64, 128, 320, 512]))
