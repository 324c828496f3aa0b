"""tools/analyze_attention.py: the files it writes for each scope, and its refusals."""
from __future__ import annotations

import csv
import json

import cv2
import numpy as np
import pytest
import torch
from mmengine.registry import MODELS, init_default_scope
from PIL import Image
from tiny import SCOPES, write_config, write_data

from flatten_mm.analysis.models import load_image, load_model
from flatten_mm.analysis.report import attention_maps, choose
from flatten_mm.engine import load_config


@pytest.fixture(scope='module')
def setting(tmp_path_factory):
    """Configs of the three scopes and an image that is no multiple of anything."""
    root = tmp_path_factory.mktemp('analysis')
    write_data(root / 'data')
    configs = {scope: write_config(scope, root, root / 'data') for scope in SCOPES}
    image = np.random.default_rng(0).integers(0, 255, (53, 75, 3), dtype=np.uint8)
    cv2.imwrite(str(root / 'photo.png'), image)
    return root, configs


@pytest.fixture
def analyze(run):
    return lambda *argv: run('analyze_attention', *argv)


@pytest.mark.parametrize('scope', SCOPES)
def test_writes_what_it_says(analyze, setting, tmp_path, scope):
    root, configs = setting
    out = tmp_path / 'out'
    result = analyze(configs[scope], root / 'photo.png', '--out-dir', out, '--grid', '1')
    assert result.code == 0, result.err
    names = {file.name for file in out.iterdir()}
    assert names == {
        'focused_map.png', 'photo_focus.csv', 'photo_focus.json', 'photo_focus.png',
        'photo_stage0_block0_maps.png', 'photo_stage0_block0_rank.json',
        'photo_stage0_block0_rank.png'}
    for name in names:
        assert f'{out / name}' in result.out
        if name.endswith('.png'):
            with Image.open(out / name) as picture:
                assert min(picture.size) > 200
    rows = list(csv.DictReader((out / 'photo_focus.csv').open()))
    assert [(row['stage'], row['attention']) for row in rows[:3]] == [
        ('0', 'focused'), ('0', 'linear'), ('0', 'softmax')]
    assert all(0 < float(row['relative_entropy']) <= 1.0001 for row in rows)
    assert len(json.loads((out / 'photo_focus.json').read_text())) == len(rows)
    ranks = json.loads((out / 'photo_stage0_block0_rank.json').read_text())
    assert [record['attention'] for record in ranks] == [
        'focused + DWC', 'focused', 'linear', 'softmax']
    # the image at its own size, 53x75, which mmdet's preprocessor pads to 64x96, in cells of 4;
    # PVT leaves a rest out, Swin pads it
    cells = {'mmseg': 13 * 18, 'mmdet': 16 * 24, 'mmpretrain': 14 * 19}[scope]
    assert all(record['queries'] == record['keys'] == cells for record in ranks)
    assert ranks[1]['numerical_rank'] <= 8 < ranks[0]['numerical_rank']


def test_checkpoint_is_used(analyze, setting, tmp_path):
    root, configs = setting
    init_default_scope('mmseg')
    model = MODELS.build(load_config(configs['mmseg']).model)
    torch.nn.init.zeros_(model.backbone.block1[0].attn.kv.weight)  # every key alike
    torch.save(dict(state_dict=model.state_dict(), meta={}), tmp_path / 'model.pth')
    arguments = (tmp_path / 'model.pth', root / 'photo.png', '--draw', 'focus', '--out-dir')
    assert analyze(configs['mmseg'], *arguments, tmp_path / 'a').code == 0
    focus = json.loads((tmp_path / 'a' / 'photo_focus.json').read_text())
    assert [row['relative_entropy'] for row in focus if row['stage'] == 0] == pytest.approx([1] * 3)
    assert focus[3]['relative_entropy'] < 0.99
    refused = analyze(configs['mmdet'], *arguments, tmp_path / 'b')
    assert refused.code == 1
    assert 'does not fit the model of the config' in refused.error
    assert not (tmp_path / 'b').exists()


