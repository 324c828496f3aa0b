# SemanticFPN on FLatten-PVT-T with vanilla linear attention (ReLU features) in place of focused.
_base_ = './fpn_flatten-pvt-t_4xb4-40k_ade20k-512x512.py'
model = dict(backbone=dict(attention='linear'))
