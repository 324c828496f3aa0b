"""tools/check_data.py: every problem with its file, counts, and pictures, in each scope."""

from __future__ import annotations

import importlib.util
import json
import shutil
from collections import Counter
from pathlib import Path

import cv2
import numpy as np
import pytest
from PIL import Image

pytest.importorskip('mmseg')
pytest.importorskip('mmdet')
pytest.importorskip('mmpretrain')
from tiny import write_config, write_data

from flatten_mm.datasets import make_demo_dataset
from flatten_mm.datasets.check import check_data
from flatten_mm.datasets.check_report import as_dict, as_text, save_sheets
from flatten_mm.engine import UserError, load_config

ROOT = Path(__file__).resolve().parents[2]
DEMO = {'seg': ROOT / 'configs/demo/fpn_flatten-pvt_demo-128x128.py',
        'coco': ROOT / 'configs/demo/mask-rcnn_flatten-swin_demo.py'}


@pytest.fixture(scope='module')
def sound(tmp_path_factory):
    return make_demo_dataset(tmp_path_factory.mktemp('demo') / 'data', 6, 3).root


@pytest.fixture
def root(sound, tmp_path):
    return Path(shutil.copytree(sound, tmp_path / 'data'))


def check(kind, root, **options):
    return check_data(load_config(DEMO[kind], data_root=root), **options)


def kinds(report):
    return Counter((item.level, item.kind) for item in report.problems)


def edit(path, change):
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def test_counts_of_label_maps(sound):
    report = check('seg', sound)
    assert not report.errors
    train = report.splits[0]
    maps = [np.asarray(Image.open(path)) for path in sorted((sound / 'annotations/train')
                                                            .glob('*.png'))]
    assert [split.split for split in report.splits] == ['train', 'val'], 'test is val'
    assert (train.images, train.read, train.unit) == (6, 6, 'pixels')
    assert sorted(train.sizes) == sorted(labels.shape for labels in maps)
    for label, entry in enumerate(train.classes):
        assert entry.count == sum((labels == label).sum() for labels in maps)
        assert entry.images == sum((labels == label).any() for labels in maps)


def test_counts_of_boxes(sound):
    report = check('coco', sound)
    assert not report.errors
    content = json.loads((sound / 'annotations/train.json').read_text())
    names = {item['id']: item['name'] for item in content['categories']}
    boxes = Counter(names[item['category_id']] for item in content['annotations'])
    assert {entry.name: entry.count for entry in report.splits[0].classes} == {
        name: boxes[name] for name in names.values()}


