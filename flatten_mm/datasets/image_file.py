"""Image files as bytes: what they are, whether they are whole, and their pixels.

OpenCV, which mm reads images with, decodes much without a word that no one meant to train on: a
12-bit scan in a 16-bit file becomes black, a Lab TIFF a picture of other colours, a file turned by
its EXIF tag no longer fits boxes drawn on the stored pixels. Here each is an error or done right.
"""

from __future__ import annotations

import io
import struct
import warnings

import cv2
import mmcv
import numpy as np
from PIL import Image

# First bytes -> what it is. None of the second group is read by OpenCV's wheels.
_READ = {b'\xff\xd8\xff': 'JPEG', b'\x89PNG\r\n\x1a\n': 'PNG', b'BM': 'BMP', b'II*\0': 'TIFF',
         b'MM\0*': 'TIFF', b'P': 'PNM'}
_OTHER = {b'GIF8': 'a GIF image', b'%PDF': 'a PDF document', b'PK': 'a zip archive',
          b'\x1f\x8b': 'a gzip file', b'\x89HDF': 'an HDF5 file', b'\x93NUMPY': 'a numpy array'}
_BRANDS = {b'avif': 'an AVIF image', b'heic': 'a HEIC photo', b'heix': 'a HEIC photo',
           b'mif1': 'a HEIF image'}
_TIFF_MODES = ('1', 'L', 'LA', 'P', 'RGB', 'RGBA', 'CMYK', 'YCbCr', 'I;16', 'I;16B', 'RGBX', 'I')
# Of a 16-bit image OpenCV keeps the upper 8 bits: below this, 16 shades or fewer are left.
_DARKEST_16_BIT = 4096
# JPEG takes a bit at least for each block of 8x8. OpenCV fills what is missing with grey.
_MOST_PIXELS_A_BYTE = 8 * 64
_ORIENTATION = 0x0112


class ImageFileError(ValueError):
    """A file that no model should see; the message says what it is and the mend."""


def kind_of(content: bytes) -> str:
    """``'JPEG'``, ``'PNG'``, ``'WEBP'``, ``'BMP'``, ``'TIFF'``, ``'PNM'``, or ``''`` for others."""
    if content[:4] == b'RIFF' and content[8:12] == b'WEBP':
        return 'WEBP'
    kind = next((name for start, name in _READ.items() if content.startswith(start)), '')
    return '' if kind == 'PNM' and content[1:2] not in b'123456' else kind


def check_content(content: bytes) -> None:
    """Check that a file's bytes are an image OpenCV knows, and all of it.

    Raises:
        ImageFileError: They are nothing, something else, or end too early.
    """
    if not content:
        raise ImageFileError('is empty; copy it again or leave it out')
    kind = kind_of(content)
    if not kind:
        what = _describe(content)
        if what:
            raise ImageFileError(f'is not an image that can be read but {what}; '
                                 'save it as PNG or JPEG, or leave it out')
    # a few zeros for the bits that libjpeg reads ahead; those of an image that goes on do not do
    if kind == 'JPEG' and not _jpeg_ends(content) and not _loads(content + bytes(8)):
        raise ImageFileError('is truncated: its JPEG data end early; copy it again or leave it out')
    if kind == 'JPEG' and _jpeg_frame(content)[0] > _MOST_PIXELS_A_BYTE * len(content):
        raise ImageFileError(f'is damaged: its {len(content)} bytes cannot hold the '
                             f'{_jpeg_frame(content)[0]} pixels its header says; copy it again or '
                             'leave it out')
    if kind == 'PNG' and b'IEND' not in content[-4096:] and b'IEND' not in content:
        raise ImageFileError('is truncated: its PNG data end early; copy it again or leave it out')
    if kind == 'WEBP' and (len(content) < 8 + int.from_bytes(content[4:8], 'little')
                           or content.endswith(bytes(64))):
        raise ImageFileError('is truncated: its WebP data end early; copy it again or leave it out')
    if kind == 'TIFF':
        _check_tiff(content)


