"""Random small backbones on random images against a plain restatement of every family.

    python tests/fuzz/fuzz_backbones.py --cases 2000 --seed 0     # a long run, by hand
    python tests/fuzz/fuzz_backbones.py --only 1234               # one case again

Each case draws a family, an architecture, attention letters, sizes of the training and the test
image (odd, one pixel, extreme aspects), windows, stripes, reductions, kernels, powers, outputs,
batch and weights from its own seed, and checks that

* outputs equal the oracle's (tests/oracle_backbones.py) in float64, gradients its autograd's;
* an image alone gives what it gives in a batch, training mode without dropout what eval mode
  gives, recomputed blocks what kept ones give;
* float32 is near float64;
* outputs and gradients are finite under fp16 and bf16 autocast and with such weights, and as near
  float64 as the case allows: within TIMES what rounding the weights and the image alone changes.
"""
from __future__ import annotations

import argparse
import inspect
import random
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import oracle_backbones
from half import HAS_FP16

from flatten_mm import backbones

FAMILIES = ('FLattenPVT', 'FLattenPVTv2', 'FLattenSwin', 'FLattenCSwin', 'FLattenDeiT')
HALF = (torch.bfloat16, torch.float16 if HAS_FP16 else torch.bfloat16)
# How far lower precision may be, in what rounding weights and image alone does in float64: random
# weights and few channels make models in which rounding decides the direction of many tokens.
TIMES = 10


@dataclass
class Case:
    """One model and its input.

    Attributes:
        seed: what everything is drawn from.
        family: class name.
        kwargs: arguments of the class that are drawn.
        batch, size: of the image.
        with_gradients: compare gradients too.
        with_precisions: check lower precisions too (they take most of the time).
    """

    seed: int
    family: str
    kwargs: dict
    batch: int
    size: tuple[int, int]
    with_gradients: bool
    with_precisions: bool

    def __str__(self) -> str:
        return f'{self.family} {self.batch}x{self.size} {self.kwargs}'


def draw_case(seed: int) -> Case:
    """The case of a seed."""
    r = random.Random(seed)
    family = r.choice(FAMILIES)
    depths = [r.choice((1, 1, 1, 2, 2, 3)) for _ in range(4)]
    letters = ''.join(r.choice('LLLSSM') for _ in range(4))
    kwargs = dict(
        attn_type=letters + (str(r.randint(0, 2)) if 'M' in letters else ''),
        in_channels=r.choice((1, 3, 3, 4)), pretrain_img_size=_train_size(r),
        focusing_factor=r.choice((0.5, 1, 2, 3, 3, 3, 4.5, 8)), kernel_size=r.choice((1, 3, 5, 7)),
        out_indices=sorted(r.sample(range(4), r.randint(1, 4))), qkv_bias=r.random() < 0.7,
        drop_path_rate=0.)
    kwargs.update(dict(
        FLattenPVT=_pyramid, FLattenPVTv2=_pyramid, FLattenSwin=_swin, FLattenCSwin=_cswin,
        FLattenDeiT=_deit)[family](r, depths))
    if family == 'FLattenPVTv2':
        kwargs['linear'] = r.random() < 0.4
    return Case(seed, family, kwargs, r.randint(1, 3), _test_size(r, kwargs['pretrain_img_size']),
                r.random() < 0.4, r.random() < 0.3)


def _train_size(r: random.Random) -> int | tuple[int, int]:
    side = r.choice((32, 64, r.randint(1, 70)))
    return side if r.random() < 0.7 else (side, r.randint(1, 70))


def _test_size(r: random.Random, trained: int | tuple[int, int]) -> tuple[int, int]:
    return r.choice([
        (trained, trained) if isinstance(trained, int) else trained,
        (r.randint(1, 64), r.randint(1, 64)), (r.randint(1, 64), r.randint(1, 64)),
        (1, 1), (r.randint(1, 5), r.randint(1, 5)),
        (r.randint(1, 4), r.randint(100, 300)), (r.randint(100, 300), r.randint(1, 4))])


def _pyramid(r: random.Random, depths: list[int]) -> dict:
    heads = [r.choice((1, 2, 3, 4)) for _ in range(4)]
    # Norms over two or three channels leave little but signs, and rounding turns those.
    return dict(arch=dict(embed_dims=[max(h * r.randint(2, 5), 4) for h in heads], num_heads=heads,
                          mlp_ratios=[r.choice((1, 2, 4)) for _ in range(4)], depths=depths),
                sr_ratios=[r.choice((1, 2, 3, 4, 8)) for _ in range(4)],
                la_sr_ratios=[r.choice((1, 1, 2, 3, 8)) for _ in range(4)])


def _swin(r: random.Random, depths: list[int]) -> dict:
    heads = r.choice((1, 2, 3))
    return dict(arch=dict(embed_dims=max(heads * r.choice((2, 3, 4)), 4), depths=depths,
                          num_heads=[heads * r.choice((1, 2**i)) for i in range(4)],
                          mlp_ratio=r.choice((1., 2.))),
                window_size=r.choice((None, None, r.randint(1, 8))),
                softmax_window_size=r.randint(1, 7), use_abs_pos_embed=r.random() < 0.3)


