# Swin-T: the same with softmax attention in 7x7 windows.
_base_ = './mask-rcnn_flatten-swin-t_fpn_ms-crop-3x_coco.py'
model = dict(
    backbone=dict(
        attn_type='SSSS',
        init_cfg=dict(
            checkpoint='https://github.com/SwinTransformer/storage/releases/download/v1.0.0/swin_tiny_patch4_window7_224.pth')))
