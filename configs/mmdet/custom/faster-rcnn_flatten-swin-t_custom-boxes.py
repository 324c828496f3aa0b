# Faster R-CNN on FLatten-Swin-T for your own images with boxes and no masks; see
# _base_/datasets/custom_coco_detection.py.
#   python tools/train.py configs/mmdet/custom/faster-rcnn_flatten-swin-t_custom-boxes.py \
#       --data-root DIR --img-size 800 1333
# From a released backbone: --cfg-options model.backbone.init_cfg.type=Pretrained
#       model.backbone.init_cfg.checkpoint=FILE
_base_ = [
    '../../_base_/models/faster-rcnn_flatten-swin-t_fpn.py',
    '../../_base_/datasets/custom_coco_detection.py',
    '../../_base_/schedules/adamw.py',
]
model = dict(roi_head=dict(bbox_head=dict(num_classes=len(_base_.classes))))
