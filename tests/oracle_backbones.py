"""Every family restated plainly, from a state dict: what the fuzz compares the backbones with.

One window, one head at a time, explicit attention matrices, no function of the package. The
meaning of sizes that the released models do not have (padding, cropped windows, resized tables) is
the one the docstrings of the backbones give.
"""
from __future__ import annotations

import oracle
import torch
import torch.nn.functional as F
from torch import Tensor

Size = tuple[int, int]


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def resize(table: Tensor, src: Size, dst: Size, mode: str) -> Tensor:
    """(1, n, C) rows of a grid -> rows of another."""
    if tuple(src) == tuple(dst):
        return table
    grid = table.reshape(1, *src, -1).permute(0, 3, 1, 2)
    grid = F.interpolate(grid, size=tuple(dst), mode=mode, align_corners=False)
    return grid.permute(0, 2, 3, 1).reshape(1, dst[0] * dst[1], -1)


def axis_cells(side: int, window: int, shifted: bool) -> list[list[tuple[int, bool]]]:
    """For each window along an axis its (position on the map, wrapped); position -1 is padding."""
    window, full = min(side, window), window
    shift = window // 2 if shifted and side > full else 0
    padded = ceil_div(side, window) * window
    cells = []
    for start in range(0, padded, window):
        rolled = [start + i + shift for i in range(window)]
        cells.append([(p % padded if p % padded < side else -1, p >= padded) for p in rolled])
    return cells


def windows(map_hw: Size, window_hw: Size, shifted: bool):
    """Of each window its (h, w), the token at each place (-1: padding) and a label a token: real
    tokens of equal labels are neighbours on the map."""
    for rows in axis_cells(map_hw[0], window_hw[0], shifted):
        for columns in axis_cells(map_hw[1], window_hw[1], shifted):
            tokens, labels = [], []
            for r, r_wrapped in rows:
                for c, c_wrapped in columns:
                    tokens.append(r * map_hw[1] + c if r >= 0 and c >= 0 else -1)
                    labels.append((3 if r < 0 else r_wrapped) * 4 + (3 if c < 0 else c_wrapped))
            yield (len(rows), len(columns)), tokens, labels


