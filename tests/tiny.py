"""Data sets and configs small enough to train in a test, for each of the three mm scopes."""
from __future__ import annotations

import json
from pathlib import Path

import cv2
import numpy as np

SCOPES = ('mmseg', 'mmdet', 'mmpretrain')
SHAPES = ('square', 'disc')


def write_data(root: Path) -> None:
    """Squares and discs: label maps, COCO JSON, and a folder a class."""
    rng = np.random.default_rng(0)
    for split, count in (('train', 4), ('val', 2)):
        for folder in ('img', 'ann'):
            (root / folder / split).mkdir(parents=True)
        coco = dict(info={}, images=[], annotations=[],
                    categories=[dict(id=i + 1, name=name) for i, name in enumerate(SHAPES)])
        for i in range(count):
            _write_scene(root, split, i, coco, rng)
        (root / f'{split}.json').write_text(json.dumps(coco))
        for name, colour in (('cat', (200, 40, 40)), ('dog', (40, 200, 40))):
            folder = root / 'cls' / split / name
            folder.mkdir(parents=True)
            for i in range(count):
                noise = rng.integers(-30, 30, (40, 48, 3))
                write_image(folder / f'{i}.jpg', np.clip(np.array(colour) + noise, 0, 255))


def write_image(path: Path, image: np.ndarray) -> None:
    assert cv2.imwrite(str(path), image if image.dtype == np.uint16 else image.astype(np.uint8))


def write_config(scope: str, folder: Path, data: Path, name: str | None = None,
                 **replaced: str) -> Path:
    """Write the scope's config; ``replaced`` are texts to put in place of others."""
    text = _CONFIGS[scope].replace('DATA', str(data))
    for old, new in replaced.items():
        assert old in text, old
        text = text.replace(old, new)
    path = folder / f'{name or scope}.py'
    path.write_text(text)
    return path


