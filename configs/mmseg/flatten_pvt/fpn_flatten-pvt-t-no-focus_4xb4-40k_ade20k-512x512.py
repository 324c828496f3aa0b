# Ablation of SemanticFPN on FLatten-PVT-T: the focused map is the identity, the convolution stays.
_base_ = './fpn_flatten-pvt-t_4xb4-40k_ade20k-512x512.py'
model = dict(backbone=dict(focusing_factor=1))
