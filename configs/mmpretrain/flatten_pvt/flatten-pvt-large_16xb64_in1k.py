# Released as flatten_pvt_b.
_base_ = './flatten-pvt-tiny_16xb64_in1k.py'
model = dict(backbone=dict(arch='large', drop_path_rate=0.3))
optim_wrapper = dict(clip_grad=dict(max_norm=1.0))
