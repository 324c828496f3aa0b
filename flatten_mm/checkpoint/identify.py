"""Telling which family and size a state dict is, from its keys and shapes alone."""
from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from torch import Tensor

# Family -> its title, a key that marks it, the key whose length is the width of its first stage.
# The order matters: a Swin key ends like DeiT's marker, a PVTv2 file has all that marks a PVT.
_FAMILIES = {
    'swin': ('Swin', 'layers.0.blocks.0.attn.qkv.weight', 'layers.0.blocks.0.norm1.weight'),
    'cswin': ('CSwin', 'stage1_conv_embed.0.weight', 'stage1.0.norm1.weight'),
    'pvt_v2': ('PVTv2', 'block1.0.mlp.dwconv.dwconv.weight', 'block1.0.norm1.weight'),
    'pvt': ('PVT', 'block1.0.attn.kv.weight', 'block1.0.norm1.weight'),
    'deit': ('DeiT', 'blocks.0.attn.qkv.weight', 'blocks.0.norm1.weight'),
}
# (family, width of the first stage, depths) -> size as its authors name it.
_SIZES = {
    ('deit', 192, (3, 3, 3, 3)): 'tiny',
    ('deit', 384, (3, 3, 3, 3)): 'small',
    ('deit', 768, (3, 3, 3, 3)): 'base',
    ('pvt', 64, (2, 2, 2, 2)): 'tiny',
    ('pvt', 64, (3, 4, 6, 3)): 'small',
    ('pvt', 64, (3, 4, 18, 3)): 'medium',
    ('pvt', 64, (3, 8, 27, 3)): 'large',
    ('pvt_v2', 32, (2, 2, 2, 2)): 'b0',
    ('pvt_v2', 64, (2, 2, 2, 2)): 'b1',
    ('pvt_v2', 64, (3, 4, 6, 3)): 'b2',
    ('pvt_v2', 64, (3, 4, 18, 3)): 'b3',
    ('pvt_v2', 64, (3, 8, 27, 3)): 'b4',
    ('pvt_v2', 64, (3, 6, 40, 3)): 'b5',
    ('swin', 96, (2, 2, 6, 2)): 'tiny',
    ('swin', 96, (2, 2, 18, 2)): 'small',
    ('swin', 128, (2, 2, 18, 2)): 'base',
    ('cswin', 64, (2, 4, 18, 1)): 'tiny',
    ('cswin', 64, (2, 4, 32, 2)): 'small',
    ('cswin', 96, (3, 6, 29, 2)): 'base',
}
_BLOCK = re.compile(r'(?:layers\.(\d+)\.blocks|block(\d+)|stage(\d+)|blocks)\.(\d+)\.')


@dataclass(frozen=True)
class Identity:
    """What a state dict seems to be.

    Attributes:
        family: ``'deit'``, ``'pvt'``, ``'pvt_v2'``, ``'swin'`` or ``'cswin'``.
        size: released name (``'tiny'``, ``'b2'``), None where no released model has its shape.
        attn_type: a letter a stage, L focused, S softmax, M mixed and then the number of focused
            blocks.
        width: channels of the first stage.
        depths: blocks of each stage (of each quarter for DeiT, as FLattenDeiT has them).
    """

    family: str
    size: str | None
    attn_type: str
    width: int
    depths: tuple[int, ...]

    @property
    def is_focused(self) -> bool:
        """True where any block is focused, that is for an FLatten model."""
        return bool(set(self.attn_type) - set('S'))

    def __str__(self) -> str:
        name = ('FLatten-' if self.is_focused else '') + _FAMILIES[self.family][0]
        depths = ', '.join(map(str, self.depths))
        size = self.size or 'of no released size'
        return f'{name} {size} (width {self.width}, depths {depths}, attention {self.attn_type})'


def identify(state_dict: Mapping[str, Tensor]) -> Identity | None:
    """Family, size and attention of a state dict under any prefix; None for other models."""
    family, prefix = _family_and_prefix(state_dict)
    if family is None:
        return None
    keys = [key[len(prefix):] for key in state_dict if key.startswith(prefix)]
    width = state_dict[prefix + _FAMILIES[family][2]].shape[0]
    focused = _focused_blocks(keys)
    if family == 'deit':
        focused = _quarters(focused[0])
    depths = tuple(len(stage) for stage in focused)
    size = _SIZES.get((family, width, depths))
    return Identity(family, size, _letters(focused), width, depths)


def backbone_prefix(state_dict: Mapping[str, Tensor]) -> str:
    """What stands before the names of the backbone in a state dict of one of the families."""
    return _family_and_prefix(state_dict)[1]


def stage_and_block(key: str) -> tuple[int, int] | None:
    """(stage, block) from 0 of a parameter inside a block (prefix stripped), else None."""
    match = _BLOCK.match(key)
    if match is None:
        return None
    layer, block, stage, index = match.groups()
    number = int(layer) if layer else int(block or stage or 1) - 1
    return number, int(index)


def _family_and_prefix(keys: Mapping[str, Tensor]) -> tuple[str | None, str]:
    """The family whose marker is among the keys, and what stands before it."""
    for family, (_, marker, width_key) in _FAMILIES.items():
        prefix = _prefix_before(marker, keys)
        if prefix is not None and prefix + width_key in keys:
            return family, prefix
    return None, ''


def _prefix_before(marker: str, keys: Iterable[str]) -> str | None:
    """Shortest prefix ('' or ending in '.') under which ``marker`` is among the keys."""
    found = [key[:-len(marker)] for key in keys
             if key == marker or key.endswith('.' + marker)]
    return min(found, key=len) if found else None


def _focused_blocks(keys: Iterable[str]) -> list[list[bool]]:
    """For each stage and block whether it is focused."""
    stages: dict[int, dict[int, bool]] = defaultdict(dict)
    for key in keys:
        place = stage_and_block(key)
        if place is not None:
            stage, block = place
            stages[stage][block] = stages[stage].get(block, False) or key.endswith('.scale')
    return [[blocks[j] for j in sorted(blocks)] for _, blocks in sorted(stages.items())]


def _quarters(blocks: list[bool]) -> list[list[bool]]:
    """DeiT's single run of blocks in four equal parts, where it has such."""
    size, rest = divmod(len(blocks), 4)
    return [blocks] if rest else [blocks[i:i + size] for i in range(0, len(blocks), size)]


def _letters(focused: list[list[bool]]) -> str:
    letters, mixed = '', ''
    for stage in focused:
        letters += 'L' if all(stage) else 'M' if any(stage) else 'S'
        if letters[-1] == 'M':
            mixed = str(sum(stage))
    return letters + mixed
