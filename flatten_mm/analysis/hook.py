"""Watching focused attention while it trains."""
from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack

import torch
import torch.nn.functional as F
from mmengine.hooks import Hook
from mmengine.registry import HOOKS
from mmengine.runner import Runner

from ..backbones.base import FOCUSED
from .focus import dead_shares, focus_stats
from .observe import AttendCall, attention_sites, observe


@HOOKS.register_module()
class FocusedAttentionStatsHook(Hook):
    """Log what the focused attention of each block does during training.

    Every ``interval`` iterations one step is observed, on the first image of its batch. To all
    visualization backends (``vis_data/scalars.json``, TensorBoard, …) go, for each focused
    attention module NAME:

    * ``attention/entropy/NAME``: entropy of the attention (without DWC) in nats, averaged over
      heads and a sample of queries; ``attention/relative_entropy/NAME``: divided by log(keys), so
      1 is uniform. Rising to 1, a block no longer chooses.
    * ``attention/scale_min/NAME``, ``attention/scale_max/NAME``: range of softplus(scale), which
      divides the features. A tiny one blows its channel up.
    * ``attention/dead_queries/NAME``, ``attention/dead_keys/NAME``: shares of tokens of which the
      ReLU leaves nothing in a head; see :func:`flatten_mm.analysis.dead_shares`.

    Use it with ``custom_imports = dict(imports=['flatten_mm', 'flatten_mm.analysis.hook'])`` and
    ``custom_hooks = [dict(type='FocusedAttentionStatsHook')]``.

    Args:
        interval: iterations between two observed steps.
        queries: how many queries a module the entropy is averaged over.

    Raises:
        ValueError: ``interval`` or ``queries`` is below 1; when training starts: the model has no
            FLatten backbone, or one without focused blocks.
    """

    def __init__(self, interval: int = 50, queries: int = 64) -> None:
        for name, value in (('interval', interval), ('queries', queries)):
            if value < 1:
                raise ValueError(f'FocusedAttentionStatsHook: {name}={value}; expected at least 1')
        self.interval = interval
        self.queries = queries
        self._observed = ExitStack()
        self._stats: dict[str, float] = {}

    def before_train(self, runner: Runner) -> None:
        if not any(site.kind == FOCUSED for site in attention_sites(runner.model)):
            raise ValueError('FocusedAttentionStatsHook: no block of the backbone is focused; use '
                             'an attn_type with an L or M stage or remove the hook')

    def before_train_iter(self, runner: Runner, batch_idx: int,
                          data_batch: Sequence[dict] | dict | None = None) -> None:
        if self.every_n_train_iters(runner, self.interval):
            self._stats = {}
            if hasattr(torch.compiler, 'set_stance'):  # torch 2.6
                # A compiled model runs this step as it is written, and is not compiled again.
                self._observed.enter_context(torch.compiler.set_stance('force_eager'))
            self._observed.enter_context(observe(runner.model, self._look))

    def after_train_iter(self, runner: Runner, batch_idx: int,
                         data_batch: Sequence[dict] | dict | None = None,
                         outputs: dict | None = None) -> None:
        self._observed.close()
        if self._stats:
            runner.visualizer.add_scalars(self._stats, step=runner.iter + 1)
            self._stats = {}

    def _look(self, call: AttendCall) -> None:
        name = call.site.name
        # with_cp attends again in the backward pass
        if call.site.kind != FOCUSED or f'attention/entropy/{name}' in self._stats:
            return
        stats = focus_stats(call, queries=self.queries)
        scale = F.softplus(call.site.module.scale)
        dead_queries, dead_keys = dead_shares(call)
        values = dict(
            entropy=stats.entropy.mean(), relative_entropy=stats.relative_entropy.mean(),
            scale_min=scale.min(), scale_max=scale.max(), dead_queries=dead_queries,
            dead_keys=dead_keys)
        self._stats.update({f'attention/{what}/{name}': round(float(value), 6)
                            for what, value in values.items()})