def decode_image(content: bytes, color_type: str = 'color', backend: str | None = 'cv2',
                 size: tuple[int, int] | None = None) -> np.ndarray:
    """Decode an image as mm does, having checked it.

    Alpha channels are dropped and the colours beneath them kept, as mm and OpenCV do. Of 16 bits
    the upper 8 are kept. Of several frames the first is taken. A photo with an EXIF orientation is
    turned upright, unless only the stored pixels have ``size``.

    Args:
        content: The file.
        color_type: As in mmcv's LoadImageFromFile.
        backend: As in mmcv's LoadImageFromFile.
        size: (height, width) that the annotations were made for, or None.

    Returns:
        (H, W, C) or (H, W), BGR.

    Raises:
        ImageFileError: The file is no whole image, has values that 8 bits cannot show, or another
            size than its annotations.
    """
    check_content(content)
    if kind_of(content) == 'JPEG' and not _jpeg_ends(content):  # the marker alone is missing
        content += b'\xff\xd9'
    if color_type.startswith(('color', 'grayscale')):
        _check_depth(content)
    image = _decoded(content, color_type, backend)
    if size is None or image.shape[:2] == tuple(size):
        return image
    turned = orientation_of(content)
    if turned > 1 and color_type in ('color', 'grayscale'):
        stored = _decoded(content, f'{color_type}_ignore_orientation', backend)
        if stored.shape[:2] == tuple(size):
            return stored
    hint = f' (EXIF orientation {turned})' if turned > 1 else ''
    raise ImageFileError(
        f'is {_hw(image.shape)} pixels high and wide{hint}, but its annotations are for '
        f'{_hw(size)}; correct the sizes in the annotations, or give the image they were made on')


def orientation_of(content: bytes) -> int:
    """EXIF orientation 1 to 8; 1 where there is none."""
    kind = kind_of(content)
    mark = {'JPEG': b'Exif\0\0', 'PNG': b'eXIf', 'WEBP': b'EXIF'}.get(kind)
    end = 1 << 16 if kind == 'JPEG' else None  # of others it may stand at the end
    if kind != 'TIFF' and (mark is None or content.find(mark, 0, end) < 0):
        return 1
    try:
        with _pillow(content) as image:
            value = image.getexif().get(_ORIENTATION, 1)
    except Exception:  # a damaged EXIF block turns nothing
        return 1
    return value if value in range(1, 9) else 1


def describe_pixels(content: bytes) -> dict:
    """``mode`` and ``frames`` of Pillow, ``bits`` a channel, and ``transparent`` where a pixel is.

    For reports; {} for what Pillow does not know.
    """
    try:
        with _pillow(content) as image:
            frames = getattr(image, 'n_frames', 1)
            transparent = False
            if image.mode in ('RGBA', 'LA', 'PA') or 'transparency' in image.info:
                transparent = np.asarray(image.convert('RGBA'))[..., 3].min() < 255
            bits = 16 if _png_bits(content) == 16 or image.mode.startswith('I') else 8
            return dict(mode=image.mode, frames=frames, transparent=bool(transparent), bits=bits)
    except Exception:  # each format has its own
        return {}


def _describe(content: bytes) -> str:
    """What bytes of none of the known formats seem to be; '' where OpenCV may know them."""
    if not any(content[:512]):
        return 'zeros, as an interrupted copy leaves them'
    head = content[:512].lstrip().lower()
    if head.startswith((b'<!doctype', b'<html', b'<?xml', b'<svg')):
        return 'an SVG drawing' if b'<svg' in head else 'a web page saved under its name'
    if content[4:8] == b'ftyp':
        return _BRANDS.get(content[8:12], 'a film or an image of its kind')
    return next((name for start, name in _OTHER.items() if content.startswith(start)), '')


