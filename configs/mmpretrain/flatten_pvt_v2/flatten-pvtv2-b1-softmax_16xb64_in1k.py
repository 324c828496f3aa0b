# PVTv2-B1: the same with softmax attention and spatial reduction.
_base_ = './flatten-pvtv2-b1_16xb64_in1k.py'
model = dict(backbone=dict(attn_type='SSSS'))
