"""Reading the records of what the released models compute, and running ours on them."""
from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

from flatten_mm import backbones

FORWARD_TOLERANCE = {torch.float64: 3e-6, torch.float32: 1e-5}
GRADIENT_TOLERANCE = 2e-4  # float64 against fp32 records


def relative_difference(ours: Tensor, theirs: Tensor) -> float:
    """Largest difference over largest magnitude."""
    return ((ours.double() - theirs.double()).abs().max() / theirs.double().abs().max()).item()


def build_pvt(kwargs: dict) -> nn.Module:
    keys = ('embed_dims', 'num_heads', 'mlp_ratios', 'depths')
    return backbones.FLattenPVT(
        arch={key: kwargs[key] for key in keys}, attn_type=kwargs['attn_type'],
        sr_ratios=kwargs['sr_ratios'], la_sr_ratios=[int(r) for r in kwargs['la_sr_ratios']],
        qkv_bias=kwargs['qkv_bias'])


def build_pvt_v2(kwargs: dict) -> nn.Module:
    keys = ('embed_dims', 'num_heads', 'mlp_ratios', 'depths')
    return backbones.FLattenPVTv2(
        arch={key: kwargs[key] for key in keys}, attn_type=kwargs['attn_type'],
        sr_ratios=kwargs['sr_ratios'], la_sr_ratios=[int(r) for r in kwargs['la_sr_ratios']],
        qkv_bias=kwargs['qkv_bias'], linear=kwargs.get('linear', False), out_indices=(3,))


def build_swin(kwargs: dict) -> nn.Module:
    arch = dict(embed_dims=kwargs['embed_dim'], depths=kwargs['depths'],
                num_heads=kwargs['num_heads'], mlp_ratio=4.)
    return backbones.FLattenSwin(
        arch=arch, attn_type=kwargs['attn_type'], window_size=kwargs['window_size'],
        use_abs_pos_embed=kwargs.get('ape', False), out_indices=(3,),
        kernel_size=kwargs.get('kernel_size', 5),
        focusing_factor=kwargs.get('focusing_factor', 3))


def build_cswin(kwargs: dict) -> nn.Module:
    arch = dict(embed_dims=kwargs['embed_dim'], depths=kwargs['depth'],
                num_heads=kwargs['num_heads'], mlp_ratio=4.)
    return backbones.FLattenCSwin(arch=arch, attn_type=kwargs['attn_type'], out_indices=(3,),
                                  split_size=kwargs['split_size'])


BUILD = dict(pvt=build_pvt, pvt_v2=build_pvt_v2, swin=build_swin, cswin=build_cswin)


def stage_blocks(model: nn.Module, family: str) -> list[nn.ModuleList]:
    """The blocks of each stage."""
    if family == 'swin':
        return [layer.blocks for layer in model.layers]
    prefix = 'block' if family.startswith('pvt') else 'stage'
    return [getattr(model, f'{prefix}{i}') for i in range(1, 5)]


class Replay:
    """One record, run through our backbone in ``dtype``."""

    def __init__(self, path: Path, dtype: torch.dtype) -> None:
        self.record = record = torch.load(path, weights_only=True)
        weights = {k: v.to(dtype) for k, v in record['state_dict'].items()}
        head = nn.Linear(weights['head.weight'].shape[1], weights['head.weight'].shape[0]).to(dtype)
        head.load_state_dict({k: weights.pop(f'head.{k}') for k in ('weight', 'bias')})
        self.model = model = BUILD[record['family']](record['kwargs']).to(dtype).eval()
        model.load_state_dict(weights, strict=True)

        self.stages: list[Tensor] = []
        for blocks in stage_blocks(model, record['family']):
            blocks[-1].register_forward_hook(lambda *args: self.stages.append(args[-1]))
        self.input = record['input'].to(dtype).requires_grad_()
        self.logits = head(model(self.input)[-1].mean(dim=(2, 3)))

    def forward_differences(self) -> dict[str, float]:
        record = self.record
        means = [x.mean(dim=1) for x in self.stages]
        stds = [x.std(dim=1) for x in self.stages]
        pairs = {'logits': (self.logits, record['logits'])}
        for i in (3, 4):
            stage = self.stages[i - 1].transpose(1, 2).reshape(record[f'stage{i}'].shape)
            pairs[f'stage{i}'] = (stage, record[f'stage{i}'])
        for i in range(4):
            pairs[f'stage_mean{i}'] = (means[i], record['stage_mean'][i])
            pairs[f'stage_std{i}'] = (stds[i], record['stage_std'][i])
        return {name: relative_difference(*pair) for name, pair in pairs.items()}

    def gradient_differences(self) -> dict[str, float]:
        record = self.record
        (self.logits * record['logits_weight'].to(self.logits.dtype)).sum().backward()
        gradient = self.input.grad
        pairs = {
            'input_grad_norm': (gradient.norm().reshape(1), record['input_grad_norm']),
            'input_grad_patch': (gradient[0, :, 96:128, 96:128], record['input_grad_patch']),
        }
        parameters = dict(self.model.named_parameters())
        pairs.update({name: (parameters[name].grad, grad)
                      for name, grad in record['grads'].items()})
        return {name: relative_difference(*pair) for name, pair in pairs.items()}
