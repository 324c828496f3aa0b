_base_ = './flatten-swin-tiny_16xb64_in1k.py'
model = dict(backbone=dict(arch='small', drop_path_rate=0.3))
