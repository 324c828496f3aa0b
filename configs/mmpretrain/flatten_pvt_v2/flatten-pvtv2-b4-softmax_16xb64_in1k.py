# PVTv2-B4: the same with softmax attention and spatial reduction.
_base_ = './flatten-pvtv2-b4_16xb64_in1k.py'
model = dict(backbone=dict(attn_type='SSSS'))
