# SemanticFPN (arXiv 1901.02446) on FLatten-PVT-T. Written out, not inherited from 'mmseg::', whose
# lookup needs a distribution called mmsegmentation and so fails beside the onedl fork.
model = dict(
    type='EncoderDecoder',
    data_preprocessor=dict(
        type='SegDataPreProcessor',
        mean=[123.675, 116.28, 103.53],
        std=[58.395, 57.12, 57.375],
        bgr_to_rgb=True,
        pad_val=0,
        seg_pad_val=255,
        size=(512, 512)),
    backbone=dict(type='FLattenPVT', arch='tiny'),
    neck=dict(type='FPN', in_channels=[64, 128, 320, 512], out_channels=256, num_outs=4),
    decode_head=dict(
        type='FPNHead',
        in_channels=[256, 256, 256, 256],
        in_index=[0, 1, 2, 3],
        feature_strides=[4, 8, 16, 32],
        channels=128,
        dropout_ratio=0.1,
        num_classes=150,
        norm_cfg=dict(type='BN', requires_grad=True),
        align_corners=False,
        # the mean over labelled pixels: padding and void do not dilute it
        loss_decode=dict(type='CrossEntropyLoss', loss_weight=1.0, avg_non_ignore=True)),
    train_cfg=dict(),
    test_cfg=dict(mode='whole'))
