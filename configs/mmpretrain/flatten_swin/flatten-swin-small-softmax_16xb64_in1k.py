# Swin-S: the same with softmax attention in 7x7 windows.
_base_ = './flatten-swin-small_16xb64_in1k.py'
model = dict(backbone=dict(attn_type='SSSS'))
