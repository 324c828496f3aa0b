# SemanticFPN on a small FLatten-PVT, from scratch on the embedded demo set; sized for two CPU cores
# (tools/demo.py runs it).
_base_ = [
    '../_base_/models/fpn_flatten-pvt-t.py',
    '../_base_/schedules/adamw.py',
    '../_base_/default_runtime.py',
]
default_scope = 'mmseg'
custom_imports = dict(
    imports=['flatten_mm', 'flatten_mm.datasets.folder_seg'], allow_failed_imports=False)
randomness = dict(seed=0)

# All images are brought to one size, so that training and testing see the same grids of tokens:
# a few hundred steps are too few to learn position tables that stretch well.
img_size = (128, 128)
width = 64
model = dict(
    data_preprocessor=dict(size=img_size),
    backbone=dict(
        arch=dict(
            _delete_=True,
            embed_dims=[32, 64, 128, 160],
            num_heads=[1, 2, 4, 5],
            mlp_ratios=[4, 4, 4, 4],
            depths=[1, 1, 2, 1]),
        pretrain_img_size=128,
        drop_path_rate=0.),
    neck=dict(in_channels=[32, 64, 128, 160], out_channels=width),
    decode_head=dict(in_channels=[width] * 4, channels=width, num_classes=6))

data_root = '{{$FLATTEN_DATA_ROOT:work_dirs/demo/data}}'
metainfo = dict(
    classes=('background', 'disc', 'square', 'triangle', 'cross', 'ring'),
    palette=[[60, 60, 60], [213, 94, 0], [0, 114, 178], [0, 158, 115], [240, 228, 66],
             [204, 121, 167]])
train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations'),
    dict(type='Resize', scale=img_size, keep_ratio=False),
    dict(
        type='RandomFlip',
        prob=[0.25, 0.25, 0.25],
        direction=['horizontal', 'vertical', 'diagonal']),
    dict(type='PackSegInputs'),
]
test_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='Resize', scale=img_size, keep_ratio=False),
    dict(type='LoadAnnotations'),  # after Resize: scores count at the size of the label map
    dict(type='PackSegInputs'),
]
train_dataloader = dict(
    batch_size=8,
    num_workers=0,
    sampler=dict(type='InfiniteSampler', shuffle=True),
    dataset=dict(
        type='FolderSegDataset',
        data_root=data_root,
        metainfo=metainfo,
        data_prefix=dict(img_path='images/train', seg_map_path='annotations/train'),
        pipeline=train_pipeline))
val_dataloader = dict(
    batch_size=1,
    num_workers=0,
    sampler=dict(type='DefaultSampler', shuffle=False),
    dataset=dict(
        type='FolderSegDataset',
        data_root=data_root,
        metainfo=metainfo,
        data_prefix=dict(img_path='images/val', seg_map_path='annotations/val'),
        test_mode=True,
        pipeline=test_pipeline))
test_dataloader = val_dataloader
val_evaluator = dict(type='IoUMetric', iou_metrics=['mIoU'])
test_evaluator = val_evaluator

max_iters = 500
train_cfg = dict(max_iters=max_iters, val_interval=100)
optim_wrapper = dict(optimizer=dict(lr=1e-3), clip_grad=dict(max_norm=5.))
param_scheduler = [
    dict(type='LinearLR', start_factor=0.01, by_epoch=False, begin=0, end=50),
    dict(type='CosineAnnealingLR', eta_min=1e-6, by_epoch=False, begin=50, end=max_iters),
]
default_hooks = dict(
    logger=dict(interval=20), checkpoint=dict(interval=100, save_best='mIoU'))
visualizer = dict(type='SegLocalVisualizer', vis_backends=[dict(type='LocalVisBackend')])
