_base_ = './flatten-deit-tiny_16xb64_in1k.py'
model = dict(
    backbone=dict(arch='small'),
    head=dict(in_channels=384))
