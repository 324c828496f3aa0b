_base_ = './flatten-pvtv2-b0_16xb64_in1k.py'
model = dict(
    backbone=dict(arch='b4', drop_path_rate=0.3),
    head=dict(in_channels=512))
optim_wrapper = dict(clip_grad=dict(max_norm=1.0))
