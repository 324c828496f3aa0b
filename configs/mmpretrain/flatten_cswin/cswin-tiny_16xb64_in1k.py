# CSwin-T at its own depths, which FLatten-CSwin-T does not keep: the paper's baseline.
_base_ = './flatten-cswin-tiny-softmax_16xb64_in1k.py'
model = dict(
    backbone=dict(
        arch=dict(
            _delete_=True, embed_dims=64, depths=[1, 2, 21, 1], num_heads=[2, 4, 8, 16],
            mlp_ratio=4.)))
