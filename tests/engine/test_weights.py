"""A checkpoint loads whole, or the sentence says why not."""
from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from flatten_mm.checkpoint import Checkpoint
from flatten_mm.engine import UserError
from flatten_mm.engine.weights import dataset_meta_of, load_weights, read_weights


class Head(nn.Module):
    """As many outputs a class as ``each``, and one class more where there is a background."""

    def __init__(self, num_classes, each=1, background=0):
        super().__init__()
        self.num_classes = num_classes
        self.out = nn.Linear(4, (num_classes + background) * each)


def model(num_classes=3, width=4, **kwargs):
    return nn.ModuleDict(dict(backbone=nn.Linear(2, width), head=Head(num_classes, **kwargs)))


def checkpoint(of, classes=None):
    meta = dict(meta=dict(dataset_meta=dict(classes=classes))) if classes else {}
    return Checkpoint({key: value + 1 for key, value in of.state_dict().items()},
                      Path('file.pth'), 'torch', meta=meta)


def refusal(*args):
    with pytest.raises(UserError) as info:
        load_weights(*args)
    return str(info.value)


def test_every_parameter_is_loaded():
    own, source = model(), model()
    load_weights(own, checkpoint(source))
    for key, value in own.state_dict().items():
        assert torch.equal(value, source.state_dict()[key] + 1)


def test_prefix_of_parallel_training_is_dropped():
    own, source = model(), model()
    file = checkpoint(source)
    file.state_dict = {f'module.{key}': value for key, value in file.state_dict.items()}
    load_weights(own, file)
    assert torch.equal(own.head.out.bias, source.head.out.bias + 1)


@pytest.mark.parametrize('kwargs', [
    dict(), dict(background=1), dict(each=4), dict(each=3, background=1)])
@pytest.mark.parametrize('named', [False, True])
def test_both_class_counts_are_named(kwargs, named):
    file = checkpoint(model(5, **kwargs), list('abcde') if named else None)
    message = refusal(model(3, **kwargs), file)
    assert 'file.pth was trained for 5 classes' in message
    assert 'head of the config has num_classes=3' in message


def test_other_width_is_another_architecture():
    message = refusal(model(width=4), checkpoint(model(width=6)))
    assert 'does not fit' in message
    assert 'backbone.weight is (6, 2) in the file, (4, 2) in the model' in message


def test_missing_parameters_are_counted_and_named():
    file = checkpoint(model())
    del file.state_dict['backbone.weight']
    message = refusal(model(), file)
    assert '1 of its 4 parameters are not in the file (backbone.weight)' in message


def test_left_over_parameters_are_refused():
    """A deeper model fits a shallower config key by key; only what is left over tells."""
    deeper = nn.ModuleDict(dict(**model(), more=nn.Linear(2, 2)))
    message = refusal(model(), checkpoint(deeper))
    assert '2 of the file are not in the model (more.weight, more.bias)' in message


def test_parts_of_training_alone_may_be_left_over():
    trained = nn.ModuleDict(dict(**model(), auxiliary_head=nn.Linear(2, 2)))
    load_weights(model(), checkpoint(trained))


def test_unreadable_files(tmp_path):
    with pytest.raises(UserError, match='gone.pth does not exist'):
        read_weights(tmp_path / 'gone.pth')
    (tmp_path / 'text.pth').write_text('not a checkpoint')
    with pytest.raises(UserError, match='text.pth is not a checkpoint'):
        read_weights(tmp_path / 'text.pth')


def test_metainfo_of_files_without_any():
    assert dataset_meta_of(checkpoint(model())) == {}
    assert dataset_meta_of(checkpoint(model(), ['a']))['classes'] == ['a']


def test_a_released_file_is_told_apart_from_a_whole_model(tmp_path) -> None:
    from flatten_mm import FLattenPVT

    backbone = FLattenPVT(dict(embed_dims=[8, 16, 20, 32], num_heads=[1, 2, 5, 8],
                               mlp_ratios=[2, 2, 2, 2], depths=[1, 1, 1, 1]), pretrain_img_size=32)
    path = tmp_path / 'released.pth'
    torch.save({'model': backbone.state_dict()}, path)
    model = torch.nn.Module()
    model.backbone = backbone
    with pytest.raises(UserError, match='FLatten-PVT.*convert it with tools/convert_checkpoint'):
        load_weights(model, read_weights(path))