def test_queries_heads_and_blocks_can_be_chosen(analyze, setting, tmp_path):
    root, configs = setting
    out = tmp_path / 'out'
    assert analyze(configs['mmseg'], root / 'photo.png', '--draw', 'maps', 'rank', '--stage', '2',
                   '--block', '0', '--head', '1', '--channel', '3', '--query', '3,5', '74,52',
                   '--out-dir', out).code == 0
    assert {file.name for file in out.iterdir()} == {
        'photo_stage2_block0_maps.png', 'photo_stage2_block0_rank.json',
        'photo_stage2_block0_rank.png'}
    ranks = json.loads((out / 'photo_stage2_block0_rank.json').read_text())
    assert {(record['head'], record['channel']) for record in ranks} == {(1, 3)}
    assert len(ranks) == 4


def test_maps_lie_where_the_queries_are(setting):
    """The DWC of a query is around its own cell, whatever the shape of the image."""
    root, configs = setting
    cfg = load_config(configs['mmseg'])
    model = load_model(cfg)
    with torch.no_grad():
        model.backbone.block1[0].attn.dwc.weight.fill_(100.)
    image = load_image(cfg, model, root / 'photo.png')
    assert image.rgb.shape == (53, 75, 3)
    found, = attention_maps(model, image, [(2., 50.), (74., 20.)], choose(model, image)).values()
    assert found.cell == (4, 4)
    maps = found.weights['focused + DWC']
    for weights, (row, column) in zip(maps, [(12, 0), (5, 17)]):
        rows, columns = (weights > 50).nonzero().unbind(1)
        assert (rows.min(), rows.max()) == (row - 2, min(row + 2, 12))
        assert (columns.min(), columns.max()) == (max(column - 2, 0), min(column + 2, 17))


@pytest.mark.parametrize('options, message', [
    (['--stage', '7'], 'FLattenPVT has no stage 7; its stages, counted from 0, are 0 (1 blocks)'),
    (['--head', '2'], 'stage 0 block 0 has no head 2; expected 0 to 0'),
    (['--channel', '8'], 'stage 0 block 0: channel 8; a head has channels 0 to 7'),
    (['--query', '80,5'], 'query 80,5 is outside the image of 75x53 pixels'),
    (['--stage', '0', '--draw', 'rank', '--max-tokens', '233'],
     'has 234 queries (13x18) and 234 keys'),
])
def test_refusals_are_one_sentence(analyze, setting, tmp_path, options, message):
    root, configs = setting
    result = analyze(configs['mmseg'], root / 'photo.png', *options)
    assert result.code == 1
    assert message in result.error
    assert not list(tmp_path.rglob('*.png'))  # so that nothing is in the way of the next try


def test_other_refusals(analyze, setting, tmp_path):
    root, configs = setting
    config, photo = configs['mmseg'], root / 'photo.png'
    assert 'nothere.png does not exist' in analyze(config, 'nothere.png').error
    assert 'is a checkpoint; give an image after it' in analyze(config, 'model.pth').error
    (tmp_path / 'full').mkdir()
    (tmp_path / 'full' / 'mine.txt').write_text('')
    refused = analyze(config, photo, '--out-dir', 'full')
    assert 'already holds mine.txt; choose another folder or give --overwrite' in refused.error
    (tmp_path / 'broken.png').write_text('no image')
    assert 'no image could be used; the first, broken.png cannot be read' in analyze(
        config, 'broken.png').error
    (tmp_path / 'plain.py').write_text(
        "default_scope = 'mmpretrain'\nmodel = dict(type='ImageClassifier', "
        "backbone=dict(type='ResNet', depth=18))\n")
    assert 'holds no FLatten backbone' in analyze('plain.py', photo).error
    assert not (tmp_path / 'outputs').exists()


def test_an_unreadable_image_holds_up_no_other(analyze, setting, tmp_path):
    root, configs = setting
    (tmp_path / 'damaged.png').write_text('no image')
    result = analyze(configs['mmseg'], 'damaged.png', root / 'photo.png', '--draw', 'focus',
                     '--out-dir', 'o')
    assert result.code == 3
    assert 'skipped: damaged.png cannot be read' in result.out + result.err
    assert (tmp_path / 'o' / 'photo_focus.csv').exists()


def test_large_map_leaves_the_rank_out_unless_it_was_asked_for(analyze, setting, tmp_path):
    root, configs = setting
    result = analyze(configs['mmseg'], root / 'photo.png', '--max-tokens', '1', '--grid', '1',
                     '--out-dir', 'o')
    assert result.code == 0
    assert 'above the limit of 1 tokens' in result.out + result.err
    assert not list((tmp_path / 'o').glob('*rank*'))
    assert list((tmp_path / 'o').glob('*maps.png'))
