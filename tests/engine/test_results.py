"""Entries of results.json and the pictures that go with them."""
from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from mmengine.structures import BaseDataElement, InstanceData, PixelData
from pycocotools import mask as coco_mask

from flatten_mm.engine import UserError
from flatten_mm.engine.overlays import class_colours, draw_detection, draw_segmentation
from flatten_mm.engine.results import Describer

IMAGE = np.full((30, 40, 3), 100, np.uint8)
RED, BLUE = (255, 0, 0), (0, 0, 255)


def pixels(picture):
    return np.asarray(picture).astype(int)


def test_colours_are_the_palettes_or_all_different():
    assert class_colours(2, [[1, 2, 3], [4, 5, 6]]) == [(1, 2, 3), (4, 5, 6)]
    coco = [(i, i, i) for i in range(80)]
    assert len(set(class_colours(40, coco)) - set(coco)) == 40


def test_segmentation_blends_and_names_what_is_present():
    label_map = np.zeros((600, 800), int)
    label_map[:, 400:] = 2
    picture = draw_segmentation(np.full((600, 800, 3), 100, np.uint8), label_map,
                                ['sky', 'sea', 'land'], [RED, (0, 255, 0), BLUE])
    image = pixels(picture)
    assert abs(image[300, 200] - [177, 50, 50]).max() <= 1
    assert abs(image[300, 600] - [50, 50, 177]).max() <= 1
    panel = image[:, 800:].reshape(-1, 3).tolist()
    assert list(RED) in panel and list(BLUE) in panel
    assert [0, 255, 0] not in panel  # sea is not in the picture
    assert [0, 0, 0] in panel  # text


def test_legend_longer_than_the_image_is_not_cut():
    label_map = np.arange(6000).reshape(100, 60) % 60
    colours = class_colours(60, None)
    picture = draw_segmentation(np.zeros((*label_map.shape, 3), np.uint8), label_map,
                                [f'class number {i}' for i in range(60)], colours)
    panel = {tuple(pixel) for pixel in pixels(picture)[:, 6 * 60:].reshape(-1, 3)}
    assert set(colours) <= panel


def test_small_images_are_enlarged_by_whole_factors():
    picture = draw_detection(IMAGE, np.zeros((0, 4)), [], [])
    assert picture.size == (40 * 26, 30 * 26)
    assert draw_segmentation(IMAGE, np.zeros((30, 40), int), ['sky'], [RED]).height == 30 * 13
    tall = np.zeros((1100, 20, 3), np.uint8)
    assert draw_detection(tall, np.zeros((0, 4)), [], []).size == (20, 1100)


def test_boxes_are_drawn_where_they_are():
    image = np.full((1024, 1024, 3), 100, np.uint8)
    masks = np.zeros((1, 1024, 1024), bool)
    masks[0, 250:300, 250:300] = True
    drawn = pixels(draw_detection(image, np.array([[200.0, 200, 400, 350]]), ['thing 0.90'],
                                  [RED], masks))
    assert drawn[300, 200].tolist() == list(RED)  # left side
    assert drawn[350, 300].tolist() == list(RED)  # bottom
    assert drawn[320, 320].tolist() == [100, 100, 100]  # inside, outside the mask
    assert abs(drawn[275, 275] - [177, 50, 50]).max() <= 1  # inside the mask
    assert drawn[250, 275].tolist() == list(RED)  # the mask's outline


def test_segmentation_entry():
    label_map = torch.zeros(1, 30, 40, dtype=torch.long)
    label_map[0, :, :10] = 1
    result = Describer('mmseg', ['sky', 'sea'])(
        IMAGE, BaseDataElement(pred_sem_seg=PixelData(data=label_map)))
    assert result.entry == dict(classes=[dict(name='sky', label=0, share=0.75),
                                         dict(name='sea', label=1, share=0.25)])
    assert np.array_equal(result.label_map, label_map[0].numpy())


def instances(**extra):
    return BaseDataElement(pred_instances=InstanceData(
        bboxes=torch.tensor([[1.0, 2, 11, 12], [5, 5, 20, 20]]),
        labels=torch.tensor([1, 0]), scores=torch.tensor([0.9, 0.2]), **extra))


def test_detection_entry_and_its_mask():
    masks = torch.zeros(2, 30, 40, dtype=torch.bool)
    masks[0, 2:12, 1:11] = True
    result = Describer('mmdet', ['cat', 'dog'])(IMAGE, instances(masks=masks))
    detection, = json.loads(json.dumps(result.entry))['detections']
    assert detection['box'] == [1.0, 2.0, 11.0, 12.0]
    assert (detection['name'], detection['label'], detection['score']) == ('dog', 1, 0.9)
    assert np.array_equal(coco_mask.decode(detection['mask']).astype(bool), masks[0].numpy())


def test_score_threshold_and_detectors_without_masks():
    both = Describer('mmdet', ['cat', 'dog'], score_thr=0.1)(IMAGE, instances()).entry
    assert [item['name'] for item in both['detections']] == ['dog', 'cat']
    assert 'mask' not in both['detections'][0]
    assert Describer('mmdet', ['a', 'b'], score_thr=0.95)(IMAGE, instances()).entry == dict(
        detections=[])


def test_classification_entry_has_the_best_five():
    scores = torch.tensor([0.1, 0.3, 0.05, 0.2, 0.15, 0.12, 0.08])
    entry = Describer('mmpretrain', list('abcdefg'))(
        IMAGE, BaseDataElement(pred_score=scores)).entry
    assert [item['name'] for item in entry['top']] == ['b', 'd', 'e', 'f', 'a']
    assert entry['top'][0]['score'] == pytest.approx(0.3)


def test_labels_without_a_name_are_numbered():
    entry = Describer('mmpretrain', [])(IMAGE, BaseDataElement(pred_score=torch.ones(2))).entry
    assert {item['name'] for item in entry['top']} == {'class 0', 'class 1'}


def test_model_of_another_kind_is_refused():
    with pytest.raises(UserError, match='pred_score.*expected pred_sem_seg'):
        Describer('mmseg', ['a'])(IMAGE, BaseDataElement(pred_score=torch.ones(2)))
