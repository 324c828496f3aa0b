# The same with softmax attention in stripes; train its weights with the mmpretrain config.
_base_ = './upernet_flatten-cswin-t_8xb2-160k_ade20k-512x512.py'
model = dict(
    backbone=dict(
        attn_type='SSSS',
        init_cfg=dict(
            checkpoint='{{$FLATTEN_CHECKPOINTS:checkpoints}}/flatten_cswin_t_softmax.pth')))
