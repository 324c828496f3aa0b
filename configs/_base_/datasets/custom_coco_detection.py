# A user's own detection data, from scratch or fine-tuned. Nothing to edit: tools/train.py sets the
# variables from --data-root, --classes (all categories of train.json where left out),
# --img-size H W, --batch-size and --max-iters.
#   DATA_ROOT/annotations/{train,val}.json    COCO annotations
#   DATA_ROOT/images/{train,val}/             the images that they name
_base_ = '../default_runtime.py'  # mmengine: first, so that importing a package is allowed
from flatten_mm.datasets.custom import custom_settings  # noqa: E402

settings = custom_settings(
    data_root='{{$FLATTEN_DATA_ROOT:data/custom}}',
    classes='{{$FLATTEN_CLASSES:<unset>}}',
    img_size='{{$FLATTEN_IMG_SIZE:800,1333}}',
    batch_size='{{$FLATTEN_BATCH_SIZE:4}}',
    max_iters='{{$FLATTEN_MAX_ITERS:20000}}',
    classes_from='annotations/train.json')
data_root = settings.data_root
classes = settings.classes
scale = settings.scale  # (W, H): images are scaled to fit within it, whichever way they lie
batch_size = settings.batch_size
max_iters = settings.max_iters
del settings

default_scope = 'mmdet'
custom_imports = dict(
    imports=['flatten_mm', 'flatten_mm.datasets.folder_coco'], allow_failed_imports=False)

train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations', with_bbox=True),
    dict(type='RandomResize', scale=scale, ratio_range=(0.8, 1.25), keep_ratio=True),
    dict(type='RandomFlip', prob=0.5),
    dict(type='PackDetInputs'),
]
test_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='Resize', scale=scale, keep_ratio=True),
    dict(type='LoadAnnotations', with_bbox=True),
    dict(
        type='PackDetInputs',
        meta_keys=('img_id', 'img_path', 'ori_shape', 'img_shape', 'scale_factor')),
]
train_dataloader = dict(
    batch_size=batch_size,
    num_workers=2,
    persistent_workers=True,
    sampler=dict(type='InfiniteSampler', shuffle=True),
    dataset=dict(
        type='FolderCocoDataset',
        data_root=data_root,
        metainfo=dict(classes=classes),
        ann_file='annotations/train.json',
        data_prefix=dict(img='images/train'),
        pipeline=train_pipeline))
val_dataloader = dict(
    batch_size=1,
    num_workers=2,
    persistent_workers=True,
    sampler=dict(type='DefaultSampler', shuffle=False),
    dataset=dict(
        type='FolderCocoDataset',
        data_root=data_root,
        metainfo=dict(classes=classes),
        ann_file='annotations/val.json',
        data_prefix=dict(img='images/val'),
        test_mode=True,
        pipeline=test_pipeline))
test_dataloader = val_dataloader
val_evaluator = dict(
    type='FolderCocoMetric', ann_file=f'{data_root}/annotations/val.json', metric=['bbox'])
test_evaluator = val_evaluator

val_interval = max(1, max_iters // 10)
train_cfg = dict(max_iters=max_iters, val_interval=val_interval)
warm_up = min(1000, max(1, max_iters // 10))
param_scheduler = [
    dict(type='LinearLR', start_factor=1e-3, by_epoch=False, begin=0, end=warm_up),
    dict(type='CosineAnnealingLR', eta_min=0., by_epoch=False, begin=warm_up,
         end=max(max_iters, warm_up + 1)),
]
auto_scale_lr = dict(enable=False, base_batch_size=4)
default_hooks = dict(
    checkpoint=dict(interval=val_interval, save_best='coco/bbox_mAP'),
    visualization=dict(type='DetVisualizationHook'))
visualizer = dict(type='DetLocalVisualizer', vis_backends=[dict(type='LocalVisBackend')])
