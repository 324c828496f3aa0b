# The same with softmax attention in stripes.
_base_ = './flatten-cswin-tiny_16xb64_in1k.py'
model = dict(backbone=dict(attn_type='SSSS'))