def test_every_problem_of_images_and_label_maps(root):
    images, maps = root / 'images/train', root / 'annotations/train'
    first = (images / '000000.png').read_bytes()
    (images / '000001.png').write_bytes(first[:len(first) // 2])
    (images / '000002.png').write_text('<html>')
    (maps / '000003.png').unlink()
    labels = np.array(Image.open(maps / '000004.png'))
    Image.fromarray(np.where(labels == 0, 77, labels).astype(np.uint8)).save(maps / '000004.png')
    Image.fromarray(labels[:-5]).save(maps / '000005.png')
    Image.fromarray(labels).save(maps / 'spare.png')
    shutil.copy(images / '000000.png', root / 'images/val/000001.png')
    shutil.copy(maps / '000000.png', root / 'annotations/val/000001.png')
    Image.fromarray(np.dstack([labels] * 3)).save(root / 'annotations/val/000002.png')
    report = check('seg', root)
    found = kinds(report)
    del found['warning', 'class-unseen']
    assert found == {
        ('error', 'image'): 2, ('error', 'label-map-missing'): 1, ('error', 'label-map'): 2,
        ('error', 'label-map-size'): 1, ('warning', 'image-of-label-map-missing'): 1,
        ('warning', 'overlap'): 1}
    told = as_text(report)
    for text in ('images/train/000001.png is truncated', '000002.png is not an image that can be '
                 'read but a web page', '000004.png holds the label values [77]',
                 '000003.png has no label map', 'val/000002.png is a picture of mode RGB',
                 'val/000001.png of the val data set has the same content as'):
        assert text in told, told


def test_a_class_too_many(root):
    for path in (root / 'annotations').glob('*/*.png'):
        labels = np.array(Image.open(path))
        labels[labels == 5] = 0
        Image.fromarray(labels).save(path)
    report = check('seg', root)
    unseen = [item for item in report.warnings if item.kind == 'class-unseen']
    assert not report.errors
    assert any(item.file == 'train data set' and "'ring'" in item.text for item in unseen)


def test_every_problem_of_a_coco_file(root):
    def change(content):
        content['annotations'][0]['category_id'] = 40
        content['annotations'][1]['segmentation'] = [[1, 2, 30, 40]]
        content['annotations'][2]['segmentation']['size'] = [5, 5]
        content['annotations'][3]['bbox'] = [900, 900, 5, 5]
        content['images'][5]['file_name'] = 'gone.png'
        content['images'][4]['height'] += 300
    edit(root / 'annotations/train.json', change)
    annotations = json.loads((root / 'annotations/train.json').read_text())['annotations']
    resized = {item['id'] for item in annotations if item['image_id'] == 4}
    report = check('coco', root)
    found = kinds(report)
    del found['warning', 'class-unseen']
    assert found.pop(('error', 'rle-size')) == 1 + len(resized)
    assert found == {('error', kind): 1 for kind in (
        'category-unknown', 'polygon-short', 'box-outside', 'image-missing', 'image')}
    places = {item.where for item in report.errors if item.where}
    assert {place.split(' (')[0] for place in places} == {
        f'annotation {number}' for number in {1, 2, 3, 4} | resized}


@pytest.mark.parametrize('change, message', [
    (lambda text: text[:200], 'is not JSON'), (lambda text: '{}', "lacks 'images'"),
    (lambda text: text.replace('"square"', '"Square"'), 'does not name the classes')])
def test_coco_file_that_tells_little(root, change, message):
    path = root / 'annotations/train.json'
    path.write_text(change(path.read_text()))
    report = check('coco', root)
    assert message in report.errors[0].text
    assert report.splits[1].read == 3, 'the other split is checked all the same'


def test_used_but_worth_a_look(root):
    images, maps = root / 'images/train', root / 'annotations/train'

    def add(name, image, **options):
        height, width = image.shape[:2]
        Image.fromarray(image).save(images / name, **options)
        Image.fromarray(np.zeros((height, width), np.uint8)).save(
            maps / f'{Path(name).stem}.png')
    noise = np.random.default_rng(0).integers(0, 255, (50, 60, 4)).astype(np.uint8)
    add('small.png', noise[:20, :20, :3])
    add('clear.png', noise)
    add('moving.webp', noise[..., :3], save_all=True,
        append_images=[Image.fromarray(noise[::-1, :, :3].copy())])
    turned = Image.Exif()
    turned[0x0112] = 3
    add('turned.jpg', noise[..., :3], exif=turned)
    add('deep.png', noise[..., :3].copy())
    cv2.imwrite(str(images / 'deep.png'), noise[..., :3].astype(np.uint16) * 257)
    add('twice.png', noise[..., 2])
    shutil.copy(images / 'twice.png', images / 'again.png')
    shutil.copy(maps / 'twice.png', maps / 'again.png')
    report = check('seg', root)
    assert not report.errors
    files = {item.kind: Path(item.file).name for item in report.warnings}
    assert files.pop('class-unseen', None) in (None, 'train data set', 'val data set')
    assert files == {
        'image-small': 'small.png', 'image-transparent': 'clear.png', 'image-animated':
        'moving.webp', 'image-orientation': 'turned.jpg', 'image-16-bit': 'deep.png',
        'image-repeated': 'twice.png'}


def test_part_of_the_images(root):
    (root / 'images/train/000000.png').write_bytes(b'')
    report = check('seg', root, max_images=3)
    assert [split.read for split in report.splits] == [2, 3]
    assert report.splits[0].images == 6
    assert '6 images (2 read)' in as_text(report)


def test_zero_label_reduced(tmp_path):
    """As ADE20K has it: 0 is ignored, 1 to 2 are the classes, and 3 is too many."""
    for split in ('training', 'validation'):
        for folder in ('images', 'annotations'):
            (tmp_path / folder / split).mkdir(parents=True)
        Image.new('RGB', (40, 40)).save(tmp_path / f'images/{split}/a.jpg')
        labels = np.zeros((40, 40), np.uint8)
        labels[:10], labels[10:12] = 1, 150
        Image.fromarray(labels).save(tmp_path / f'annotations/{split}/a.png')
    config = ROOT / 'configs/mmseg/flatten_pvt/fpn_flatten-pvt-t_4xb4-40k_ade20k-512x512.py'
    options = {f'{split}_dataloader.dataset.data_root': str(tmp_path) for split in
               ('train', 'val', 'test')}
    report = check_data(load_config(config, options))
    assert not report.errors
    counts = report.splits[0].classes
    assert (counts[0].count, counts[149].count, len(counts)) == (400, 80, 150)
    labels[12] = 151
    Image.fromarray(labels).save(tmp_path / 'annotations/validation/a.png')
    error = check_data(load_config(config, options)).errors[0]
    assert 'holds the label values [150]' in error.text


@pytest.fixture
def animals(data, tmp_path):
    """Function of changed texts that gives the report on a folder a class."""
    shutil.copytree(data / 'cls', tmp_path / 'cls')

    def get(**replaced):
        config = write_config('mmpretrain', tmp_path, tmp_path, **replaced)
        return check_data(load_config(config))
    return get


@pytest.fixture(scope='module')
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp('tiny') / 'data'
    write_data(folder)
    return folder


def test_a_folder_a_class(animals, tmp_path):
    report = animals()
    assert not report.errors
    assert [(entry.name, entry.count) for entry in report.splits[0].classes] == [
        ('cat', 4), ('dog', 4)]
    shutil.copy(tmp_path / 'cls/train/cat/0.jpg', tmp_path / 'cls/train/dog/0.jpg')
    (tmp_path / 'cls/train/dog/1.jpg').write_bytes(b'')
    (tmp_path / 'cls/val/dog').rename(tmp_path / 'cls/val/wolf')
    report = animals()
    assert kinds(report)['warning', 'labels-contradict'] == 1
    assert kinds(report)['error', 'image'] == 1
    assert kinds(report)['error', 'classes-differ'] == 1
    assert kinds(animals(**{'num_classes=2, in': 'num_classes=3, in'}))['error', 'num-classes'] == 1


def test_a_list_of_images(animals, tmp_path):
    with_list = {"data_prefix=split": "data_prefix=split, ann_file=f'{split}.txt', "
                 "metainfo=dict(classes=['cat', 'dog'])"}
    for split in ('train', 'val'):
        (tmp_path / f'cls/{split}.txt').write_text('cat/0.jpg 0\ndog/1.jpg 1\n')
    assert not animals(**with_list).errors
    (tmp_path / 'cls/train.txt').write_text('cat/0.jpg 0\ndog/1.jpg 2\ncat/9.jpg 0\n')
    assert kinds(animals(**with_list)) == {
        ('error', 'label-beyond'): 1, ('error', 'image-missing'): 1, ('warning', 'class-unseen'): 1}
    (tmp_path / 'cls/train.txt').write_text('cat/0.jpg\ndog/1.jpg 1\n')
    assert 'line 1 is' in str(animals(**with_list).errors[0])


@pytest.mark.parametrize('scope', ['mmseg', 'mmdet'])
def test_data_sets_of_the_mm_libraries(scope, data, tmp_path):
    report = check_data(load_config(write_config(scope, tmp_path, data)))
    assert not report.errors
    assert report.splits[0].read == 4


@pytest.mark.parametrize('kind', DEMO)
def test_pictures(kind, root, tmp_path):
    """The sheet shows the images and the colours of the labels; a blank one would not."""
    report = check(kind, root)
    folder = tmp_path / 'out'
    folder.mkdir()
    train, val = save_sheets(report, folder)
    assert (train.name, val.name) == ('contact_sheet_train.png', 'contact_sheet_val.png')
    picture = np.asarray(Image.open(train).convert('RGB')).reshape(-1, 3)
    assert (picture < 250).any(1).mean() > 0.1
    palette = np.array(report.splits[0].palette, float)
    near = np.abs(picture[:, None].astype(float) - palette[-5:]).max(-1).min(0)
    assert near.max() < 60, 'each class has its colour in the legend at least'
    assert as_dict(report)['errors'] == 0


def _tool():
    spec = importlib.util.spec_from_file_location('check_data_tool', ROOT / 'tools/check_data.py')
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.main


def test_tool(root, tmp_path, capfd, monkeypatch):
    monkeypatch.chdir(tmp_path)
    arguments = [str(DEMO['seg']), '--data-root', str(root)]
    assert _tool()(arguments) == 0
    out = capfd.readouterr().out
    assert 'train: 6 images, 6 classes' in out and '0 errors' in out
    assert (tmp_path / f'outputs/check_data/{DEMO["seg"].stem}/contact_sheet_val.png').is_file()
    (root / 'images/train/000000.png').write_bytes(b'')
    assert _tool()([*arguments, '--json', 'report.json', '--out-dir', 'out']) == 1
    report = json.loads((tmp_path / 'report.json').read_text())
    assert report['errors'] == 1
    assert report['problems'][0]['file'].endswith('000000.png')
    capfd.readouterr()
    assert _tool()([*arguments, '--json', '-', '--out-dir', 'out']) == 1
    text = capfd.readouterr().out
    assert json.loads(text[text.index('{\n'):])['errors'] == 1
    assert _tool()([*arguments, '--json', 'report.json']) == 1
    assert 'report.json exists' in capfd.readouterr().err


def test_config_without_data(tmp_path):
    path = tmp_path / 'x.py'
    path.write_text("default_scope = 'mmseg'")
    with pytest.raises(UserError, match='no train_dataloader'):
        check_data(load_config(path))
