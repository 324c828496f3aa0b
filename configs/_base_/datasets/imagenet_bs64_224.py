# ImageNet-1K at 224x224 as the released models were trained and tested: RandAugment (which takes
# the place of colour jitter) and random erasing as mmpretrain's Swin has them; the test image is
# stretched to 256x256, not resized along its short side.
_base_ = 'mmpretrain::_base_/datasets/imagenet_bs64_swin_224.py'

test_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='Resize', scale=(256, 256), backend='pillow', interpolation='bicubic'),
    dict(type='CenterCrop', crop_size=224),
    dict(type='PackInputs'),
]
val_dataloader = dict(dataset=dict(pipeline=test_pipeline))
test_dataloader = val_dataloader
