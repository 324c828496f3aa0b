# FLatten-Swin-T with vanilla linear attention (ReLU features) in place of focused.
_base_ = './flatten-swin-tiny_16xb64_in1k.py'
model = dict(backbone=dict(attention='linear'))
