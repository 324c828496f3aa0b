# Mask R-CNN on a small FLatten-Swin, from scratch on the embedded demo set; sized for two CPU cores
# (tools/demo.py runs it).
_base_ = [
    '../_base_/models/mask-rcnn_flatten-swin-t_fpn.py',
    '../_base_/schedules/adamw.py',
    '../_base_/default_runtime.py',
]
default_scope = 'mmdet'
custom_imports = dict(
    imports=['flatten_mm', 'flatten_mm.datasets.folder_coco'], allow_failed_imports=False)
randomness = dict(seed=0)

# model: narrow everywhere, and anchors for boxes of 15 to 60 pixels
width = 64
model = dict(
    backbone=dict(
        arch=dict(
            _delete_=True,
            embed_dims=32,
            depths=[1, 1, 2, 1],
            num_heads=[1, 2, 4, 8],
            mlp_ratio=4.),
        drop_path_rate=0.),
    neck=dict(
        in_channels=[32, 64, 128, 256],
        out_channels=width,
        norm_cfg=dict(type='GN', num_groups=8),
        num_outs=4),
    rpn_head=dict(
        in_channels=width,
        feat_channels=width,
        anchor_generator=dict(scales=[4], strides=[4, 8, 16, 32])),
    roi_head=dict(
        bbox_roi_extractor=dict(out_channels=width),
        bbox_head=dict(in_channels=width, fc_out_channels=256, num_classes=5),
        mask_roi_extractor=dict(out_channels=width),
        mask_head=dict(num_convs=2, in_channels=width, conv_out_channels=width, num_classes=5)),
    train_cfg=dict(
        rpn=dict(sampler=dict(num=64)),
        rpn_proposal=dict(nms_pre=300, max_per_img=150),
        rcnn=dict(sampler=dict(num=64))),
    test_cfg=dict(rpn=dict(nms_pre=300, max_per_img=150), rcnn=dict(max_per_img=30)))

# data
data_root = '{{$FLATTEN_DATA_ROOT:work_dirs/demo/data}}'
metainfo = dict(
    classes=('disc', 'square', 'triangle', 'cross', 'ring'),
    palette=[(213, 94, 0), (0, 114, 178), (0, 158, 115), (240, 228, 66), (204, 121, 167)])
train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations', with_bbox=True, with_mask=True),
    dict(
        type='RandomFlip',
        prob=[0.25, 0.25, 0.25],
        direction=['horizontal', 'vertical', 'diagonal']),
    dict(type='PackDetInputs'),
]
test_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='Resize', scale_factor=1.0),  # the heads want a scale factor
    dict(type='LoadAnnotations', with_bbox=True, with_mask=True),
    dict(
        type='PackDetInputs',
        meta_keys=('img_id', 'img_path', 'ori_shape', 'img_shape', 'scale_factor')),
]
train_dataloader = dict(
    batch_size=8,
    num_workers=0,
    sampler=dict(type='InfiniteSampler', shuffle=True),
    dataset=dict(
        type='FolderCocoDataset',
        with_mask=True,
        data_root=data_root,
        metainfo=metainfo,
        ann_file='annotations/train.json',
        data_prefix=dict(img='images/train'),
        pipeline=train_pipeline))
val_dataloader = dict(
    batch_size=1,
    num_workers=0,
    sampler=dict(type='DefaultSampler', shuffle=False),
    dataset=dict(
        type='FolderCocoDataset',
        with_mask=True,
        data_root=data_root,
        metainfo=metainfo,
        ann_file='annotations/val.json',
        data_prefix=dict(img='images/val'),
        test_mode=True,
        pipeline=test_pipeline))
test_dataloader = val_dataloader
val_evaluator = dict(
    type='FolderCocoMetric', ann_file=data_root + '/annotations/val.json', metric=['bbox', 'segm'])
test_evaluator = val_evaluator

# schedule
max_iters = 500
train_cfg = dict(max_iters=max_iters, val_interval=100)
optim_wrapper = dict(optimizer=dict(lr=1e-3), clip_grad=dict(max_norm=5.))
param_scheduler = [
    dict(type='LinearLR', start_factor=0.01, by_epoch=False, begin=0, end=50),
    dict(type='CosineAnnealingLR', eta_min=1e-6, by_epoch=False, begin=50, end=max_iters),
]
default_hooks = dict(
    logger=dict(interval=20), checkpoint=dict(interval=100, save_best='coco/bbox_mAP'))
visualizer = dict(type='DetLocalVisualizer', vis_backends=[dict(type='LocalVisBackend')])
