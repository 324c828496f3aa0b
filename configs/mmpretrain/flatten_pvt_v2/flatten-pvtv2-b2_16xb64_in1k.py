_base_ = './flatten-pvtv2-b0_16xb64_in1k.py'
model = dict(
    backbone=dict(arch='b2'),
    head=dict(in_channels=512))
