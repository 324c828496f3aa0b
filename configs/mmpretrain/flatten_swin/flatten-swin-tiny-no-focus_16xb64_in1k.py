# Ablation of FLatten-Swin-T: the focused map is the identity, the convolution stays.
_base_ = './flatten-swin-tiny_16xb64_in1k.py'
model = dict(backbone=dict(focusing_factor=1))
