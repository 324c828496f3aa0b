"""The demo from end to end, with a few steps on a few images."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import cv2
import pytest

from flatten_mm.demo import DemoReport

REPO = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize('miou, box_ap, learned', [
    (0.81, 0.36, True), (0.79, 0.36, False), (0.81, 0.34, False)])
def test_what_counts_as_learned(miou, box_ap, learned):
    assert DemoReport(Path(), miou=miou, box_ap=box_ap).learned is learned


def test_quick_demo(tmp_path):
    command = [sys.executable, REPO / 'tools/demo.py', '--quick', '--root', 'out']
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    run = tmp_path / 'out/run_001'
    summary = done.stdout[done.stdout.index('On held-out images:'):]
    for word in ('mIoU', 'box AP', 'mask AP', 'min', 'learn nothing'):
        assert word in summary
    for name in ('segmentation', 'detection', 'curves'):
        assert f'out/run_001/{name}.png' in summary
        assert min(cv2.imread(str(run / f'{name}.png')).shape[:2]) > 400
    for task in ('segmentation', 'detection'):
        assert (run / task / 'iter_4.pth').is_file()


def test_demo_leaves_foreign_data_alone(tmp_path):
    (tmp_path / 'data_quick').mkdir()
    (tmp_path / 'data_quick/mine.txt').write_text('mine')
    command = [sys.executable, REPO / 'tools/demo.py', '--quick', '--root', tmp_path]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1
    assert 'error:' in done.stderr and 'is not empty' in done.stderr
    assert 'Traceback' not in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ['data_quick']
