# FLatten-DeiT-T with enhanced linear attention in place of focused attention.
_base_ = './flatten-deit-tiny_16xb64_in1k.py'
model = dict(backbone=dict(attention='enhanced'))
