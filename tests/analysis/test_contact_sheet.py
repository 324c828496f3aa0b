"""Contact sheets show what they are given: colours of classes, boxes above the threshold."""

from __future__ import annotations

import numpy as np

from flatten_mm.analysis.contact_sheet import (
    DetectedImage,
    Instances,
    SegmentedImage,
    detection_sheet,
    segmentation_sheet,
)

PALETTE = [(0, 0, 0), (255, 0, 0), (0, 0, 255)]
IMAGE = np.full((6, 8, 3), 100, np.uint8)


def _pictures(figure):
    return [axis.images[0].get_array() for axis in figure.axes if axis.images]


def test_segmentation():
    truth = np.zeros((6, 8), np.uint8)
    truth[:3] = 1
    truth[5] = 255  # ignored
    sheet = segmentation_sheet([SegmentedImage(IMAGE, truth, np.full_like(truth, 2))] * 3,
                               ['background', 'disc', 'ring'], PALETTE)
    pictures = _pictures(sheet)
    assert len(pictures) == 9
    image, shown_truth, prediction = pictures[:3]
    np.testing.assert_array_equal(image, IMAGE)
    red, clear, ignored = shown_truth[0, 0], shown_truth[4, 0], shown_truth[5, 0]
    assert red[0] > 150 > 100 > red[2] and len(set(clear)) == 1
    np.testing.assert_array_equal(clear, ignored)
    assert (prediction[..., 2] > 150).all()
    assert [text.get_text() for text in sheet.legends[0].texts] == ['disc', 'ring']
    assert [axis.get_title() for axis in sheet.axes[:3]] == ['image', 'truth', 'prediction']


def test_detection_leaves_out_low_scores():
    mask = np.zeros((2, 6, 8), bool)
    mask[0, :2], mask[1, 4:] = True, True
    found = Instances(np.array([1, 2]), np.array([[0, 0, 8, 2], [0, 4, 8, 6]]), mask,
                      np.array([0.9, 0.2]))
    truth = Instances(np.array([2]), np.array([[1, 1, 4, 5]]))
    sheet = detection_sheet([DetectedImage(IMAGE, truth, found)], ['background', 'disc', 'ring'],
                            PALETTE, score_thr=0.5)
    _, truth_axis, found_axis = sheet.axes[:3]
    box, = truth_axis.patches
    assert (box.get_x(), box.get_y(), box.get_width(), box.get_height()) == (0.5, 0.5, 3, 4)
    assert box.get_edgecolor()[:3] == (0, 0, 1) and not truth_axis.texts
    assert len(found_axis.patches) == 1 and found_axis.texts[0].get_text() == '90'
    picture = found_axis.images[0].get_array()
    assert picture[0, 0, 0] > 150 and len(set(picture[5, 0])) == 1
