_base_ = 'mmdet::_base_/models/mask-rcnn_r50_fpn.py'

model = dict(
    backbone=dict(_delete_=True, type='FLattenSwin', arch='tiny'),
    # GN: without a norm here, training from scratch is slow to start
    neck=dict(in_channels=[96, 192, 384, 768], norm_cfg=dict(type='GN', num_groups=32)))
