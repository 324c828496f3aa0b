"""The benchmark measures what it says, tells it in table, JSON and pictures, refuses the rest."""
from __future__ import annotations

import importlib.util
import json
import re
import statistics
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from conftest import REPO
from tiny import write_config
from torch import nn

from flatten_mm.analysis import benchmark as bench
from flatten_mm.analysis import benchmark_models
from flatten_mm.analysis.benchmark_figures import _cycle
from flatten_mm.analysis.benchmark_models import build, paper_accuracies, parse_spec
from flatten_mm.engine import UserError

OURS, TWIN, RELEASED = 'FLattenPVT:tiny', 'FLattenPVT:tiny:SSSS', 'released:FLattenPVT:tiny'


@pytest.fixture
def tool(tmp_path, monkeypatch, capsys):
    """Run the tool in an empty folder: (exit status, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)
    spec = importlib.util.spec_from_file_location('benchmark_tool', REPO / 'tools/benchmark.py')
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    threads = torch.get_num_threads()

    def run(*argv):
        capsys.readouterr()
        code = module.main([str(item) for item in argv])
        return (code, *capsys.readouterr())
    yield run
    torch.set_num_threads(threads)


@pytest.fixture
def clock(monkeypatch):
    """Clocks of the benchmark that only models move on."""
    now = SimpleNamespace(wall=0., cpu=0.)
    monkeypatch.setattr(bench, 'time', SimpleNamespace(perf_counter=lambda: now.wall,
                                                       process_time=lambda: now.cpu))
    return now


class Timed(nn.Module):
    """Takes ``wall`` seconds, ``cpu`` of them computing; fails above so many pixels."""

    def __init__(self, clock, wall: float, cpu: float = 0, limit: int = 10**9) -> None:
        super().__init__()
        self.clock, self.wall, self.cpu, self.limit = clock, wall, cpu, limit
        self.weight = nn.Parameter(torch.ones(1))
        self.runs: list[tuple[bool, bool]] = []

    def forward(self, x):
        if x[0, 0].numel() > self.limit:
            raise RuntimeError("can't allocate memory")
        self.runs.append((self.training, torch.is_grad_enabled()))
        self.clock.wall += self.wall
        self.clock.cpu += self.cpu
        return [x * self.weight, (x * 2,)]


def test_table_json_and_pictures_agree(tool, tmp_path, seeded):
    config = write_config('mmseg', tmp_path, tmp_path, name='mine')
    code, out, err = tool(OURS, RELEASED, config, '--baseline', RELEASED, '--modes', 'infer',
                          'train', '--sizes', 32, '32x64', '--repeats', 3, '--clock', 'cpu',
                          '--json', 'r/out.json', '--figure', 'r/pixels.png',
                          '--accuracy-figure', 'r/accuracy.png', '--accuracy', f'{config}=50')
    assert code == 0, err
    record = json.loads((tmp_path / 'r/out.json').read_text())
    rows = record['measurements']
    assert len(rows) == 3 * 2 * 2
    assert record['baseline'] == RELEASED
    where = record['environment']
    assert (where['threads'], where['clock'], where['torch']) == (1, 'cpu', torch.__version__)
    for row in rows:
        base, = (r for r in rows if r['case'] == row['case'] and r['model'] == RELEASED)
        assert len(row['times']) == 3 and min(row['times']) > 0
        assert row['median'] == statistics.median(row['times'])
        assert row['images_per_second'] == pytest.approx(1 / row['median'])
        assert row['ratio'] == pytest.approx(row['median'] / base['median'])
        if row['case']['mode'] == 'train':
            assert row['saved_ratio'] == pytest.approx(row['saved_bytes'] / base['saved_bytes'])
        else:
            assert row['saved_bytes'] is None
        line = f"| {row['median'] * 1e3:.1f} "
        assert any(row['model'] in text and line in text for text in out.splitlines())
    saved = {r['model']: r['saved_bytes'] for r in rows
             if r['case'] == dict(mode='train', dtype='fp32', height=32, width=64, batch=1,
                                  device='cpu')}
    assert saved[OURS] < saved[RELEASED]
    assert '[4/4] train fp32 32x64 batch 1 on cpu: round 3 of 3' in err
    pictures = [tmp_path / 'r' / name for name in ('pixels.png', 'accuracy.png')]
    assert all(picture.read_bytes()[:4] == b'\x89PNG' for picture in pictures)

    code, again, err = tool('--from', 'r/out.json', '--figure', 'r/pixels.png')
    assert code == 1 and 'r/pixels.png exists; choose another path or give --overwrite' in err
    code, again, err = tool('--from', 'r/out.json', '--figure', 'r/pixels.png', '--overwrite')
    assert code == 0 and again.strip() == out[out.index('| case'):].strip()


def test_ratios_follow_the_times_and_modes_are_real(clock):
    fast, slow = Timed(clock, 1), Timed(clock, 4)
    models = dict(fast=fast, slow=slow)
    for mode, seen in (('infer', (False, False)), ('train', (True, True))):
        found = bench.measure(models, bench.Case(mode, 'fp32', 8, 8, batch=2),
                              bench.Settings(repeats=3))
        bench.add_ratios(found, 'fast')
        assert [m.median for m in found] == [1, 4] and [m.ratio for m in found] == [1, 4]
        assert found[1].images_per_second == 0.5 and found[1].spread == 0
        assert set(slow.runs) == {seen}
        slow.runs.clear()
    assert fast.weight.grad is not None  # the backward pass was run


def test_clocks(clock):
    models = dict(model=Timed(clock, wall=5, cpu=2))
    for name, seconds in (('wall', 5), ('cpu', 2)):
        found, = bench.measure(models, bench.Case('infer', 'fp32', 8, 8),
                               bench.Settings(repeats=2, clock=name))
        assert found.times == [seconds, seconds]


def test_median_and_spread():
    found = bench.Measurement('m', bench.Case('infer', 'fp32', 8, 8), times=[1., 2., 3., 4., 50.])
    bench.summarize(found)
    assert found.median == 3 and found.spread == pytest.approx(2 / 3)


def test_model_that_fails_is_left_out(clock):
    models = dict(good=Timed(clock, 1), bad=Timed(clock, 1, limit=100))
    large = bench.measure(models, bench.Case('infer', 'fp32', 16, 16), bench.Settings(repeats=1))
    bench.add_ratios(large, 'bad')
    assert large[1].error == "can't allocate memory" and large[1].median is None
    assert large[0].median == 1 and large[0].ratio is None
    assert "can't allocate memory" in bench.table(large)


def test_saved_bytes_counts_each_storage_once():
    x = torch.randn(1000, requires_grad=True)
    y = torch.randn(1000)
    assert bench.saved_bytes(lambda: x * y) == 4000
    assert bench.saved_bytes(lambda: x * y[:500].repeat(2) + x * y + x * y) == 8000
    assert bench.saved_bytes(lambda: x[:500] * y[:500] + x[500:] * y[500:]) == 4000  # views of y


@pytest.mark.skipif(not Path('/proc/self/clear_refs').exists(),
                    reason='peaks are read from /proc')
def test_peak_grows_with_the_image():
    spec = parse_spec(TWIN)
    small, large = (bench.peak_in_child(spec, bench.Case('infer', 'fp32', side, side), 1)
                    for side in (64, 384))
    # The maps of the first stage are 96x96 tokens of 64 channels in fp32: 2.25 MiB each.
    assert large > small and large > 2 * 2.25 * 2**20


def test_specs():
    assert parse_spec(TWIN).cfg == dict(type='FLattenPVT', arch='tiny', attn_type='SSSS')
    swin = parse_spec('compiled:FLattenSwin:small:window_size=7')
    assert swin.compiled and swin.cfg == dict(type='FLattenSwin', arch='small', window_size=7)
    mmdet = parse_spec('mmdet.PyramidVisionTransformer:tiny')
    assert mmdet.scope == 'mmdet' and mmdet.cfg['num_layers'] == [2, 2, 2, 2]
    assert type(build(mmdet)).__module__.startswith('mmdet.')


def test_released_is_the_same_model():
    ours, released = build(parse_spec(OURS)).eval(), build(parse_spec(RELEASED)).eval()
    image = torch.randn(1, 3, 64, 64)
    with torch.no_grad():
        for a, b in zip(ours(image), released(image)):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    assert 'attend' in vars(released.block1[0].attn)


def test_accuracies_are_the_papers():
    specs = [parse_spec(text) for text in (
        OURS, TWIN, 'FLattenPVT:t', 'FLattenSwin:tiny', 'FLattenSwin:base', 'FLattenSwin:base:SSSS',
        'FLattenPVTv2:b1', 'FLattenPVT:tiny:LLSS', 'mmdet.SwinTransformer',
        'FLattenDeiT:tiny:attention=hydra', 'FLattenPVT:tiny:attention=softmax',
        'FLattenPVT:tiny:attention=hydra', 'FLattenPVT:tiny:focusing_factor=1')]
    assert paper_accuracies(specs) == {
        OURS: 77.8, TWIN: 75.1, 'FLattenPVT:t': 77.8, 'FLattenSwin:tiny': 82.1,
        'FLattenSwin:base': 83.8, 'FLattenSwin:base:SSSS': 83.5, 'FLattenPVTv2:b1': 79.5,
        'FLattenDeiT:tiny:attention=hydra': 68.3, 'FLattenPVT:tiny:attention=softmax': 75.1}


@pytest.mark.parametrize(('argv', 'sentence'), [
    ([], 'give models to measure, or --from FILE'),
    (['No.Such'], "model 'No.Such': expected a config file, or NAME"),
    (['Missing'], 'cannot build Missing: .*Missing is not in the'),
    (['missing.py'], 'config missing.py does not exist'),
    (['mmdet.SwinTransformer:giant'], "'giant' is no known size .* one of tiny, small, base"),
    ([OURS, '--dtypes', 'fp16', '--devices', 'cpu'], 'fp16 is for CUDA; on cpu choose'),
    ([OURS, '--clock', 'cpu', '--threads', '2'], 'adds their times up'),
    (['released:FLattenSwin:tiny'], 'restated for FLattenPVT only'),
    (['--from', 'none.json'], '--from none.json is no record of this tool'),
])
def test_errors_are_one_sentence(tool, argv, sentence):
    code, out, err = tool(*argv)
    line, = (line for line in err.splitlines() if line.startswith('error: '))
    assert code == 1 and re.search(sentence, line) and 'Traceback' not in err


def test_released_outside_the_repository(monkeypatch, tmp_path):
    monkeypatch.setattr(benchmark_models, 'REPOSITORY', tmp_path)
    with pytest.raises(UserError, match='released: needs .*released.py.*from a checkout'):
        build(parse_spec(RELEASED))


def test_lines_of_a_picture_all_differ() -> None:
    styles = [tuple(map(str, style.values())) for style in _cycle(20)]
    assert len(set(styles)) == 20
