# Mask R-CNN on FLatten-Swin-T for your own images with instance masks; see
# _base_/datasets/custom_coco_detection.py. For boxes without masks there is
# faster-rcnn_flatten-swin-t_custom-boxes.py.
#   python tools/train.py configs/mmdet/custom/mask-rcnn_flatten-swin-t_custom.py \
#       --data-root DIR --img-size 800 1333
# From a released backbone: --cfg-options model.backbone.init_cfg.type=Pretrained
#       model.backbone.init_cfg.checkpoint=FILE
_base_ = [
    '../../_base_/models/mask-rcnn_flatten-swin-t_fpn.py',
    '../../_base_/datasets/custom_coco_instance.py',
    '../../_base_/schedules/adamw.py',
]
model = dict(
    roi_head=dict(
        bbox_head=dict(num_classes=len(_base_.classes)),
        mask_head=dict(num_classes=len(_base_.classes))))
