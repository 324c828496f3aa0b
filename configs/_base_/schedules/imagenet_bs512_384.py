# Fine-tuning of a trained model at 384x384 and batch 512; lr and epochs are the model's.
_base_ = 'mmpretrain::_base_/schedules/imagenet_bs1024_adamw_swin.py'

optim_wrapper = dict(optimizer=dict(weight_decay=1e-8))
auto_scale_lr = dict(base_batch_size=512)
