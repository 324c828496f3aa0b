"""mm's image loading with the checks of :mod:`.image_file`."""

from __future__ import annotations

import logging
import os

import numpy as np
from mmcv.transforms import LoadImageFromFile
from mmengine import fileio
from mmengine.logging import print_log
from mmengine.registry import TRANSFORMS
from PIL import Image

from .image_file import ImageFileError, decode_image, orientation_of


@TRANSFORMS.register_module()
class LoadCheckedImage(LoadImageFromFile):
    """LoadImageFromFile that refuses damaged and mistakable files, and names them.

    Takes what LoadImageFromFile takes and gives the same arrays. Where the annotations say for
    which size they were made (``height`` and ``width`` as COCO data sets have them, or the label
    map beside a turned photo), the image has that size or is an error; a photo with an EXIF
    orientation is read as its annotations were made, turned or as stored.

    The data sets of this package put it in the place of LoadImageFromFile, as our tools do for
    any data set; with mm's tools and data sets write it into the pipeline.

    Raises:
        ImageFileError: A file that cannot be used; the message begins with its path.
    """

    _told = False

    def transform(self, results: dict) -> dict | None:
        """Add ``img`` (H, W, C), ``img_shape`` and ``ori_shape`` (H, W) to ``results``."""
        path = results['img_path']
        try:
            content = fileio.get(path, backend_args=self.backend_args)
            image = decode_image(content, self.color_type, self.imdecode_backend,
                                 self._size(results, content))
        except Exception as error:
            if self.ignore_empty:
                return None
            if isinstance(error, ImageFileError):
                raise ImageFileError(f'{path} {error}') from error
            raise
        if self.to_float32:
            image = image.astype(np.float32)
        results['img'] = image
        results['img_shape'] = results['ori_shape'] = image.shape[:2]
        return results

    def _size(self, results: dict, content: bytes) -> tuple[int, int] | None:
        """(height, width) of the annotations of an image, where they tell."""
        height, width = results.get('height'), results.get('width')
        label_map = results.get('seg_map_path')
        if not height or not width:
            if not isinstance(label_map, str) or not os.path.isfile(label_map):
                return None
            if orientation_of(content) == 1:
                return None
            try:
                with Image.open(label_map) as picture:
                    width, height = picture.size
            except OSError:  # told when the label map is loaded
                return None
        turned = orientation_of(content)
        if turned > 1 and (turned < 5 or height == width) and not self._told:
            self._told = True
            print_log(
                f'{results["img_path"]} has EXIF orientation {turned}, and its annotations fit it '
                'turned upright as well as not; it is turned, as viewers show it. If annotations '
                "were made on the stored pixels, set color_type='color_ignore_orientation' in "
                'LoadImageFromFile (said once; tools/check_data.py lists such images)',
                logger='current', level=logging.WARNING)
        return height, width


def use_checked_loading(transforms: list) -> None:
    """Put LoadCheckedImage in the place of each LoadImageFromFile, with its settings."""
    for place, step in enumerate(transforms):
        if type(step) is LoadImageFromFile and step.file_client_args is None:
            transforms[place] = LoadCheckedImage(
                to_float32=step.to_float32, color_type=step.color_type,
                imdecode_backend=step.imdecode_backend, ignore_empty=step.ignore_empty,
                backend_args=step.backend_args)
