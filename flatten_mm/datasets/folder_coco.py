"""Detection and instance segmentation from a folder of images and a COCO annotation file."""

from __future__ import annotations

import os

from mmdet.datasets import CocoDataset
from mmdet.evaluation import CocoMetric
from mmdet.registry import DATASETS, METRICS


@DATASETS.register_module()
class FolderCocoDataset(CocoDataset):
    """mmdet's CocoDataset that refuses what CocoDataset drops or mislabels silently.

    Class names that the file lacks; names in another order than the file's, to which mmdet would
    give each other's labels; files whose every instance is thrown away.

    Args:
        metainfo: ``dict(classes=[...])``, all or some of the file's category names, in its order.
        with_mask: Whether every instance must have a ``segmentation``.
        **kwargs: As in mmdet's CocoDataset.

    Raises:
        FileNotFoundError: The annotation file, the image folder or its first image is missing.
        ValueError: Class names that do not fit the file, or instances that cannot be used.
    """

    info_optional = True  # see FolderCocoMetric

    def __init__(self, *args, with_mask: bool = False, **kwargs) -> None:
        self.with_mask = with_mask
        super().__init__(*args, **kwargs)

    def load_data_list(self) -> list[dict]:
        """One dict an image; the keys are those of CocoDataset."""
        for path, what in ((self.ann_file, 'annotation file'),
                           (self.data_prefix['img'], 'image folder')):
            if not os.path.exists(path):
                raise FileNotFoundError(f'the {what} {path} does not exist')
        try:
            data_list = super().load_data_list()
        except KeyError as error:
            raise ValueError(f'{self.ann_file} lacks {error} somewhere; a COCO file has "images" '
                             '(id, file_name, height, width), "annotations" (id, image_id, '
                             'category_id, bbox, area, iscrowd) and "categories" (id, name)'
                             ) from error
        self._check_images(data_list)
        self._check_instances(data_list)
        return data_list

    class COCOAPI(CocoDataset.COCOAPI):
        """Looks class names up in the order given, and misses none silently."""

        def get_cat_ids(self, cat_names=(), **kwargs) -> list[int]:
            in_file = [category['name'] for category in self.dataset['categories']]
            wanted = list(cat_names)
            unknown = [name for name in wanted if name not in in_file]
            if unknown:
                raise ValueError(f'the classes {unknown} of {wanted} are not among the categories '
                                 f'of the annotation file: {in_file}')
            in_order = [name for name in in_file if name in wanted]
            if in_order != wanted:
                raise ValueError(f'the classes {wanted} are in another order than in the '
                                 f'annotation file; give them as {in_order}')
            return super().get_cat_ids(cat_names=wanted, **kwargs)

    def _check_images(self, data_list: list[dict]) -> None:
        if not data_list:
            raise ValueError(f'{self.ann_file} lists no images')
        first = data_list[0]['img_path']
        if not os.path.isfile(first):
            raise FileNotFoundError(f'{first}, the first image of {self.ann_file}, does not exist')

    def _check_instances(self, data_list: list[dict]) -> None:
        instances = [instance for info in data_list for instance in info['instances']]
        if not instances:
            raise ValueError(
                f'{self.ann_file} has no usable instance of {self.metainfo["classes"]}: each needs '
                'an "area" above 0 and a "bbox" [x, y, width, height] in pixels, at least 1 wide '
                'and high and within its image')
        if self.with_mask:
            without = sum('mask' not in instance for instance in instances)
            if without:
                raise ValueError(f'{without} of {len(instances)} instances of {self.ann_file} have '
                                 'no "segmentation"; train a boxes-only config on it')


@METRICS.register_module()
class FolderCocoMetric(CocoMetric):
    """mmdet's CocoMetric for annotation files without an "info" entry too.

    Many programs write none, COCO's own evaluation uses nothing of it, and pycocotools' ``loadRes``
    fails where it is absent.
    """

    def __init__(self, *args, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        if self._coco_api is not None:
            self._coco_api.dataset.setdefault('info', {})
