"""What README.md tells a newcomer to write or run exists and builds."""
from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from mmengine.config import Config
from mmengine.registry import init_default_scope

REPO = Path(__file__).resolve().parents[1]
README = (REPO / 'README.md').read_text()
CONFIGS = re.findall(r'```python\n(_base_.*?)```', README, re.DOTALL)


@pytest.mark.parametrize('text', CONFIGS, ids=['mmseg', 'mmdet'])
def test_swapped_backbone_builds(text: str, tmp_path) -> None:
    path = tmp_path / 'config.py'
    path.write_text(text)
    cfg = Config.fromfile(path)
    assert cfg.model.backbone.init_cfg.checkpoint.endswith('.pth')
    init_default_scope(cfg.default_scope)
    registry = __import__(f'{cfg.default_scope}.registry', fromlist=['MODELS']).MODELS
    model = registry.build(cfg.model).eval()
    with torch.no_grad():
        assert len(model.extract_feat(torch.randn(1, 3, 64, 96))) >= 4


def test_files_it_names_exist() -> None:
    named = re.findall(r'(?:tools|configs|docs)/[\w./-]+\.(?:py|sh|md)', README)
    assert len(named) > 8
    missing = {name for name in named if 'CONFIG' not in name and not (REPO / name).exists()}
    assert not missing


def test_commands_it_names_are_targets() -> None:
    makefile = (REPO / 'Makefile').read_text()
    for target in re.findall(r'^make (\w+)', README, re.MULTILINE):
        assert re.search(rf'^{target}:', makefile, re.MULTILINE)
