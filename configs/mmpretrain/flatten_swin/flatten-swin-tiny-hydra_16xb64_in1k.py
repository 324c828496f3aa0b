# FLatten-Swin-T with hydra attention in place of focused attention.
_base_ = './flatten-swin-tiny_16xb64_in1k.py'
model = dict(backbone=dict(attention='hydra'))
