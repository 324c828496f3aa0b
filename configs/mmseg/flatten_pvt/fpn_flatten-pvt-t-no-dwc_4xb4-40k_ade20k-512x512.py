# Ablation of SemanticFPN on FLatten-PVT-T: no depthwise convolution, the focused map stays.
_base_ = './fpn_flatten-pvt-t_4xb4-40k_ade20k-512x512.py'
model = dict(backbone=dict(rank_restoration=False))
