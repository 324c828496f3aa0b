_base_ = './flatten-pvt-tiny_16xb64_in1k.py'
model = dict(backbone=dict(arch='small'))
