"""Our backbones against the records of what the released models compute."""
from __future__ import annotations

import pytest
import torch
from golden import FORWARD_TOLERANCE, GRADIENT_TOLERANCE, Replay

RECORDS = ['pvt_llll', 'pvt_llss_sr', 'swin_llss', 'swin_ape_llss', 'swin_llll_k3_p4',
           'swin_mixed_lmms1', 'swin_window14_llss', 'pvt_v2_llll', 'pvt_v2_llss_sr',
           'pvt_v2_linear_llss', 'cswin_llss', 'cswin_ssss', 'cswin_mixed_lmms1']

# In one record one token of a focused block has a head whose normaliser (4.7e-7) is near the
# 1e-6 that is added to it, from a query of 0.0058. There fp32 rounding of the query (7.7e-7, no
# more than elsewhere) becomes 6.7e-5 of a stage output of 7.6; scaling that one query by 0.9996
# brings the token within 6e-7 of the record. One more token is off by 3.7e-6, the rest by 1.3e-6.
ILL_CONDITIONED = {'swin_mixed_lmms1': 1.2e-5}


@pytest.mark.parametrize('name', RECORDS)
def test_float64_forward_and_gradients(name: str, shared) -> None:
    replay = Replay(shared('golden', f'{name}.pt'), torch.float64)
    forward = replay.forward_differences()
    tolerance = ILL_CONDITIONED.get(name, FORWARD_TOLERANCE[torch.float64])
    assert max(forward.values()) < tolerance, forward
    gradients = replay.gradient_differences()
    assert max(gradients.values()) < GRADIENT_TOLERANCE, gradients


@pytest.mark.parametrize('name', RECORDS)
def test_float32_forward(name: str, shared) -> None:
    forward = Replay(shared('golden', f'{name}.pt'), torch.float32).forward_differences()
    tolerance = ILL_CONDITIONED.get(name, FORWARD_TOLERANCE[torch.float32])
    assert max(forward.values()) < tolerance, forward