def _jpeg_ends(content: bytes) -> bool:
    """Whether an end marker follows the compressed data; one of a thumbnail before them is none."""
    _, start = _jpeg_frame(content)
    return start >= 0 and content.find(b'\xff\xd9', start) >= 0


def _jpeg_frame(content: bytes) -> tuple[int, int]:
    """Pixels that the header says, and where the compressed data begin (-1: nowhere)."""
    pixels, place = 0, 2
    while place + 9 <= len(content) and content[place] == 0xFF:
        marker = content[place + 1]
        if marker == 0xDA:
            return pixels, place
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            height, width = struct.unpack_from('>HH', content, place + 5)
            pixels = height * width
        place += 1 if marker == 0xFF else 2 + int.from_bytes(content[place + 2:place + 4], 'big')
    return pixels, -1


def _check_tiff(content: bytes) -> None:
    """Pillow notices more damage than OpenCV, and knows kinds of colour that OpenCV mistakes."""
    try:
        with _pillow(content) as image:
            mode = image.mode
            image.load()
    except Image.UnidentifiedImageError:
        return  # a kind of OpenCV alone, such as floating-point RGB
    except Image.DecompressionBombError:
        return
    except Exception as error:  # each codec has its own
        raise ImageFileError(f'is damaged ({error}); copy it again or leave it out') from error
    if mode not in _TIFF_MODES:
        raise ImageFileError(f'is a TIFF of mode {mode}, whose colours OpenCV mistakes; save it as '
                             'RGB')


def _check_depth(content: bytes) -> None:
    """Refuse values that turning into 8 bits would destroy."""
    kind = kind_of(content)
    if kind in ('JPEG', 'WEBP', 'BMP') or (kind == 'PNG' and _png_bits(content) != 16):
        return
    try:
        image = cv2.imdecode(np.frombuffer(content, np.uint8), cv2.IMREAD_UNCHANGED)
    except cv2.error:
        return  # decoding says so
    if image is None or image.dtype == np.uint8:
        return
    if image.dtype != np.uint16:
        raise ImageFileError(f'holds {image.dtype} values, which have no fixed black and white; '
                             'save it with 8 or 16 bits a channel')
    brightest = int(image[..., :3].max() if image.ndim == 3 else image.max())
    if 0 < brightest < _DARKEST_16_BIT:
        raise ImageFileError(
            f'is a 16-bit image whose largest value is {brightest} of 65535, so that only '
            f'{brightest // 256 + 1} shades would be left of it; scale its values to the whole '
            'range and save it again')


def _png_bits(content: bytes) -> int:
    return content[24] if kind_of(content) == 'PNG' and len(content) > 24 else 8


def _decoded(content: bytes, color_type: str, backend: str | None) -> np.ndarray:
    try:
        image = mmcv.imfrombytes(content, flag=color_type, backend=backend)
    except Exception as error:  # each backend has its own
        reason = ' '.join(str(error).split())
        raise ImageFileError(f'cannot be decoded ({reason}); save it again as PNG or JPEG, or '
                             'leave it out') from error
    if image is None or image.size == 0:
        what = kind_of(content)
        raise ImageFileError(f'cannot be decoded: it is {"a damaged " + what if what else "no"} '
                             'image; copy it again, save it as PNG or JPEG, or leave it out')
    return image


def _loads(content: bytes) -> bool:
    """Whether Pillow decodes all of an image; some cameras leave out the end marker alone."""
    try:
        with _pillow(content) as image:
            image.load()
    except Image.DecompressionBombError:  # larger than Pillow likes; satellite images are
        return True
    except Exception:  # each format has its own
        return False
    return True


def _pillow(content: bytes) -> Image.Image:
    with warnings.catch_warnings():  # of odd EXIF blocks and large sizes
        warnings.simplefilter('ignore')
        return Image.open(io.BytesIO(content))


def _hw(size: tuple[int, ...]) -> str:
    return f'{size[0]}x{size[1]}'
