# A user's own semantic segmentation data, from scratch or fine-tuned. Nothing to edit:
# tools/train.py sets the variables from --data-root, --classes, --img-size H W, --batch-size and
# --max-iters.
#   DATA_ROOT/images/{train,val}/NAME.{jpg,png,...}
#   DATA_ROOT/annotations/{train,val}/NAME.png    8-bit, class indices, 255 = ignored
_base_ = '../default_runtime.py'  # mmengine: first, so that importing a package is allowed
from flatten_mm.datasets.custom import custom_settings  # noqa: E402

settings = custom_settings(
    data_root='{{$FLATTEN_DATA_ROOT:data/custom}}',
    classes='{{$FLATTEN_CLASSES:<unset>}}',
    img_size='{{$FLATTEN_IMG_SIZE:512,512}}',
    batch_size='{{$FLATTEN_BATCH_SIZE:8}}',
    max_iters='{{$FLATTEN_MAX_ITERS:20000}}')
data_root = settings.data_root
classes = settings.classes
img_size = settings.img_size  # (H, W)
scale = settings.scale  # (W, H)
batch_size = settings.batch_size
max_iters = settings.max_iters
del settings

default_scope = 'mmseg'
custom_imports = dict(
    imports=['flatten_mm', 'flatten_mm.datasets.folder_seg'], allow_failed_imports=False)

train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations'),
    dict(type='RandomResize', scale=scale, ratio_range=(0.75, 1.75), keep_ratio=True),
    dict(type='RandomCrop', crop_size=img_size, cat_max_ratio=0.75),
    dict(type='RandomFlip', prob=0.5),
    dict(type='PhotoMetricDistortion'),
    dict(type='PackSegInputs'),
]
test_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='Resize', scale=scale, keep_ratio=True),
    dict(type='LoadAnnotations'),  # after Resize: scores count at the size of the label map
    dict(type='PackSegInputs'),
]
train_dataloader = dict(
    batch_size=batch_size,
    num_workers=2,
    persistent_workers=True,
    sampler=dict(type='InfiniteSampler', shuffle=True),
    dataset=dict(
        type='FolderSegDataset',
        data_root=data_root,
        metainfo=dict(classes=classes),
        data_prefix=dict(img_path='images/train', seg_map_path='annotations/train'),
        pipeline=train_pipeline))
val_dataloader = dict(
    batch_size=1,
    num_workers=2,
    persistent_workers=True,
    sampler=dict(type='DefaultSampler', shuffle=False),
    dataset=dict(
        type='FolderSegDataset',
        data_root=data_root,
        metainfo=dict(classes=classes),
        data_prefix=dict(img_path='images/val', seg_map_path='annotations/val'),
        test_mode=True,
        pipeline=test_pipeline))
test_dataloader = val_dataloader
val_evaluator = dict(type='IoUMetric', iou_metrics=['mIoU'])
test_evaluator = val_evaluator

val_interval = max(1, max_iters // 10)
train_cfg = dict(max_iters=max_iters, val_interval=val_interval)
warm_up = min(1000, max(1, max_iters // 10))
param_scheduler = [
    dict(type='LinearLR', start_factor=1e-3, by_epoch=False, begin=0, end=warm_up),
    dict(type='PolyLR', power=0.9, eta_min=0., by_epoch=False, begin=warm_up,
         end=max(max_iters, warm_up + 1)),
]
auto_scale_lr = dict(enable=False, base_batch_size=8)
default_hooks = dict(
    checkpoint=dict(interval=val_interval, save_best='mIoU'),
    visualization=dict(type='SegVisualizationHook'))
visualizer = dict(type='SegLocalVisualizer', vis_backends=[dict(type='LocalVisBackend')])
