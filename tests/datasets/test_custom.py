"""The texts that the configs for a user's own data hand over."""

from __future__ import annotations

import json

import pytest

from flatten_mm.datasets.custom import UNSET, custom_settings

GOOD = dict(data_root='data', classes='sky, traffic light ,car', img_size='240, 320',
            batch_size='4', max_iters='300')


def test_values():
    settings = custom_settings(**GOOD)
    assert settings.classes == ['sky', 'traffic light', 'car']
    assert settings.img_size == (240, 320)
    assert settings.scale == (320, 240)
    assert (settings.data_root, settings.batch_size, settings.max_iters) == ('data', 4, 300)


def test_one_number_is_a_square():
    assert custom_settings(**GOOD | dict(img_size='256')).img_size == (256, 256)


@pytest.mark.parametrize('name, text', [
    ('classes', 'a,,b'), ('classes', 'a,b,a'), ('classes', ' '),
    ('img_size', '240x320'), ('img_size', '1,2,3'), ('img_size', '16'), ('img_size', '-64'),
    ('batch_size', '0'), ('batch_size', '2.5'), ('max_iters', 'many'),
])
def test_wrong_text_is_named(name, text):
    with pytest.raises(ValueError, match=f'--{name.replace("_", "-")}.*{text!r}'):
        custom_settings(**GOOD | {name: text})


def test_classes_must_be_given_for_label_maps():
    with pytest.raises(ValueError, match='give --classes'):
        custom_settings(**GOOD | dict(classes=UNSET))


def test_classes_from_the_annotation_file(tmp_path):
    options = GOOD | dict(classes=UNSET, data_root=str(tmp_path), classes_from='train.json')
    with pytest.raises(FileNotFoundError, match=r'train\.json.*--data-root.*--classes'):
        custom_settings(**options)
    file = tmp_path / 'train.json'
    file.write_text(json.dumps(dict(categories=[dict(id=7, name='b'), dict(id=2, name='a')])))
    assert custom_settings(**options).classes == ['b', 'a']
    assert custom_settings(**options | dict(classes='a')).classes == ['a']
    file.write_text('[]')
    with pytest.raises(ValueError, match='no "categories"'):
        custom_settings(**options)
