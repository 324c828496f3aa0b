"""Runs side by side: logs as the mm libraries write them, resumed, killed and incomplete."""
from __future__ import annotations

import json
from pathlib import Path

import pytest

from flatten_mm.analysis.runs import Cost, markdown_table, read_run, read_runs, runs_figure
from flatten_mm.engine import UserError


def write_log(folder: Path, entries: list[dict], stamp: str = '20260101_000000',
              end: str = '') -> Path:
    file = folder / stamp / 'vis_data' / 'scalars.json'
    file.parent.mkdir(parents=True)
    file.write_text(''.join(json.dumps(entry) + '\n' for entry in entries) + end)
    return folder


def step(number: int, loss: float, **more) -> dict:
    return dict(loss=loss, time=0.5, data_time=0.1, lr=1e-3, iter=number, step=number, **more)


def test_segmenter_by_iteration(tmp_path):
    run = read_run(write_log(tmp_path / 'seg', [
        step(20, 2., memory=900), step(40, 1., memory=1100),
        {'attention/entropy/block1.0.attn': 3.2, 'step': 40},
        dict(aAcc=80., mIoU=40., mAcc=50., time=0.1, step=50), step(60, 0.5),
        dict(aAcc=80., mIoU=39., mAcc=51., step=100)]))
    assert run.name == 'seg'
    assert run.loss == {20: 2., 40: 1., 60: 0.5}
    assert run.metrics == {'mIoU': {50: 40., 100: 39.}, 'mAcc': {50: 50., 100: 51.}}
    assert run.step_time == 0.5 and run.memory == 1100
    assert 'mIoU' in markdown_table([run], [None])
    row = markdown_table([run], [None]).splitlines()[2]
    assert row == '| seg | 100 | 39.0 (40.0) | 51.0 | 0.500 | 1.07 |'
    assert runs_figure([run]).axes[0].get_xlim()[1] > 100  # no validation beyond the border


def test_validations_by_epoch_stand_where_they_happened(tmp_path):
    by_epoch = read_run(write_log(tmp_path / 'cls', [
        step(10, 2., epoch=1), {'accuracy/top1': 70., 'step': 1},
        step(20, 1., epoch=2), {'accuracy/top1': 80., 'step': 2}]))
    assert by_epoch.metrics == {'top-1': {10: 70., 20: 80.}}
    # mmengine's default logger hook gives epoch 0 to every validation of a training by iteration
    detector = read_run(write_log(tmp_path / 'det', [
        step(10, 2.), {'coco/bbox_mAP': 0.25, 'coco/segm_mAP': 0.2, 'step': 0}, step(20, 1.),
        {'coco/bbox_mAP': 0.5, 'coco/segm_mAP': 0.4, 'step': 0}]))
    assert detector.metrics == {'box AP': {10: 25., 20: 50.}, 'mask AP': {10: 20., 20: 40.}}


def test_resumed_training_is_one_run(tmp_path):
    write_log(tmp_path, [step(10, 5.), step(20, 4.), step(30, 9.), dict(mIoU=1., step=30)])
    write_log(tmp_path, [dict(mIoU=77., step=0)], '20260101_010000')  # a test between
    write_log(tmp_path, [step(20, 3.), dict(mIoU=2., step=25)], '20260101_020000')
    run = read_run(tmp_path)
    assert run.loss == {10: 5., 20: 3.}
    assert run.metrics == {'mIoU': {25: 2.}}


def test_half_a_last_line_is_left_out_and_damage_is_named(tmp_path):
    assert read_run(write_log(tmp_path / 'a', [step(10, 1.)], end='{"loss": 0.')).loss == {10: 1.}
    folder = write_log(tmp_path / 'b', [step(10, 1.)], end='{"loss": 0.\n{"loss": 1}\n')
    with pytest.raises(UserError, match='line 2 of log .*scalars.json is no JSON'):
        read_run(folder)


def test_folders_without_a_training_are_named(tmp_path):
    with pytest.raises(UserError, match='nowhere does not exist'):
        read_run(tmp_path / 'nowhere')
    (tmp_path / 'empty').mkdir()
    with pytest.raises(UserError, match='empty holds no log of a training'):
        read_run(tmp_path / 'empty')
    with pytest.raises(UserError, match='holds no log of a training'):
        read_run(write_log(tmp_path / 'test', [dict(mIoU=1., step=0)]))


def test_table_and_picture_of_different_tasks(tmp_path):
    seg = write_log(tmp_path / 'one' / 'run', [step(10, 1.), dict(mIoU=40., mAcc=50., step=10)])
    det = write_log(tmp_path / 'two' / 'run', [step(30, 3.), {'coco/bbox_mAP': 0.5, 'step': 30}])
    runs = read_runs([seg, det])
    assert [run.name for run in runs] == [str(seg), str(det)]  # folder names coincide
    table = markdown_table(runs, [Cost(12_300_000, 4_560_000_000, (512, 2048)), None])
    head, _, first, second = table.splitlines()
    assert head.split(' | ')[1:] == ['iterations', 'mIoU', 'mAcc', 'box AP', 'params (M)',
                                     'FLOPs (G)', 's a step |']
    assert first.endswith('| 10 | 40.0 | 50.0 | – | 12.30 | 4.56 at 512x2048 | 0.500 |')
    assert second.endswith('| 30 | – | – | 50.0 | – | – | 0.500 |')
    figure = runs_figure(runs)
    assert [axis.get_title() for axis in figure.axes if axis.get_visible()] == [
        'training loss', 'mIoU (%)', 'mAcc (%)', 'box AP (%)']
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [str(seg), str(det)]
