_base_ = './flatten-cswin-tiny_16xb64_in1k.py'
model = dict(backbone=dict(arch='small', drop_path_rate=0.4))
