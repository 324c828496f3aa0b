"""Which backbone a benchmark means: by config, by name, or the released computation."""
from __future__ import annotations

import ast
import importlib.util
import inspect
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from mmengine.registry import MODELS
from torch import nn

from ..backbones.base import FOCUSED, SOFTMAX, FLattenBackbone
from ..engine.config import SCOPES, load_config, scope_of
from ..engine.errors import UserError, reported_as
from .model_tables import metafiles

REPOSITORY = Path(__file__).resolve().parents[2]
EXPECTED = ('a config file, or NAME[:ARCH[:ATTN_TYPE]][:KEY=VALUE]... such as FLattenPVT:tiny, '
            'FLattenSwin:tiny:SSSS, mmdet.SwinTransformer, after released: (the released '
            'computation) or compiled: (torch.compile) if wanted')

# mmdet (and mmseg) know their sizes by numbers only; those of its configs.
_SIZES: dict[str, dict[str, dict[str, Any]]] = {
    'PyramidVisionTransformer': {
        'tiny': dict(num_layers=[2, 2, 2, 2]), 'small': dict(num_layers=[3, 4, 6, 3]),
        'medium': dict(num_layers=[3, 4, 18, 3]), 'large': dict(num_layers=[3, 8, 27, 3])},
    'SwinTransformer': {
        'tiny': dict(depths=(2, 2, 6, 2)), 'small': dict(depths=(2, 2, 18, 2)),
        'base': dict(depths=(2, 2, 18, 2), embed_dims=128, num_heads=(4, 8, 16, 32))},
}


@dataclass(frozen=True)
class ModelSpec:
    """A model as the command line names it.

    Attributes:
        text: what was given, with its prefixes; names the model in tables.
        cfg: of the backbone, as the registry of ``scope`` takes it.
        scope: mm library whose registry builds it; None: mmengine's root registry.
        released: compute as the released code does.
        compiled: through ``torch.compile``.
    """

    text: str
    cfg: dict[str, Any]
    scope: str | None = None
    released: bool = False
    compiled: bool = False


def parse_spec(text: str) -> ModelSpec:
    """Read a model's name.

    Args:
        text: see ``EXPECTED``. ``mmdet.X`` is X of mmdet's registry, plain X is ours.

    Raises:
        UserError: it is no such name, or the config does not load.
    """
    rest, flags = text, {}
    for flag in ('compiled', 'released'):
        if rest.startswith(f'{flag}:'):
            rest, flags[flag] = rest[len(flag) + 1:], True
    if rest.endswith(('.py', '.json', '.yaml', '.yml')):
        loaded = load_config(rest)
        backbone = (loaded.get('model') or {}).get('backbone')
        if backbone is None:
            raise UserError(f'config {rest} has no model.backbone to measure')
        # Times do not depend on the weights.
        cfg, scope = dict(backbone.to_dict(), init_cfg=None), scope_of(loaded)
    else:
        cfg, scope = _parse_name(text, rest)
    if flags.get('released') and cfg['type'] != 'FLattenPVT':
        raise UserError(f'{text}: the released computation is restated for FLattenPVT only, not '
                        f'for {cfg["type"]}')
    return ModelSpec(text, cfg, scope, **flags)


def _parse_name(text: str, rest: str) -> tuple[dict[str, Any], str | None]:
    name, *words = rest.split(':')
    scope, _, kind = name.rpartition('.')
    if not kind.isidentifier() or scope not in ('', *SCOPES):
        raise UserError(f'model {text!r}: expected {EXPECTED}')
    cfg: dict[str, Any] = dict(type=kind)
    places = ['arch', 'attn_type'] if not scope or scope == 'mmpretrain' else ['arch']
    for word in words:
        key, equals, value = word.partition('=')
        if equals:
            try:
                cfg[key] = ast.literal_eval(value)
            except (ValueError, SyntaxError):
                cfg[key] = value
        elif not word or not places:
            raise UserError(f'model {text!r}: nothing is known to do with {word!r}; expected '
                            f'{EXPECTED}')
        else:
            cfg[places.pop(0)] = word
    if scope in ('mmdet', 'mmseg') and 'arch' in cfg:
        arch, sizes = cfg.pop('arch'), _SIZES.get(kind, {})
        if arch not in sizes:
            raise UserError(f'model {text!r}: {arch!r} is no known size of {name}; expected '
                            f'{"one of " + ", ".join(sizes) if sizes else "KEY=VALUE arguments"}')
        cfg = {**cfg, **sizes[arch]}
    return cfg, scope or None


