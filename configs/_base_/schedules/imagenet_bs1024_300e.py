# 300 epochs of cosine decay from 1e-3 at batch 1024, then 10 epochs at the least learning rate.
# Weight decay on all but one-dimensional parameters and Swin's own position tables.
_base_ = 'mmpretrain::_base_/schedules/imagenet_bs1024_adamw_swin.py'

param_scheduler = [
    dict(
        type='LinearLR', start_factor=1e-3, by_epoch=True, begin=0, end=20,
        convert_to_iter_based=True),
    dict(
        type='CosineAnnealingLR', eta_min=1e-5, by_epoch=True, begin=20, end=300,
        convert_to_iter_based=True),
]
train_cfg = dict(max_epochs=310)
