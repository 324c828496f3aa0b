_base_ = './upernet_flatten-swin-t_8xb2-160k_ade20k-512x512.py'
model = dict(
    backbone=dict(
        arch='small',
        init_cfg=dict(checkpoint='{{$FLATTEN_CHECKPOINTS:checkpoints}}/flatten_swin_s.pth')))
