"""The rank of an attention matrix: what a low one loses and the convolution restores."""
from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class RankReport:
    """Singular values of a matrix and what they say of its rank.

    Attributes:
        singular_values: (K,), descending, float64.
        numerical_rank: how many exceed ``tolerance``.
        effective_rank: exp of the entropy of the singular values divided by their sum (Roy and
            Vetterli 2007); between 1 and K, with no threshold.
        tolerance: absolute, the largest singular value times ``rtol``.
    """

    singular_values: Tensor
    numerical_rank: int
    effective_rank: float
    tolerance: float


def rank_report(matrix: Tensor, rtol: float | None = None) -> RankReport:
    """Numerical rank, effective rank and singular values of a matrix.

    Args:
        matrix: (N, M); worked on in float64.
        rtol: singular values below ``rtol`` times the largest count as zero. By default
            max(N, M) times float32's 1.2e-7, which is what a model computing in float32 cannot
            tell from zero.

    Raises:
        ValueError: the matrix has entries that are not finite, or is empty.
    """
    if matrix.ndim != 2 or not matrix.numel():
        raise ValueError(f'the rank of a tensor of shape {tuple(matrix.shape)}; expected (N, M)')
    if not torch.isfinite(matrix).all():
        raise ValueError('the matrix holds NaN or inf; check the weights and the input')
    values = torch.linalg.svdvals(matrix.double())
    if rtol is None:
        rtol = max(matrix.shape) * torch.finfo(torch.float32).eps
    tolerance = rtol * float(values[0])
    return RankReport(values, int((values > tolerance).sum()), effective_rank(values), tolerance)


def effective_rank(singular_values: Tensor) -> float:
    """exp(entropy) of singular values (K,) as shares of their sum; 0 where all are 0."""
    total = singular_values.sum()
    if total == 0:
        return 0.
    shares = singular_values / total
    return float(torch.special.entr(shares).sum().exp())