def build(spec: ModelSpec, device: str | torch.device = 'cpu') -> nn.Module:
    """The backbone with random weights, the same ones (seed 0) for every spec of its cfg.

    Raises:
        UserError: it cannot be built, its library is not installed, or the released computation
            is asked for outside the repository.
    """
    if spec.scope and importlib.util.find_spec(spec.scope) is None:
        raise UserError(f'{spec.text} needs {spec.scope}, which is not installed')
    torch.manual_seed(0)
    with reported_as(f'cannot build {spec.text}'):
        if spec.scope:
            with MODELS.switch_scope_and_registry(spec.scope) as registry:
                model = registry.build(dict(spec.cfg))
        else:
            model = MODELS.build(dict(spec.cfg))
        if isinstance(model, FLattenBackbone):
            model.init_weights()
    if spec.released:
        model = _released_module().as_released(model)
    model = model.to(device)
    return torch.compile(model) if spec.compiled else model


def _released_module() -> Any:
    """``tests/released.py``, which is part of the repository and not of the package."""
    path = REPOSITORY / 'tests' / 'released.py'
    if not path.is_file():
        raise UserError(f'released: needs {path}, the plain restatement the tests compare with; '
                        'run the benchmark from a checkout of the repository')
    module_spec = importlib.util.spec_from_file_location('flatten_mm_released', path)
    module = importlib.util.module_from_spec(module_spec)
    module_spec.loader.exec_module(module)
    return module


def paper_accuracies(specs: list[ModelSpec]) -> dict[str, float]:
    """ImageNet top-1 (%) at 224x224 that the paper reports, of those specs it can be told for.

    Read from the metafiles of ``configs/``, which the repository and installed packages hold.
    """
    for root in (REPOSITORY, REPOSITORY / 'flatten_mm' / '.mim'):
        if (root / 'model-index.yml').is_file():
            reported = {model['Name']: model['Metadata'].get('Paper Reports', {}).get('top-1')
                        for file in metafiles(root) for model in file.models}
            break
    else:
        return {}
    accuracies = {}
    for spec in specs:
        stem = _metafile_stem(spec)
        for name, value in reported.items():
            if value and '384px' not in name and stem and name.split('_')[0] == stem:
                accuracies[spec.text] = float(value)
    return accuracies


def _metafile_stem(spec: ModelSpec) -> str | None:
    """``flatten-pvt-tiny-softmax`` for FLattenPVT:tiny:SSSS; None for what is not ours or changed.
    """
    kind = MODELS.get(spec.cfg['type'])
    if not isinstance(kind, type) or not issubclass(kind, FLattenBackbone):
        return None
    defaults = {name: p.default for name, p in inspect.signature(kind).parameters.items()}
    arch, attn_type, attention = (spec.cfg.get(key, defaults[key])
                                  for key in ('arch', 'attn_type', 'attention'))
    softmax = set(attn_type) == {'S'}
    ablated = any(spec.cfg.get(key, defaults[key]) != defaults[key]
                  for key in ('focusing_factor', 'rank_restoration'))
    if not isinstance(arch, str) or not (softmax or attn_type == defaults['attn_type']) or ablated:
        return None
    arch = kind.ARCH_ALIASES.get(arch, arch)
    attention = SOFTMAX if softmax else attention
    suffix = '' if attention == FOCUSED else f'-{attention}'
    return f'flatten-{kind.__name__[len("FLatten"):].lower()}-{arch}{suffix}'
