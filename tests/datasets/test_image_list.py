"""Lists of images and labels, as ImageNet and mmpretrain's CustomDataset have them."""

from __future__ import annotations

from flatten_mm.datasets.image_list import list_problems


def test_lines_are_named(tmp_path):
    path = tmp_path / 'train.txt'
    path.write_text('a b.jpg 0\nc.jpg 1\nc.jpg 1\nd.jpg\nd.jpg cat\ne.jpg -1\nf.jpg 7\na b.jpg 1\n')
    found = list_problems(str(path), num_classes=2)
    assert [(item.where, item.kind, item.level) for item in found] == [
        ('line 3', 'image-listed-twice', 'warning'), ('line 4', 'list-line', 'error'),
        ('line 5', 'list-line', 'error'), ('line 6', 'list-line', 'error'),
        ('line 7', 'label-beyond', 'error'), ('line 8', 'image-listed-twice', 'error')]
    assert str(found[4]) == f'{path}, line 7 has label 7, but the 2 classes are 0 to 1'
    assert 'label-beyond' not in {item.kind for item in list_problems(str(path))}
    path.write_text('a.jpg 0\nb.jpg 1\n')
    assert list_problems(str(path), 2) == []
