# DeiT-T without its class token: the same with softmax attention.
_base_ = './flatten-deit-tiny_16xb64_in1k.py'
model = dict(backbone=dict(attn_type='SSSS'))
