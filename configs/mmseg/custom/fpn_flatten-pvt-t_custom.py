# SemanticFPN on FLatten-PVT-T for your own images and label maps; see
# _base_/datasets/custom_seg.py.
#   python tools/train.py configs/mmseg/custom/fpn_flatten-pvt-t_custom.py \
#       --data-root DIR --classes background,road,car --img-size 512 512
# From a released backbone: --cfg-options model.backbone.init_cfg.type=Pretrained
#       model.backbone.init_cfg.checkpoint=FILE
_base_ = [
    '../../_base_/models/fpn_flatten-pvt-t.py',
    '../../_base_/datasets/custom_seg.py',
    '../../_base_/schedules/adamw.py',
]
model = dict(
    data_preprocessor=dict(size=_base_.img_size),
    decode_head=dict(num_classes=len(_base_.classes)))
