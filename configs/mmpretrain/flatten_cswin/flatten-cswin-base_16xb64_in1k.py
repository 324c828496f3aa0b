_base_ = './flatten-cswin-tiny_16xb64_in1k.py'
model = dict(
    backbone=dict(arch='base', drop_path_rate=0.5),
    head=dict(in_channels=768))

optim_wrapper = dict(optimizer=dict(weight_decay=0.1))
custom_hooks = [dict(type='EMAHook', momentum=1.8e-4, priority='ABOVE_NORMAL')]
