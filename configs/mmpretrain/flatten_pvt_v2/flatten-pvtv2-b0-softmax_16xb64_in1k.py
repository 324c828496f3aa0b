# PVTv2-B0: the same with softmax attention and spatial reduction.
_base_ = './flatten-pvtv2-b0_16xb64_in1k.py'
model = dict(backbone=dict(attn_type='SSSS'))
