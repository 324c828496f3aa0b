# As custom_coco_detection.py, for annotations with masks.
_base_ = './custom_coco_detection.py'

load_annotations = dict(type='LoadAnnotations', with_bbox=True, with_mask=True)
train_pipeline = [
    load_annotations if step['type'] == 'LoadAnnotations' else step
    for step in _base_.train_pipeline
]
test_pipeline = [
    load_annotations if step['type'] == 'LoadAnnotations' else step
    for step in _base_.test_pipeline
]
train_dataloader = dict(dataset=dict(with_mask=True, pipeline=train_pipeline))
val_dataloader = dict(dataset=dict(with_mask=True, pipeline=test_pipeline))
test_dataloader = val_dataloader
val_evaluator = dict(metric=['bbox', 'segm'])
test_evaluator = val_evaluator
