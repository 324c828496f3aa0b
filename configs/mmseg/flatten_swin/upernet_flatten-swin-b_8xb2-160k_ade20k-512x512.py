_base_ = './upernet_flatten-swin-t_8xb2-160k_ade20k-512x512.py'
model = dict(
    backbone=dict(
        arch='base',
        init_cfg=dict(checkpoint='{{$FLATTEN_CHECKPOINTS:checkpoints}}/flatten_swin_b.pth')),
    decode_head=dict(in_channels=[128, 256, 512, 1024]),
    auxiliary_head=dict(in_channels=512))
