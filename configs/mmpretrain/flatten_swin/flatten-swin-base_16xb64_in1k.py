_base_ = './flatten-swin-tiny_16xb64_in1k.py'
model = dict(
    backbone=dict(arch='base', drop_path_rate=0.5),
    head=dict(in_channels=1024))
