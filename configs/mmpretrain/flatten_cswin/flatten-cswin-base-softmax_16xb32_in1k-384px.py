# The same with softmax attention in stripes.
_base_ = './flatten-cswin-base_16xb32_in1k-384px.py'
checkpoint = '{{$FLATTEN_CHECKPOINTS:checkpoints}}/flatten_cswin_b_softmax_classifier.pth'
model = dict(
    backbone=dict(attn_type='SSSS', init_cfg=dict(checkpoint=checkpoint)),
    head=dict(init_cfg=dict(checkpoint=checkpoint)))