def _cswin(r: random.Random, depths: list[int]) -> dict:
    heads = r.choice((2, 4))
    return dict(arch=dict(embed_dims=heads * r.choice((2, 3)), depths=depths,
                          num_heads=[heads * r.choice((1, 2**i)) for i in range(4)],
                          mlp_ratio=r.choice((1., 2.))),
                split_size=[r.randint(1, 7) for _ in range(4)],
                focused_split_size=r.choice((None, [r.randint(1, 6) for _ in range(4)])))


def _deit(r: random.Random, depths: list[int]) -> dict:
    heads = r.choice((1, 2, 3))
    return dict(arch=dict(embed_dims=max(heads * r.randint(2, 6), 4), depths=depths,
                          num_heads=heads, mlp_ratio=r.choice((1., 2.)),
                          patch_size=r.choice((4, 7, 16))),
                pyramid=r.random() < 0.3)


def build(case: Case, **changes) -> nn.Module:
    """The model of a case, every weight, bias and table random, in float64."""
    cls = getattr(backbones, case.family)
    model = cls(**(case.kwargs | changes)).double().eval()
    model.init_weights()
    generator = torch.Generator().manual_seed(case.seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            if parameter.ndim > 1 and not name.endswith(('scale', 'positional_encoding')):
                fan_in = parameter[0].numel() if name.endswith('weight') else 25
                parameter.copy_(noise / fan_in**0.5)
            else:
                parameter.copy_(noise * 0.5 + (1. if 'norm' in name and 'weight' in name else 0.))
    return model


def settings_of(case: Case) -> dict:
    """Every argument of the class, defaults included."""
    parameters = inspect.signature(getattr(backbones, case.family)).parameters
    return {name: p.default for name, p in parameters.items()} | case.kwargs


def gap(ours: Tensor, theirs: Tensor) -> float:
    """Largest difference over largest magnitude."""
    return ((ours - theirs).abs().max() / theirs.abs().max().clamp(min=1e-30)).item()


def distance(ours: Tensor, theirs: Tensor) -> float:
    """Norm of the difference over the norm."""
    return ((ours.double() - theirs).norm() / theirs.norm().clamp(min=1e-30)).item()


def require(holds: bool, message: str) -> None:
    if not holds:
        raise AssertionError(message)


def check(case: Case) -> dict[str, float]:
    """Run every check; returns how far half precision was.

    Raises:
        AssertionError: one failed; it says which and by how much.
    """
    model = build(case)
    generator = torch.Generator().manual_seed(case.seed + 1)
    image = torch.randn(case.batch, case.kwargs['in_channels'], *case.size, generator=generator,
                        dtype=torch.float64)
    image.requires_grad_(case.with_gradients)
    weights = dict(model.named_parameters())
    expected = oracle_backbones.forward(case.family, settings_of(case), weights, image)
    ours = model(image)
    require([o.shape for o in ours] == [e.shape for e in expected],
            f'shapes {[tuple(o.shape) for o in ours]}, oracle {[tuple(e.shape) for e in expected]}')
    require(all(o.isfinite().all() for o in ours), 'float64 output is not finite')
    for i, (o, e) in enumerate(zip(ours, expected)):
        require(gap(o, e) < 1e-8, f'output {i} differs from the oracle by {gap(o, e):.1e}')
    probes = [torch.randn(o.shape, generator=generator, dtype=torch.float64) / o.numel()
              for o in ours]
    if case.with_gradients:
        check_gradients(case, model, image, ours, expected, probes)
    with torch.no_grad():
        check_consistency(model, image, ours)
    if not case.with_precisions:
        return {}
    return check_precisions(case, model, image.detach(), [o.detach() for o in ours], probes)


def check_gradients(case: Case, model: nn.Module, image: Tensor, ours, expected, probes) -> None:
    """Of the image and every parameter, and the same with recomputed blocks."""
    named = {'image': image} | {k: p for k, p in model.named_parameters() if p.requires_grad}
    loss, oracle_loss = (sum((o * p).sum() for o, p in zip(outs, probes))
                         for outs in (ours, expected))
    ours_grads = torch.autograd.grad(loss, named.values(), allow_unused=True)
    grads = torch.autograd.grad(oracle_loss, named.values(), allow_unused=True)
    largest = max(g.abs().max() for g in grads if g is not None)
    for name, a, b in zip(named, ours_grads, grads):
        require(a is not None, f'{name} has no gradient')
        b = torch.zeros_like(a) if b is None else b
        # Gradients that cancel to zero are zero up to rounding of the largest ones.
        require(((a - b).abs().max() < 1e-6 * b.abs().max() + 1e-9 * largest).item(),
                f'gradient of {name} differs from autograd of the oracle: {gap(a, b):.1e}')
    saving = build(case, with_cp=True).train()
    again = sum((o * p).sum() for o, p in zip(saving(image), probes))
    parameters = [p for p in saving.parameters() if p.requires_grad]
    own = dict(zip(named, ours_grads))
    del own['image']
    for (name, a), b in zip(own.items(), torch.autograd.grad(again, parameters)):
        require(((a - b).abs().max() <= 1e-9 * largest).item(),
                f'gradient of {name} changes with with_cp')


def check_consistency(model: nn.Module, image: Tensor, outs: tuple[Tensor, ...]) -> None:
    """Without gradients, alone, in training mode."""
    for what, got, wanted in (
            ('without gradients', model(image), outs),
            ('the last image alone', model(image[-1:]), [o[-1:] for o in outs]),
            ('training mode', model.train()(image), outs)):
        for i, (g, w) in enumerate(zip(got, wanted)):
            require(gap(g, w) < 1e-9, f'output {i} changes by {gap(g, w):.1e}: {what}')
    model.eval()


def check_precisions(case: Case, model: nn.Module, image: Tensor, outs: list[Tensor],
                     probes: list[Tensor]) -> dict[str, float]:
    """float32 near float64; half precision finite and near."""
    found = {}
    state = {key: value.clone() for key, value in model.state_dict().items()}
    half = HALF[case.seed % 2]
    for what, own, autocast in (('float32', torch.float32, None), ('autocast', torch.float32, half),
                                ('weights', half, None)):
        what = what if what == 'float32' else f'{str(half)[6:]} {what}'
        model = model.double()
        model.load_state_dict(state)
        model.zero_grad()
        model, x = model.to(own), image.to(own).requires_grad_()
        with torch.autocast('cpu', half, enabled=autocast is not None):
            low = model(x)
        require(all(o.isfinite().all() for o in low), f'{what}: output is not finite')
        sum((o.double() * p).sum() for o, p in zip(low, probes)).backward()
        for name, tensor in (('image', x), *model.named_parameters()):
            require(tensor.grad is None or bool(tensor.grad.isfinite().all()),
                    f'{what}: gradient of {name} is not finite')
        found[what] = max(distance(o, e) for o, e in zip(low, outs))
        dtype = half if autocast else own
        for draws in (2, 20):  # few are enough for most
            allowed = TIMES * (torch.finfo(dtype).eps + sensitivity(
                case, model, image, outs, state, dtype, draws))
            if found[what] < allowed:
                break
        require(found[what] < allowed,
                f'{what} differs from float64 by {found[what]:.1e}, of {allowed:.1e} allowed')
    return found


def sensitivity(case: Case, model: nn.Module, image: Tensor, outs: list[Tensor],
                state: dict[str, Tensor], dtype: torch.dtype, draws: int) -> float:
    """How far outputs in float64 move when weights and image are off by rounding to ``dtype``."""
    generator = torch.Generator().manual_seed(case.seed + 2)

    def rounded(x: Tensor) -> Tensor:
        sign = torch.randint(0, 2, x.shape, generator=generator) * 2 - 1
        return x * (1 + sign * torch.finfo(dtype).eps)

    model.double().load_state_dict(state)
    moved = []
    with torch.no_grad():
        for _ in range(draws):
            for key, parameter in model.named_parameters():
                parameter.copy_(rounded(state[key]))
            moved += [distance(o, e) for o, e in zip(model(rounded(image)), outs)]
    return max(moved)


def run(seeds: range, verbose: bool = False) -> tuple[Counter, list[tuple[Case, str]], dict]:
    """Check the cases of ``seeds``: families tried, failures, and distances of half precision."""
    tried, failures, distances = Counter(), [], {}
    for seed in seeds:
        case = draw_case(seed)
        tried[case.family + ('-linear' if case.kwargs.get('linear') else '')] += 1
        try:
            for what, value in check(case).items():
                distances.setdefault(what, []).append(value)
        except Exception as error:  # anything at all is a finding
            message = f'{type(error).__name__}: {error}'
            failures.append((case, message))
            if verbose:
                print(f'FAILED {message}\n  {case}\n  python {sys.argv[0]} --only {seed}',
                      flush=True)
    return tried, failures, distances


def main() -> int:
    """Run the fuzz; returns 1 where a case failed."""
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--cases', type=int, default=200)
    parser.add_argument('--seed', type=int, default=0, help='of the first case')
    parser.add_argument('--only', type=int, metavar='SEED', help='one case, with its traceback')
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.only is not None:
        case = draw_case(args.only)
        print(case)
        print(check(case))
        return 0
    started = time.process_time()
    tried, failures, distances = run(range(args.seed, args.seed + args.cases), verbose=True)
    print(f'{sum(tried.values())} cases ({", ".join(f"{n} {f}" for f, n in sorted(tried.items()))})'
          f', {len(failures)} failed, {time.process_time() - started:.0f} s of CPU')
    for what, values in sorted(distances.items()):
        values = sorted(values)
        print(f'{what}: distance from float64 median {values[len(values) // 2]:.4f}, '
              f'99 % {values[int(0.99 * len(values))]:.4f}, largest {values[-1]:.4f}')
    return 1 if failures else 0


if __name__ == '__main__':
    sys.exit(main())
