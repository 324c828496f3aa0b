# Ablation of FLatten-Swin-T: no depthwise convolution, the focused map stays.
_base_ = './flatten-swin-tiny_16xb64_in1k.py'
model = dict(backbone=dict(rank_restoration=False))
