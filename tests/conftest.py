"""Fixtures all tests share."""
from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

REPO = Path(__file__).resolve().parent.parent
SHARED = Path(os.environ.get('FLATTEN_MM_SHARED', REPO.parent / 'shared'))


def shared_path(*parts: str) -> Path:
    """A file of the data that lies beside the project; skips the test where it is absent."""
    path = SHARED.joinpath(*parts)
    if not path.exists():
        pytest.skip(f'{"/".join(parts)} is not beside the project (FLATTEN_MM_SHARED={SHARED})')
    return path


@pytest.fixture
def shared():
    return shared_path


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)
