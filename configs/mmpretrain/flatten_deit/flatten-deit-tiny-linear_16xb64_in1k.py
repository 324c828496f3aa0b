# FLatten-DeiT-T with vanilla linear attention (ReLU features) in place of focused.
_base_ = './flatten-deit-tiny_16xb64_in1k.py'
model = dict(backbone=dict(attention='linear'))
