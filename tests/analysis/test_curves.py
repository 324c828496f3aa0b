"""Curves come from mmengine's logs, all of them, and nothing else."""

from __future__ import annotations

import json

import pytest

from flatten_mm.analysis.curves import curves_figure, read_log


def _write(folder, *entries):
    path = folder / 'vis_data/scalars.json'
    path.parent.mkdir(parents=True)
    path.write_text(''.join(json.dumps(entry) + '\n' for entry in entries))


def _train(step, loss, **parts):
    return dict(base_lr=0.1, lr=0.1, data_time=0.1, grad_norm=2., loss=loss, **parts, acc=50.,
                time=0.3, iter=step, step=step)


@pytest.fixture
def work_dir(tmp_path):
    _write(tmp_path / '20260101_000000',
           _train(20, 3., loss_cls=2., loss_mask=1.),
           {'coco/bbox_mAP': 0.1, 'coco/segm_mAP': 0.2, 'data_time': 0.1, 'time': 1., 'step': 20},
           _train(40, 9., loss_cls=8., loss_mask=1.))
    return tmp_path


def test_losses_and_scores(work_dir):
    log = read_log(work_dir)
    assert log.losses == {'loss': {20: 3., 40: 9.}, 'loss_cls': {20: 2., 40: 8.},
                          'loss_mask': {20: 1., 40: 1.}}
    assert log.scores == {'coco/bbox_mAP': {20: 0.1}, 'coco/segm_mAP': {20: 0.2}}


def test_a_resumed_training_replaces_its_steps_and_a_test_adds_none(work_dir):
    _write(work_dir / '20260102_000000', _train(40, 2., loss_cls=1., loss_mask=1.))
    _write(work_dir / '20260103_000000', {'coco/bbox_mAP': 0.9, 'step': 0})
    log = read_log(work_dir)
    assert log.losses['loss'] == {20: 3., 40: 2.}
    assert log.scores['coco/bbox_mAP'] == {20: 0.1}


def test_figure_shows_percentages_of_known_scores(work_dir):
    left, right = curves_figure({'detection': read_log(work_dir)}).axes
    drawn = {line.get_label(): list(zip(*line.get_data())) for line in left.lines + right.lines}
    assert drawn == {
        'sum': [(20, 3.), (40, 9.)], 'loss_cls': [(20, 2.), (40, 8.)],
        'loss_mask': [(20, 1.), (40, 1.)],
        'box AP: 10.0 at the end': [(20, pytest.approx(10))],
        'mask AP: 20.0 at the end': [(20, pytest.approx(20))],
    }
    for axis in (left, right):
        assert axis.get_xlabel() == 'iteration' and axis.get_ylabel() and axis.get_legend()


def test_a_single_part_is_not_drawn_beside_the_sum(tmp_path):
    _write(tmp_path / 'a', _train(20, 3., **{'decode.loss_ce': 3.}))
    left, right = curves_figure({'segmentation': read_log(tmp_path)}).axes
    assert [line.get_label() for line in left.lines] == ['sum']
    assert not right.lines and right.texts[0].get_text() == 'no validation logged'


def test_no_logs(tmp_path):
    with pytest.raises(FileNotFoundError, match='scalars.json'):
        read_log(tmp_path)
    _write(tmp_path / 'a', {'mIoU': 3., 'step': 0})
    with pytest.raises(ValueError, match='no loss'):
        read_log(tmp_path)
