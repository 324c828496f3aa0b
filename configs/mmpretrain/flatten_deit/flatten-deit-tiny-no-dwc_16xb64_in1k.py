# Ablation of FLatten-DeiT-T: no depthwise convolution, the focused map stays.
_base_ = './flatten-deit-tiny_16xb64_in1k.py'
model = dict(backbone=dict(rank_restoration=False))
