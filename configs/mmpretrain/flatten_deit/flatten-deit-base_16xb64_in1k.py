_base_ = './flatten-deit-tiny_16xb64_in1k.py'
model = dict(
    backbone=dict(arch='base'),
    head=dict(in_channels=768))
