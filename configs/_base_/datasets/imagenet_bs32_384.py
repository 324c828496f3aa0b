# Fine-tuning at 384x384, half the batch of training; the models differ in how they are tested.
_base_ = './imagenet_bs64_224.py'

train_pipeline = _base_.train_pipeline
train_pipeline[1].scale = 384
train_dataloader = dict(batch_size=32, dataset=dict(pipeline=train_pipeline))
val_dataloader = dict(batch_size=32)
test_dataloader = val_dataloader
