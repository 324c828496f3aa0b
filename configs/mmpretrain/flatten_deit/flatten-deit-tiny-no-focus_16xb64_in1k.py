# Ablation of FLatten-DeiT-T: the focused map is the identity, the convolution stays.
_base_ = './flatten-deit-tiny_16xb64_in1k.py'
model = dict(backbone=dict(focusing_factor=1))
