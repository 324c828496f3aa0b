"""What the tests of configs share: quick loading, and data in the layouts the configs expect."""
from __future__ import annotations

import pytest
import torch
from mmengine.config import utils
from paper_layouts import write_layouts


@pytest.fixture(scope='session', autouse=True)
def quick_lookup():
    """mmengine reads all metafiles of a library for every base named 'mmdet::…'; once will do."""
    look_up, known = utils._get_cfg_metainfo, {}

    def remembered(*key):
        if key not in known:
            try:
                known[key] = look_up(*key)
            except ValueError as error:  # the file has no entry
                known[key] = str(error)
        if isinstance(known[key], str):
            raise ValueError(known[key])
        return known[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(utils, '_get_cfg_metainfo', remembered)
        yield


@pytest.fixture(scope='module', autouse=True)
def one_thread():
    """Models this small gain nothing from a second thread, and lose much where cores are busy."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope='session')
def layouts(tmp_path_factory):
    """Folder with ``ade``, ``coco`` and ``imagenet`` as the configs of the paper expect them."""
    return write_layouts(tmp_path_factory.mktemp('layouts'))