class Net:
    """A backbone as its weights; ``settings`` are the constructor's arguments, all given."""

    def __init__(self, weights: dict[str, Tensor], settings: dict) -> None:
        self.w = weights
        self.s = settings
        self.arch = settings['arch']
        number = int(settings['attn_type'][4:] or 0)
        self.kinds = [['L' if letter == 'L' or (letter == 'M' and j < number) else 'S'
                       for j in range(depth)]
                      for letter, depth in zip(settings['attn_type'], self.arch['depths'])]
        self.stages = max(settings['out_indices']) + 1
        size = settings['pretrain_img_size']
        self.image = (size, size) if isinstance(size, int) else tuple(size)

    # ---- layers

    def fc(self, name: str, x: Tensor) -> Tensor:
        return x @ self.w[f'{name}.weight'].T + self.w.get(f'{name}.bias', 0)

    def norm(self, name: str, x: Tensor, eps: float) -> Tensor:
        x = x - x.mean(-1, keepdim=True)
        x = x / (x.square().mean(-1, keepdim=True) + eps).sqrt()
        return x * self.w[f'{name}.weight'] + self.w[f'{name}.bias']

    def conv(self, name: str, x: Tensor, hw: Size | None, stride: int = 1, padding: int = 0,
             depthwise: bool = False) -> tuple[Tensor, Size]:
        """Of tokens on ``hw`` (or of an image, hw None) to tokens and their grid."""
        if hw is not None:
            x = x.transpose(1, 2).reshape(x.shape[0], -1, *hw)
        weight = self.w[f'{name}.weight']
        kernel = weight.shape[-1]
        lack = [max(kernel - 2 * padding - side, 0) for side in x.shape[-2:]]
        x = F.pad(x, (0, lack[1], 0, lack[0]))
        x = F.conv2d(x, weight, self.w.get(f'{name}.bias'), stride, padding,
                     groups=weight.shape[0] if depthwise else 1)
        return x.flatten(2).transpose(1, 2), tuple(x.shape[-2:])

    # ---- attention

    def focused(self, name: str, q: Tensor, k: Tensor, v: Tensor, q_hw: Size, k_hw: Size,
                grid: Size, heads: int, tokens: list[int] | None = None) -> Tensor:
        """Explicit focused attention and the convolution of V; tokens of -1 are no keys."""
        encoding = resize(self.w[f'{name}.positional_encoding'], grid, k_hw, 'bicubic')
        real = slice(None) if tokens is None else [i for i, t in enumerate(tokens) if t >= 0]
        rows = oracle.attention_matrix(q, k[:, real], heads, self.w[f'{name}.scale'],
                                       encoding[:, real], self.s['focusing_factor'])
        mixed = [rows[:, h] @ v_h for h, v_h in enumerate(v[:, real].chunk(heads, -1))]
        if tokens is not None:
            v = v * torch.tensor([t >= 0 for t in tokens]).to(v.dtype)[:, None]
        if v.shape[1] != q_hw[0] * q_hw[1]:
            v = F.interpolate(v.transpose(1, 2), size=q_hw[0] * q_hw[1],
                              mode='linear').transpose(1, 2)
        kernel = self.s['kernel_size']
        local = [self.conv(f'{name}.dwc', v_h, q_hw, padding=kernel // 2, depthwise=True)[0]
                 for v_h in v.chunk(heads, -1)]
        return torch.cat(mixed, -1) + torch.cat(local, -1)

    @staticmethod
    def softmax(q: Tensor, k: Tensor, v: Tensor, heads: int, bias: Tensor | float = 0.) -> Tensor:
        """``bias`` (heads, N, M) is added to the logits."""
        out = []
        for h, (q_h, k_h, v_h) in enumerate(zip(*(t.chunk(heads, -1) for t in (q, k, v)))):
            logits = q_h @ k_h.transpose(1, 2) / q_h.shape[-1]**0.5
            logits = logits + (bias[h] if isinstance(bias, Tensor) else bias)
            out.append(logits.softmax(-1) @ v_h)
        return torch.cat(out, -1)

    def in_windows(self, attend, parts: list[Tensor], hw: Size, window: Size, shifted: bool
                   ) -> Tensor:
        """``attend(parts of a window, (h, w), tokens, labels)`` put together on the map."""
        out = None
        parts = [torch.cat((p, torch.zeros_like(p[:, :1])), 1) for p in parts]  # -1: zeros
        for size, tokens, labels in windows(hw, window, shifted):
            found = attend([p[:, tokens] for p in parts], size, tokens, labels)
            if out is None:
                out = [None] * (hw[0] * hw[1])
            for place, token in enumerate(tokens):
                if token >= 0:
                    out[token] = found[:, place]
        return torch.stack(out, 1)

    def mlp(self, name: str, x: Tensor) -> Tensor:
        return self.fc(f'{name}.fc2', F.gelu(self.fc(f'{name}.fc1', x)))


class Pyramid(Net):
    """PVT and PVTv2."""

    def __init__(self, weights, settings, version: int) -> None:
        super().__init__(weights, settings)
        self.version = version
        self.linear = settings.get('linear', False)

    def forward(self, x: Tensor) -> list[Tensor]:
        outs, hw, trained = [], None, self.image
        for i in range(self.stages):
            heads = self.arch['num_heads'][i]
            if self.version == 1:
                kernel, stride, padding = (2, 2, 0) if i else (4, 4, 0)
            else:
                kernel, stride, padding = (3, 2, 1) if i else (7, 4, 3)
            name = f'patch_embed{i + 1}'
            x, hw = self.conv(f'{name}.proj', x, hw, stride, padding)
            x = self.norm(f'{name}.norm', x, 1e-5)
            trained = tuple(max((s + 2 * padding - kernel) // stride + 1, 1) for s in trained)
            if self.version == 1:
                x = x + resize(self.w[f'pos_embed{i + 1}'], trained, hw, 'bilinear')
            for j, kind in enumerate(self.kinds[i]):
                block = f'block{i + 1}.{j}'
                ratio = self.s['la_sr_ratios' if kind == 'L' else 'sr_ratios'][i]
                y = self.norm(f'{block}.norm1', x, 1e-6)
                x = x + self.attention(f'{block}.attn', y, hw, kind, ratio, heads, trained)
                y = self.norm(f'{block}.norm2', x, 1e-6)
                x = x + self.feed_forward(f'{block}.mlp', y, hw)
            if self.version == 2:
                x = self.norm(f'norm{i + 1}', x, 1e-6)
            outs.append(x.transpose(1, 2).reshape(x.shape[0], -1, *hw))
        return [outs[i] for i in self.s['out_indices']]

    def attention(self, name, x, hw, kind, ratio, heads, trained) -> Tensor:
        source, key_hw = x, hw
        if self.linear:
            pooled = F.adaptive_avg_pool2d(x.transpose(1, 2).reshape(x.shape[0], -1, *hw), 7)
            source, key_hw = self.conv(f'{name}.sr', pooled, None)
            source = F.gelu(self.norm(f'{name}.norm', source, 1e-5))
        elif ratio > 1:
            source, key_hw = self.conv(f'{name}.sr', x, hw, ratio)
            source = self.norm(f'{name}.norm', source, 1e-5)
        q = self.fc(f'{name}.q', x)
        k, v = self.fc(f'{name}.kv', source).chunk(2, -1)
        if kind == 'L':
            grid = (7, 7) if self.linear else tuple(max(s // ratio, 1) for s in trained)
            out = self.focused(name, q, k, v, hw, key_hw, grid, heads)
        else:
            out = self.softmax(q, k, v, heads)
        return self.fc(f'{name}.proj', out)

    def feed_forward(self, name, x, hw) -> Tensor:
        if self.version == 1:
            return self.mlp(name, x)
        x = self.fc(f'{name}.fc1', x)
        x = F.relu(x) if self.linear else x
        x, _ = self.conv(f'{name}.dwconv.dwconv', x, hw, padding=1, depthwise=True)
        return self.fc(f'{name}.fc2', F.gelu(x))


class Swin(Net):

    def forward(self, image: Tensor) -> list[Tensor]:
        H, W = image.shape[-2:]
        image = F.pad(image, (0, -W % 4, 0, -H % 4))
        x, hw = self.conv('patch_embed.proj', image, None, 4)
        x = self.norm('patch_embed.norm', x, 1e-5)
        trained = tuple(ceil_div(s, 4) for s in self.image)
        if self.s['use_abs_pos_embed']:
            x = x + resize(self.w['absolute_pos_embed'], trained, hw, 'bicubic')
        outs = []
        for i in range(self.stages):
            for j, kind in enumerate(self.kinds[i]):
                block = f'layers.{i}.blocks.{j}'
                y = self.norm(f'{block}.norm1', x, 1e-5)
                attend = self.focused_block if kind == 'L' else self.softmax_block
                heads = self.arch['num_heads'][i]
                y = attend(f'{block}.attn', y, hw, trained, heads, j % 2 == 1)
                x = x + self.fc(f'{block}.attn.proj', y)
                x = x + self.mlp(f'{block}.mlp', self.norm(f'{block}.norm2', x, 1e-5))
            if i in self.s['out_indices']:
                last = i == len(self.arch['depths']) - 1
                y = self.norm('norm' if last else f'norm{i}', x, 1e-5)
                outs.append(y.transpose(1, 2).reshape(y.shape[0], -1, *hw))
            if i < self.stages - 1:
                x, hw = self.merge(f'layers.{i}.downsample', x, hw)
            trained = tuple(ceil_div(s, 2) for s in trained)
        return outs

    def focused_block(self, name, x, hw, trained, heads, shifted) -> Tensor:
        size = self.s['window_size']
        grid = trained if size is None else (min(size, *trained),) * 2

        def attend(parts, window, tokens, labels):
            q, k, v = self.fc(f'{name}.qkv', parts[0]).chunk(3, -1)
            return self.focused(name, q, k, v, window, window, grid, heads, tokens)

        return self.in_windows(attend, [x], hw, hw if size is None else grid, shifted)

    def softmax_block(self, name, x, hw, trained, heads, shifted) -> Tensor:
        side = min(self.s['softmax_window_size'], *trained)
        table = self.w[f'{name}.relative_position_bias_table']

        def attend(parts, window, tokens, labels):
            q, k, v = self.fc(f'{name}.qkv', parts[0]).chunk(3, -1)
            places = [(r, c) for r in range(window[0]) for c in range(window[1])]
            rows = [[(a - c + side - 1) * (2 * side - 1) + b - d + side - 1 for c, d in places]
                    for a, b in places]
            bias = table[torch.tensor(rows)].permute(2, 0, 1)
            labels = torch.tensor(labels)
            apart = (labels[:, None] != labels[None, :]).to(x.dtype)
            return self.softmax(q, k, v, heads, bias - 100 * apart)

        return self.in_windows(attend, [x], hw, (side, side), shifted)

    def merge(self, name, x, hw) -> tuple[Tensor, Size]:
        x = F.pad(x.reshape(x.shape[0], *hw, -1), (0, 0, 0, hw[1] % 2, 0, hw[0] % 2))
        x = torch.cat((x[:, 0::2, 0::2], x[:, 1::2, 0::2], x[:, 0::2, 1::2], x[:, 1::2, 1::2]), -1)
        hw = tuple(x.shape[1:3])
        return self.fc(f'{name}.reduction', self.norm(f'{name}.norm', x.flatten(1, 2), 1e-5)), hw


class CSwin(Net):

    def forward(self, image: Tensor) -> list[Tensor]:
        x, hw = self.conv('stage1_conv_embed.0', image, None, 4, 2)
        x = self.norm('stage1_conv_embed.2', x, 1e-5)
        trained = tuple(max((s + 1) // 4, 1) for s in self.image)
        outs = []
        for i in range(self.stages):
            for j, kind in enumerate(self.kinds[i]):
                block = f'stage{i + 1}.{j}'
                y = self.norm(f'{block}.norm1', x, 1e-5)
                y = self.attention(block, y, hw, kind, i, trained)
                x = x + self.fc(f'{block}.proj', y)
                x = x + self.mlp(f'{block}.mlp', self.norm(f'{block}.norm2', x, 1e-5))
            if i in self.s['out_indices']:
                last = i == len(self.arch['depths']) - 1
                y = self.norm('norm' if last else f'norm{i}', x, 1e-5)
                outs.append(y.transpose(1, 2).reshape(y.shape[0], -1, *hw))
            if i < self.stages - 1:
                x, hw = self.conv(f'merge{i + 1}.conv', x, hw, 2, 1)
                x = self.norm(f'merge{i + 1}.norm', x, 1e-5)
            trained = tuple(ceil_div(s, 2) for s in trained)
        return outs

    def attention(self, block, x, hw, kind, stage, trained) -> Tensor:
        widths = self.s['focused_split_size' if kind == 'L' else 'split_size']
        width = max(trained) if widths is None else widths[stage]
        whole = width >= max(trained) or stage == len(self.arch['depths']) - 1
        shapes = ['whole'] if whole else ['columns', 'rows']
        heads = self.arch['num_heads'][stage] // len(shapes)
        q, k, v = (t.chunk(len(shapes), -1) for t in self.fc(f'{block}.qkv', x).chunk(3, -1))
        outs = []
        for b, shape in enumerate(shapes):
            name = f'{block}.attns.{b}'

            def stripe_of(map_hw, shape=shape):
                H, W = map_hw
                return dict(whole=(H, W), columns=(H, width), rows=(width, W))[shape]

            grid = tuple(min(m, s) for m, s in zip(trained, stripe_of(trained)))

            def attend(parts, window, tokens, labels, name=name, grid=grid):
                q, k, v = parts
                lepe, _ = self.conv(f'{name}.get_v', v, window, padding=1, depthwise=True)
                if kind == 'L':
                    return lepe + self.focused(name, q, k, v, window, window, grid, heads, tokens)
                real = [i for i, t in enumerate(tokens) if t >= 0]
                return lepe + self.softmax(q, k[:, real], v[:, real], heads)

            outs.append(self.in_windows(attend, [q[b], k[b], v[b]], hw, stripe_of(hw), False))
        return torch.cat(outs, -1)


class DeiT(Net):

    def forward(self, image: Tensor) -> list[Tensor]:
        patch = self.arch['patch_size']
        H, W = image.shape[-2:]
        x, hw = self.conv('patch_embed.proj', F.pad(image, (0, -W % patch, 0, -H % patch)), None,
                          patch)
        trained = tuple(ceil_div(s, patch) for s in self.image)
        x = x + resize(self.w['pos_embed'], trained, hw, 'bicubic')
        outs, heads, number = [], self.arch['num_heads'], 0
        for i in range(self.stages):
            for kind in self.kinds[i]:
                block = f'blocks.{number}'
                number += 1
                y = self.norm(f'{block}.norm1', x, 1e-6)
                q, k, v = self.fc(f'{block}.attn.qkv', y).chunk(3, -1)
                y = (self.focused(f'{block}.attn', q, k, v, hw, hw, trained, heads) if kind == 'L'
                     else self.softmax(q, k, v, heads))
                x = x + self.fc(f'{block}.attn.proj', y)
                x = x + self.mlp(f'{block}.mlp', self.norm(f'{block}.norm2', x, 1e-6))
            if i in self.s['out_indices']:
                y = self.norm('norm', x, 1e-6) if i == 3 else x
                y = y.transpose(1, 2).reshape(y.shape[0], -1, *hw)
                if self.s['pyramid'] and i < 2:
                    y = F.interpolate(y, scale_factor=(4, 2)[i], mode='bilinear')
                elif self.s['pyramid'] and i == 3:
                    y = F.max_pool2d(F.pad(y, (0, hw[1] % 2, 0, hw[0] % 2), value=float('-inf')), 2)
                outs.append(y)
        return outs


def forward(family: str, settings: dict, weights: dict[str, Tensor], image: Tensor
            ) -> list[Tensor]:
    """Outputs of a backbone; ``settings`` must hold every argument the oracle reads."""
    net = {'FLattenPVT': lambda: Pyramid(weights, settings, 1),
           'FLattenPVTv2': lambda: Pyramid(weights, settings, 2),
           'FLattenSwin': lambda: Swin(weights, settings),
           'FLattenCSwin': lambda: CSwin(weights, settings),
           'FLattenDeiT': lambda: DeiT(weights, settings)}[family]()
    return net.forward(image)
