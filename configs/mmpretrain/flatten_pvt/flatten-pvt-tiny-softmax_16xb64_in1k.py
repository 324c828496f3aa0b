# PVT-T: the same with softmax attention and spatial reduction.
_base_ = './flatten-pvt-tiny_16xb64_in1k.py'
model = dict(backbone=dict(attn_type='SSSS'))
