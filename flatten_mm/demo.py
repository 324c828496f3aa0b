"""The demo: make the embedded data set, train a segmenter and a detector on it, show the result."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import mmcv
import numpy as np
import torch
from matplotlib.figure import Figure
from mmengine.config import Config
from mmengine.logging import print_log
from mmengine.runner import Runner
from mmengine.structures import BaseDataElement

from .analysis.contact_sheet import (
    DetectedImage,
    Instances,
    SegmentedImage,
    detection_sheet,
    segmentation_sheet,
)
from .analysis.curves import curves_figure, read_log
from .datasets import make_demo_dataset
from .engine import load_config, test, train

# What the demo must reach on held-out images, as fractions.
LEAST_MIOU = 0.80
LEAST_BOX_AP = 0.35

_SHEET_IMAGES = 8
# A few steps on a few images: shows that everything runs, learns nothing.
_QUICK_DATA = dict(num_train=8, num_val=4)
_QUICK_OPTIONS = {
    'train_cfg.max_iters': 4,
    'train_cfg.val_interval': 2,
    'train_dataloader.batch_size': 2,
    'default_hooks.logger.interval': 1,
    'default_hooks.checkpoint.interval': 2,
}


@dataclass
class DemoReport:
    """What a run of the demo reached.

    Attributes:
        work_dir: Folder of this run.
        miou, box_ap, mask_ap: Fractions, on held-out images.
        seconds: Wall time of each part.
        pictures: The files drawn.
    """

    work_dir: Path
    miou: float = 0.
    box_ap: float = 0.
    mask_ap: float = 0.
    seconds: dict[str, float] = field(default_factory=dict)
    pictures: list[Path] = field(default_factory=list)

    @property
    def learned(self) -> bool:
        """Whether the scores are those a working installation reaches."""
        return self.miou >= LEAST_MIOU and self.box_ap >= LEAST_BOX_AP


def run_demo(seg_config: str | os.PathLike, det_config: str | os.PathLike,
             root: str | os.PathLike = 'work_dirs/demo', quick: bool = False) -> DemoReport:
    """Run the demo in a new numbered folder under ``root``; the data are made once and reused.

    Args:
        seg_config: mmseg config that reads FLATTEN_DATA_ROOT.
        det_config: mmdet config that does.
        root: Folder of the data set and of all runs.
        quick: Take a few steps only, on a few images.

    Raises:
        UserError, FileExistsError: See :func:`flatten_mm.engine.train` and
            :func:`flatten_mm.datasets.make_demo_dataset`.
    """
    root = Path(root)
    configs = [_load(path, root, quick) for path in (seg_config, det_config)]
    started = time.perf_counter()
    make_demo_dataset(_data_root(root, quick), **(_QUICK_DATA if quick else {}))
    report = DemoReport(_new_folder(root))
    report.seconds['making the data'] = time.perf_counter() - started
    seg = _run(report, 'segmentation', configs[0], _draw_segmentations)
    det = _run(report, 'detection', configs[1], _draw_detections)
    report.miou = seg['mIoU'] / 100
    report.box_ap, report.mask_ap = det['coco/bbox_mAP'], det['coco/segm_mAP']
    logs = {task: read_log(report.work_dir / task) for task in ('segmentation', 'detection')}
    _save(report, 'curves', curves_figure(logs))
    return report


def _data_root(root: Path, quick: bool) -> Path:
    return root / ('data_quick' if quick else 'data')


def _load(path: str | os.PathLike, root: Path, quick: bool) -> Config:
    return load_config(path, _QUICK_OPTIONS if quick else None, data_root=_data_root(root, quick))


def _new_folder(root: Path) -> Path:
    """The first of root/run_001, root/run_002, ... that does not exist, made."""
    number = 1
    while True:
        folder = root / f'run_{number:03d}'
        try:
            folder.mkdir(parents=True)
            return folder
        except FileExistsError:
            number += 1


def _run(report: DemoReport, task: str, cfg: Config,
         draw: Callable[[Runner], Figure]) -> dict[str, float]:
    """Train, test the last checkpoint and draw its predictions; returns the test's metrics."""
    started = time.perf_counter()
    runner = train(cfg, work_dir=report.work_dir / task)
    report.seconds[f'training the {task} model'] = time.perf_counter() - started
    started = time.perf_counter()
    checkpoint = report.work_dir / task / f'iter_{cfg.train_cfg.max_iters}.pth'
    metrics = test(cfg, checkpoint, work_dir=report.work_dir / f'{task}_test')
    report.seconds[f'testing the {task} model'] = time.perf_counter() - started
    _save(report, task, draw(runner))
    return metrics


def _save(report: DemoReport, name: str, figure: Figure) -> None:
    path = report.work_dir / f'{name}.png'
    figure.savefig(path, dpi=110)
    report.pictures.append(path)
    print_log(f'wrote {path}', logger='current')


def _draw_segmentations(runner: Runner) -> Figure:
    dataset = runner.val_dataloader.dataset
    samples = [
        SegmentedImage(image, sample.gt_sem_seg.data[0].cpu().numpy(),
                       sample.pred_sem_seg.data[0].cpu().numpy())
        for image, sample in _predictions(runner)
    ]
    return segmentation_sheet(samples, dataset.metainfo['classes'], dataset.metainfo['palette'])


def _draw_detections(runner: Runner) -> Figure:
    dataset = runner.val_dataloader.dataset
    samples = []
    for image, sample in _predictions(runner):
        truth, found = sample.gt_instances, sample.pred_instances
        samples.append(DetectedImage(
            image,
            Instances(truth.labels.cpu().numpy(), truth.bboxes.cpu().numpy(),
                      truth.masks.masks.astype(bool)),
            Instances(found.labels.cpu().numpy(), found.bboxes.cpu().numpy(),
                      found.masks.cpu().numpy().astype(bool), found.scores.cpu().numpy())))
    return detection_sheet(samples, dataset.metainfo['classes'], dataset.metainfo['palette'])


def _predictions(runner: Runner) -> Iterator[tuple[np.ndarray, BaseDataElement]]:
    """(RGB image, data sample with truth and prediction) of the first held-out images."""
    loader = runner.val_dataloader
    runner.model.eval()
    for index in range(min(_SHEET_IMAGES, len(loader.dataset))):
        with torch.no_grad():
            sample = runner.model.test_step(loader.collate_fn([loader.dataset[index]]))[0]
        yield mmcv.imread(sample.img_path, channel_order='rgb'), sample
