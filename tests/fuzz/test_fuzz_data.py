"""A short run of fuzz_data.py."""

from __future__ import annotations

import pytest

pytest.importorskip('mmdet')
from fuzz_data import run


def test_damaged_files_are_used_rightly_or_named():
    outcomes, failures = run(cases=300, seed=0)
    assert not failures, failures[0]
    assert min(outcomes[name] for name in ('image used', 'image refused', 'file used',
                                           'file refused')) > 5
