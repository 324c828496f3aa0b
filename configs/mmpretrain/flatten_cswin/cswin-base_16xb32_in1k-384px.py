# CSwin-B at its own depths, which FLatten-CSwin-B does not keep: the paper's baseline.
_base_ = './flatten-cswin-base-softmax_16xb32_in1k-384px.py'
checkpoint = '{{$FLATTEN_CHECKPOINTS:checkpoints}}/cswin_b_classifier.pth'
model = dict(
    backbone=dict(
        arch=dict(
            _delete_=True, embed_dims=96, depths=[2, 4, 32, 2], num_heads=[4, 8, 16, 32],
            mlp_ratio=4.),
        init_cfg=dict(checkpoint=checkpoint)),
    head=dict(init_cfg=dict(checkpoint=checkpoint)))
