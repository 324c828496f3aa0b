"""The tables of ``configs/``: measured figures into every metafile and README.

``model-index.yml`` lists the metafiles. A model's ``Metadata`` holds the measured ``Parameters``
and ``FLOPs``; ``Paper Reports`` holds what the paper prints, as text. A README's table lies
between two marker lines and is made from its folder's metafile alone.
"""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from mmengine.config import Config

from .complexity import Complexity, default_shape, measure

BEGIN = '<!-- table: made by tools/update_model_tables.py from metafile.yml -->'
END = '<!-- end of table -->'


@dataclass(frozen=True)
class Metafile:
    """One folder's ``metafile.yml``, ``content`` as YAML reads it."""

    path: Path
    content: dict[str, Any]

    @property
    def models(self) -> list[dict[str, Any]]:
        return self.content['Models']

    @property
    def readme(self) -> Path:
        return self.path.with_name('README.md')

    def dump(self) -> str:
        """The file's text."""
        return yaml.safe_dump(self.content, sort_keys=False, allow_unicode=True, width=100)


def metafiles(root: str | Path) -> Iterator[Metafile]:
    """The metafiles that ``model-index.yml`` under ``root`` names, in its order."""
    root = Path(root)
    index = yaml.safe_load((root / 'model-index.yml').read_text(encoding='utf-8'))
    for name in index['Import']:
        path = root / name
        yield Metafile(path, yaml.safe_load(path.read_text(encoding='utf-8')))


def record(model: dict[str, Any], root: str | Path) -> Complexity:
    """Measure a model of a metafile and write the figures into its ``Metadata``."""
    cfg = Config.fromfile(Path(root) / model['Config'])
    complexity = measure(cfg, default_shape(cfg))
    height, width = complexity.shape
    model['Metadata'].update({'Parameters': complexity.params, 'FLOPs': complexity.flops,
                              'FLOPs Input': f'{height}x{width}'})
    return complexity


def with_table(readme: str, models: list[dict[str, Any]]) -> str:
    """``readme`` with its table made anew.

    Raises:
        ValueError: it has no pair of marker lines.
    """
    before, begin, rest = readme.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f'the README has no place for the table; expected the lines {BEGIN!r} '
                         f'and {END!r}')
    return f'{before}{BEGIN}\n{table(models)}\n{END}{after}'


def table(models: list[dict[str, Any]]) -> str:
    """A Markdown table of a metafile's models; the paper's figures stand in columns saying so."""
    metrics = list(dict.fromkeys(name for model in models for name in _paper(model)
                                 if name not in ('Parameters', 'FLOPs')))
    header = ['config', 'params', f'FLOPs at {_inputs(models)}', 'params (paper)',
              'FLOPs (paper)', *(f'{name} (paper)' for name in metrics), 'train']
    rows = [header, ['---'] * len(header)]
    for model in models:
        metadata, paper = model['Metadata'], _paper(model)
        name = Path(model['Config']).name
        rows.append([
            f'[{model["Name"]}](./{name})', f'{metadata["Parameters"] / 1e6:.2f}M',
            f'{metadata["FLOPs"] / 1e9:.2f}G' + _own_input(model, models),
            *(str(paper.get(key, '–')) for key in ('Parameters', 'FLOPs', *metrics)),
            f'`{train_command(model)}`'])
    return '\n'.join(f'| {" | ".join(row)} |' for row in rows)


def train_command(model: dict[str, Any]) -> str:
    """The command that trains a model on the number of GPUs its learning rate is for."""
    return f'bash tools/dist_train.sh {model["Config"]} {model["Metadata"]["GPUs"]}'


def _paper(model: dict[str, Any]) -> dict[str, Any]:
    return model['Metadata'].get('Paper Reports', {})


def _inputs(models: list[dict[str, Any]]) -> str:
    """The input size most of the models share, as 'HxW'."""
    sizes = [model['Metadata']['FLOPs Input'] for model in models]
    return max(dict.fromkeys(sizes), key=sizes.count)


def _own_input(model: dict[str, Any], models: list[dict[str, Any]]) -> str:
    size = model['Metadata']['FLOPs Input']
    return '' if size == _inputs(models) else f' at {size}'
