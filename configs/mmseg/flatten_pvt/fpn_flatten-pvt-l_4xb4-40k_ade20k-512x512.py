_base_ = './fpn_flatten-pvt-t_4xb4-40k_ade20k-512x512.py'
model = dict(
    backbone=dict(
        arch='large',
        drop_path_rate=0.3,
        init_cfg=dict(checkpoint='{{$FLATTEN_CHECKPOINTS:checkpoints}}/flatten_pvt_b.pth')))
