"""Which images inference takes, and how it reads them."""
from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from mmengine.config import Config
from mmengine.registry import init_default_scope
from PIL import Image
from tiny import write_image

from flatten_mm.engine import UserError
from flatten_mm.engine.images import ImageReader, UnreadableImage, find_images, to_rgb


@pytest.fixture
def folder(tmp_path):
    (tmp_path / 'deep').mkdir()
    for name in ('a.jpg', 'a.png', 'B.JPEG', 'deep/a.jpg', 'notes.txt', 'labels.json'):
        (tmp_path / name).write_text('')
    return tmp_path


def names(found):
    return {str(name) for name in found.values()}


def test_folder_is_searched_in_depth_for_images(folder):
    found = find_images([folder])
    assert names(found) == {'B', 'a', 'a_png', 'deep/a'}
    assert [file.name for file in found] == ['B.JPEG', 'a.jpg', 'a.png', 'a.jpg']


def test_patterns(folder):
    assert names(find_images([f'{folder}/*.jpg'])) == {'a'}
    assert names(find_images([f'{folder}/**/a.*'])) == {'a', 'a_png', 'deep/a'}
    assert names(find_images([f'{folder}/*'])) == {'a', 'a_png', 'B'}


def test_file_named_by_itself_may_have_any_suffix(folder):
    assert names(find_images([folder / 'notes.txt'])) == {'notes'}


def test_file_with_pattern_characters_in_its_name(folder):
    (folder / 'x[1].jpg').write_text('')
    assert names(find_images([folder / 'x[1].jpg'])) == {'x[1]'}


def test_files_are_taken_once_and_results_never_share_a_name(folder):
    found = find_images([folder / 'a.jpg', folder, folder / 'deep', f'{folder}/*.jpg'])
    assert len(found) == 4
    assert len(names(found)) == 4


@pytest.mark.parametrize('item, message', [
    ('*.bmp', r'no image found by .*\*.bmp'),
    ('empty', 'no image found by .*empty'),
])
def test_inputs_without_an_image(folder, item, message):
    (folder / 'empty').mkdir()
    with pytest.raises(UserError, match=message):
        find_images([folder / 'a.jpg', folder / item])


def test_a_missing_file_holds_up_no_others(folder, reader):
    found = find_images([folder / 'gone.jpg', folder / 'a.jpg'])
    assert [file.name for file in found] == ['gone.jpg', 'a.jpg']
    with pytest.raises(UnreadableImage, match='^it does not exist$'):
        reader.read(folder / 'gone.jpg')
    with pytest.raises(UserError, match='gone.jpg does not exist'):
        find_images([folder / 'gone.jpg', folder / 'gone too.jpg'])


@pytest.fixture
def reader():
    init_default_scope('mmseg')
    pipeline = [dict(type='LoadImageFromFile'), dict(type='Resize', scale=(32, 32)),
                dict(type='LoadAnnotations'), dict(type='PackSegInputs')]
    return ImageReader(Config(dict(test_dataloader=dict(dataset=dict(
        type='RepeatDataset', dataset=dict(pipeline=pipeline))))))


RAMP = np.arange(40 * 60).reshape(40, 60) % 256


@pytest.mark.parametrize('name, image, grey_at', [
    ('colour.png', np.stack([RAMP, RAMP // 2, 255 - RAMP], 2), None),
    ('colour.jpg', np.full((40, 60, 3), 90), 90),
    ('grey.png', RAMP, 5),
    ('sixteen.png', (RAMP * 257).astype(np.uint16), 5),
    ('rgba.png', np.dstack([RAMP, RAMP, RAMP, np.full_like(RAMP, 128)]), 5),
    ('image.bmp', np.dstack([RAMP] * 3), 5),
    ('image.tif', np.dstack([RAMP] * 3), 5),
], ids=lambda value: value if isinstance(value, str) else '')
def test_kinds_of_images(reader, tmp_path, name, image, grey_at):
    write_image(tmp_path / name, image)
    loaded = reader.read(tmp_path / name)
    assert loaded['img'].shape == (40, 60, 3)
    assert loaded['img'].dtype == np.uint8
    if grey_at is not None:
        assert abs(loaded['img'][0, 5].astype(int) - grey_at).max() <= 1
    batch = reader.prepare(loaded)
    assert batch['inputs'][0].shape == (3, 32, 32)
    assert loaded['img'].shape == (40, 60, 3)


@pytest.mark.parametrize('content, reason', [
    (b'', 'empty'), (b'no image at all', 'failed to load|cannot|imread|image')])
def test_files_that_are_no_image(reader, tmp_path, content, reason):
    path = tmp_path / 'broken.jpg'
    path.write_bytes(content)
    with pytest.raises(UnreadableImage, match=reason):
        reader.read(path)


@pytest.mark.parametrize('suffix', ['jpg', 'png'])
def test_truncated_image_is_not_half_used(reader, tmp_path, suffix):
    path = tmp_path / f'cut.{suffix}'
    write_image(path, np.random.default_rng(0).integers(0, 255, (64, 64, 3)))
    whole = path.read_bytes()
    path.write_bytes(whole[:len(whole) * 2 // 3])
    with pytest.raises(UnreadableImage, match='truncated'):
        reader.read(path)


def test_image_larger_than_pillow_likes(reader, tmp_path, monkeypatch):
    write_image(tmp_path / 'large.png', RAMP)
    monkeypatch.setattr(Image, 'MAX_IMAGE_PIXELS', 100)
    assert reader.read(tmp_path / 'large.png')['img'].shape == (40, 60, 3)


def test_config_whose_pipeline_loads_no_file():
    with pytest.raises(UserError, match='LoadImageFromFile.*found: PackInputs'):
        ImageReader(Config(dict(test_dataloader=dict(dataset=dict(
            pipeline=[dict(type='PackInputs')])))))


def test_rgb_of_what_mm_loads():
    bgr = np.zeros((2, 2, 3), np.uint8)
    bgr[..., 0] = 200
    assert to_rgb(bgr)[0, 0].tolist() == [0, 0, 200]
    assert to_rgb(np.full((2, 2, 1), 300.0, np.float32))[0, 0].tolist() == [255, 255, 255]
    assert to_rgb(np.full((2, 2), 7)).shape == (2, 2, 3)


def test_pillow_reads_what_the_test_wrote(tmp_path):
    """The truncation check rests on Pillow knowing the formats that the tests cut."""
    write_image(tmp_path / 'x.png', RAMP)
    with Image.open(Path(tmp_path / 'x.png')) as image:
        assert image.size == (60, 40)