def _write_scene(root: Path, split: str, number: int, coco: dict,
                 rng: np.random.Generator) -> None:
    height, width = 48 + 8 * number, 64
    image = rng.integers(60, 120, (height, width, 3))
    label_map = np.zeros((height, width), np.uint8)
    coco['images'].append(dict(id=number, file_name=f'{number}.jpg', height=height, width=width))
    for label in (1, 2):
        x, y, side = int(rng.integers(2, 40)), int(rng.integers(2, 20)), 16
        mask = np.zeros((height, width), np.uint8)
        if label == 1:
            cv2.rectangle(mask, (x, y), (x + side, y + side), 1, -1)
        else:
            cv2.circle(mask, (x + side // 2, y + side // 2), side // 2, 1, -1)
        image[mask > 0] = (200, 40, 40) if label == 1 else (40, 200, 40)
        label_map[mask > 0] = label
        contours, _ = cv2.findContours(mask, cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_NONE)
        coco['annotations'].append(dict(
            id=len(coco['annotations']), image_id=number, category_id=label, iscrowd=0,
            bbox=[x, y, side + 1, side + 1], area=int(mask.sum()),
            segmentation=[contours[0].flatten().tolist()]))
    write_image(root / 'img' / split / f'{number}.jpg', image)
    write_image(root / 'ann' / split / f'{number}.png', label_map)


_COMMON = '''
custom_imports = dict(imports=['flatten_mm'], allow_failed_imports=False)
optim_wrapper = dict(type='OptimWrapper', optimizer=dict(type='AdamW', lr=1e-3))
train_cfg = dict(type='IterBasedTrainLoop', max_iters=2, val_interval=2)
val_cfg = dict(type='ValLoop')
test_cfg = dict(type='TestLoop')
log_processor = dict(by_epoch=False)
env_cfg = dict(mp_cfg=dict(mp_start_method='fork', opencv_num_threads=0))
visualizer = dict(type=VISUALIZER, vis_backends=[dict(type='LocalVisBackend')])
default_hooks = dict(
    logger=dict(type='LoggerHook', interval=1, log_metric_by_epoch=False),
    checkpoint=dict(type='CheckpointHook', by_epoch=False, interval=2),
    visualization=dict(type=HOOK))


def loader(shuffle, dataset):
    return dict(batch_size=2 if shuffle else 1, num_workers=0, dataset=dataset,
                sampler=dict(type='InfiniteSampler' if shuffle else 'DefaultSampler',
                             shuffle=shuffle))


swin = dict(type='FLattenSwin', drop_path_rate=0.0,
            arch=dict(embed_dims=8, depths=[1, 1, 1, 1], num_heads=[1, 1, 2, 2], mlp_ratio=2.0))
'''

_CONFIGS = {
    'mmseg': '''
default_scope = 'mmseg'
''' + _COMMON.replace('VISUALIZER', "'SegLocalVisualizer'").replace(
        'HOOK', "'SegVisualizationHook'") + '''
model = dict(
    type='EncoderDecoder',
    data_preprocessor=dict(type='SegDataPreProcessor', mean=[127.0] * 3, std=[60.0] * 3,
                           bgr_to_rgb=True, size_divisor=32, pad_val=0, seg_pad_val=255),
    backbone=dict(type='FLattenPVT', drop_path_rate=0.0,
                  arch=dict(embed_dims=[8, 8, 16, 16], num_heads=[1, 1, 2, 2],
                            mlp_ratios=[2, 2, 2, 2], depths=[1, 1, 1, 1])),
    decode_head=dict(type='FPNHead', in_channels=[8, 8, 16, 16], in_index=[0, 1, 2, 3],
                     feature_strides=[4, 8, 16, 32], channels=8, num_classes=3,
                     norm_cfg=dict(type='BN'), align_corners=False,
                     loss_decode=dict(type='CrossEntropyLoss', avg_non_ignore=True)),
    train_cfg=dict(), test_cfg=dict(mode='whole'))


def shapes(split, pipeline):
    return dict(type='BaseSegDataset', data_root='DATA', pipeline=pipeline,
                metainfo=dict(classes=('background', 'square', 'disc')),
                data_prefix=dict(img_path=f'img/{split}', seg_map_path=f'ann/{split}'))


train_dataloader = loader(True, shapes('train', [
    dict(type='LoadImageFromFile'), dict(type='LoadAnnotations'),
    dict(type='Resize', scale=(64, 64)), dict(type='PackSegInputs')]))
test_dataloader = val_dataloader = loader(False, shapes('val', [
    dict(type='LoadImageFromFile'), dict(type='Resize', scale=(64, 64), keep_ratio=True),
    dict(type='LoadAnnotations'), dict(type='PackSegInputs')]))
test_evaluator = val_evaluator = dict(type='IoUMetric', iou_metrics=['mIoU'])
tta_model = dict(type='SegTTAModel')
tta_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='TestTimeAug', transforms=[
        [dict(type='Resize', scale=(64, 64), keep_ratio=True)],
        [dict(type='RandomFlip', prob=0.0), dict(type='RandomFlip', prob=1.0)],
        [dict(type='LoadAnnotations')], [dict(type='PackSegInputs')]])]
''',
    'mmdet': '''
default_scope = 'mmdet'
''' + _COMMON.replace('VISUALIZER', "'DetLocalVisualizer'").replace(
        'HOOK', "'DetVisualizationHook'") + '''
roi = dict(type='SingleRoIExtractor', out_channels=8, featmap_strides=[4, 8],
           roi_layer=dict(type='RoIAlign', output_size=7, sampling_ratio=0))
coder = dict(type='DeltaXYWHBBoxCoder')
iou = dict(type='MaxIoUAssigner', pos_iou_thr=0.5, neg_iou_thr=0.5, min_pos_iou=0.3)
sampler = dict(type='RandomSampler', num=32, pos_fraction=0.5, add_gt_as_proposals=True)
nms = dict(type='nms', iou_threshold=0.5)
model = dict(
    type='MaskRCNN',
    data_preprocessor=dict(type='DetDataPreprocessor', mean=[127.0] * 3, std=[60.0] * 3,
                           bgr_to_rgb=True, pad_mask=True, pad_size_divisor=32),
    backbone=swin,
    neck=dict(type='FPN', in_channels=[8, 16, 32, 64], out_channels=8, num_outs=4),
    rpn_head=dict(type='RPNHead', in_channels=8, feat_channels=8, bbox_coder=coder,
                  anchor_generator=dict(type='AnchorGenerator', scales=[4], ratios=[1.0],
                                        strides=[4, 8, 16, 32]),
                  loss_cls=dict(type='CrossEntropyLoss', use_sigmoid=True)),
    roi_head=dict(
        type='StandardRoIHead', bbox_roi_extractor=roi, mask_roi_extractor=roi,
        bbox_head=dict(type='Shared2FCBBoxHead', in_channels=8, fc_out_channels=16,
                       roi_feat_size=7, num_classes=2, bbox_coder=coder),
        mask_head=dict(type='FCNMaskHead', num_convs=1, in_channels=8, conv_out_channels=8,
                       num_classes=2, loss_mask=dict(type='CrossEntropyLoss', use_mask=True))),
    train_cfg=dict(
        rpn=dict(assigner=iou, sampler=dict(sampler, add_gt_as_proposals=False),
                 allowed_border=-1, pos_weight=-1),
        rpn_proposal=dict(nms_pre=50, max_per_img=20, nms=nms, min_bbox_size=0),
        rcnn=dict(assigner=iou, sampler=sampler, mask_size=14, pos_weight=-1)),
    test_cfg=dict(rpn=dict(nms_pre=50, max_per_img=10, nms=nms, min_bbox_size=0),
                  rcnn=dict(score_thr=0.0, nms=nms, max_per_img=5, mask_thr_binary=0.5)))


def shapes(split, pipeline):
    return dict(type='CocoDataset', data_root='DATA', pipeline=pipeline, ann_file=f'{split}.json',
                metainfo=dict(classes=('square', 'disc')), data_prefix=dict(img=f'img/{split}/'),
                test_mode=split == 'val')


annotations = dict(type='LoadAnnotations', with_bbox=True, with_mask=True)
train_dataloader = loader(True, dict(type='RepeatDataset', times=2, dataset=shapes('train', [
    dict(type='LoadImageFromFile'), annotations,
    dict(type='Resize', scale=(64, 64), keep_ratio=True), dict(type='PackDetInputs')])))
test_dataloader = val_dataloader = loader(False, shapes('val', [
    dict(type='LoadImageFromFile'), dict(type='Resize', scale=(64, 64), keep_ratio=True),
    annotations, dict(type='PackDetInputs', meta_keys=(
        'img_id', 'img_path', 'ori_shape', 'img_shape', 'scale_factor'))]))
test_evaluator = val_evaluator = dict(type='CocoMetric', ann_file='DATA/val.json',
                                      metric=['bbox', 'segm'])
''',
    'mmpretrain': '''
default_scope = 'mmpretrain'
''' + _COMMON.replace('VISUALIZER', "'UniversalVisualizer'").replace(
        'HOOK', "'VisualizationHook'") + '''
data_preprocessor = dict(num_classes=2, mean=[127.0] * 3, std=[60.0] * 3, to_rgb=True)
model = dict(type='ImageClassifier', backbone=dict(swin, out_indices=(3,)),
             neck=dict(type='GlobalAveragePooling'),
             head=dict(type='LinearClsHead', num_classes=2, in_channels=64,
                       loss=dict(type='CrossEntropyLoss')))
pipeline = [dict(type='LoadImageFromFile'), dict(type='Resize', scale=(32, 32)),
            dict(type='PackInputs')]


def animals(split):
    return dict(type='CustomDataset', data_root='DATA/cls', data_prefix=split, pipeline=pipeline)


train_dataloader = loader(True, animals('train'))
test_dataloader = val_dataloader = loader(False, animals('val'))
test_evaluator = val_evaluator = dict(type='Accuracy', topk=(1,))
auto_scale_lr = dict(base_batch_size=4)
''',
}
