"""Images of every kind: read right, or named with what is wrong with them."""

from __future__ import annotations

import io

import cv2
import numpy as np
import pytest
from mmcv.transforms import LoadImageFromFile
from PIL import Image

from flatten_mm.datasets import image_file
from flatten_mm.datasets.image_file import (
    ImageFileError,
    check_content,
    decode_image,
    describe_pixels,
    orientation_of,
)
from flatten_mm.datasets.load_image import LoadCheckedImage, use_checked_loading

ROWS, COLUMNS = np.mgrid[:60, :80]
RGB = np.stack([3 * COLUMNS, 4 * ROWS, 255 - 3 * COLUMNS], 2).astype(np.uint8)
PICTURE = Image.fromarray(RGB)
WEB_PAGE = b'<!DOCTYPE html><html><body>404</body></html>'


def saved(kind, picture=PICTURE, **options):
    content = io.BytesIO()
    picture.save(content, kind, **options)
    return content.getvalue()


def encoded(suffix, image):
    return cv2.imencode(suffix, image)[1].tobytes()


def exif(orientation):
    tags = Image.Exif()
    tags[0x0112] = orientation
    return tags


def assert_like(image, rgb=RGB, within=6):
    assert image.dtype == np.uint8 and image.shape == rgb.shape
    assert np.abs(image[..., ::-1].astype(int) - rgb).mean() < within


PALETTE = PICTURE.convert('P', palette=Image.Palette.ADAPTIVE, colors=256)
GREY = np.asarray(PICTURE.convert('L'))
USED = {
    'jpeg': (saved('JPEG'), RGB),
    'progressive': (saved('JPEG', progressive=True), RGB),
    'jpeg with bytes behind it': (saved('JPEG') + bytes(500), RGB),
    'png': (saved('PNG'), RGB),
    'webp': (saved('WEBP'), RGB),
    'bmp': (saved('BMP'), RGB),
    'tiff': (saved('TIFF', compression='tiff_lzw'), RGB),
    'ppm': (saved('PPM'), RGB),
    'cmyk jpeg': (saved('JPEG', PICTURE.convert('CMYK')), RGB),
    'cmyk tiff': (saved('TIFF', PICTURE.convert('CMYK')), RGB),
    'grey': (saved('PNG', PICTURE.convert('L')), np.dstack([GREY] * 3)),
    'grey and alpha': (saved('PNG', PICTURE.convert('LA')), np.dstack([GREY] * 3)),
    'rgba': (saved('PNG', PICTURE.convert('RGBA')), RGB),
    'palette with transparency': (saved('PNG', PALETTE, transparency=bytes(range(256))), RGB),
    '16 bits': (encoded('.png', RGB[..., ::-1].astype(np.uint16) * 257), RGB),
    '16-bit tiff': (encoded('.tiff', RGB[..., ::-1].astype(np.uint16) * 257), RGB),
    'black of 16 bits': (encoded('.png', np.zeros((60, 80, 3), np.uint16)), 0 * RGB),
    'one pixel': (saved('PNG', PICTURE.crop((0, 0, 1, 1))), RGB[:1, :1]),
    'wide': (saved('PNG', Image.new('RGB', (20_000, 3), (9, 8, 7))),
             np.full((3, 20_000, 3), (9, 8, 7), np.uint8)),
    'animated webp': (saved('WEBP', save_all=True, append_images=[PICTURE.rotate(90)]), RGB),
}


@pytest.mark.parametrize('name', USED)
def test_used_rightly(name):
    content, rgb = USED[name]
    assert_like(decode_image(content), rgb)


REFUSED = {
    'empty': (b'', 'is empty'),
    'web page': (WEB_PAGE, 'a web page'),
    'text': (b'hello', 'cannot be decoded: it is no image'),
    'zeros': (bytes(5000), 'zeros, as an interrupted copy'),
    'zip': (b'PK\x03\x04' + bytes(40), 'a zip archive'),
    'pdf': (b'%PDF-1.7', 'a PDF'),
    'svg': (b'<svg xmlns="http://www.w3.org/2000/svg"/>', 'an SVG'),
    'gif': (saved('GIF'), 'a GIF image'),
    'animated gif': (saved('GIF', save_all=True, append_images=[PICTURE.rotate(90)]), 'a GIF'),
    'heic': (b'\0\0\0\x18ftypheic' + bytes(20), 'a HEIC photo'),
    '12 bits in 16': (encoded('.png', RGB.astype(np.uint16) * 16),
                      r'largest value is 4080 of 65535, so that only 16 shades'),
    '8 bits in 16': (encoded('.tiff', RGB.astype(np.uint16)), 'largest value is 255 of 65535'),
    'floating point': (encoded('.tiff', RGB.astype(np.float32) / 255), 'holds float32 values'),
    'Lab': (saved('TIFF', Image.new('LAB', (8, 8))), 'TIFF of mode LAB'),
}


@pytest.mark.parametrize('name', REFUSED)
def test_refused_with_the_reason(name):
    content, reason = REFUSED[name]
    with pytest.raises(ImageFileError, match=reason):
        decode_image(content)


@pytest.mark.parametrize('kind, options', [
    ('JPEG', {}), ('JPEG', dict(progressive=True)), ('PNG', {}), ('WEBP', {}), ('BMP', {}),
    ('WEBP', dict(lossless=True)), ('TIFF', {}), ('TIFF', dict(compression='tiff_deflate'))],
    ids=str)
@pytest.mark.parametrize('share', [0.1, 0.5, 0.9, 0.99])
def test_truncated(kind, options, share):
    content = saved(kind, **options)
    with pytest.raises(ImageFileError):
        decode_image(content[:int(len(content) * share)])


@pytest.mark.parametrize('kind', ['JPEG', 'PNG', 'WEBP'])
def test_truncation_is_noticed_before_decoding(kind):
    """Versions of OpenCV differ in what they make of it."""
    content = saved(kind, exif=exif(1))
    check_content(content)
    for share in (0.5, 0.95):
        with pytest.raises(ImageFileError, match='is truncated'):
            check_content(content[:int(len(content) * share)])


def test_end_of_a_thumbnail_is_not_that_of_the_image():
    inner = saved('JPEG', PICTURE.resize((16, 12)))
    segment = b'\xff\xe1' + (len(inner) + 8).to_bytes(2, 'big') + b'Thumb\0' + inner
    content = saved('JPEG')
    content = content[:2] + segment + content[2:]
    check_content(content)
    with pytest.raises(ImageFileError, match='truncated'):
        check_content(content[:-400])


def test_header_that_says_more_than_the_file_can_hold():
    """OpenCV makes 2.7 GB of grey out of these 700 bytes."""
    content = bytearray(saved('JPEG'))
    frame = content.find(b'\xff\xc0')
    content[frame + 5:frame + 9] = (30_000).to_bytes(2, 'big') * 2
    with pytest.raises(ImageFileError, match='cannot hold the 900000000 pixels'):
        decode_image(bytes(content))
    flat = saved('JPEG', Image.new('RGB', (4000, 4000), 'white'), quality=5, optimize=True)
    assert decode_image(flat).shape == (4000, 4000, 3)
    flat = saved('JPEG', Image.new('L', (4000, 4000)), quality=5, progressive=True)
    assert decode_image(flat).shape == (4000, 4000, 3)


def test_damaged_tiff_that_opencv_reads():
    content = bytearray(saved('TIFF', Image.effect_noise((300, 300), 80), compression='tiff_lzw'))
    content[20_000:26_000] = bytes(6_000)
    assert cv2.imdecode(np.frombuffer(bytes(content), np.uint8), cv2.IMREAD_COLOR) is not None
    with pytest.raises(ImageFileError, match='is damaged'):
        decode_image(bytes(content))


def test_more_pixels_than_pillow_likes(monkeypatch):
    monkeypatch.setattr(Image, 'MAX_IMAGE_PIXELS', 100)
    for kind in ('JPEG', 'PNG', 'TIFF'):
        assert_like(decode_image(saved(kind)))


def test_jpeg_that_lacks_its_end_marker_alone():
    for size in ((80, 60), (160, 120), (33, 47)):
        picture = PICTURE.resize(size)
        content = saved('JPEG', picture)
        assert_like(decode_image(content[:-2]), np.asarray(picture))
        with pytest.raises(ImageFileError, match='truncated'):
            decode_image(content[:-30])


@pytest.mark.parametrize('kind', ['JPEG', 'PNG'])
def test_turned_photo_is_read_as_its_annotations_were_made(kind):
    content = saved(kind, exif=exif(6))
    assert orientation_of(content) == 6
    upright = np.rot90(RGB, -1)
    assert_like(decode_image(content), upright)
    assert_like(decode_image(content, size=(80, 60)), upright)
    assert_like(decode_image(content, size=(60, 80)), RGB)
    with pytest.raises(ImageFileError, match=r'80x60 .*EXIF orientation 6.* are for 30x40'):
        decode_image(content, size=(30, 40))


def test_size_of_the_annotations_where_opencv_reads_one_way_only():
    for kind, other in (('TIFF', (60, 80)), ('WEBP', (80, 60))):
        with pytest.raises(ImageFileError, match='EXIF orientation 6'):
            decode_image(saved(kind, exif=exif(6)), size=other)


def test_size_of_the_annotations_without_exif():
    assert orientation_of(saved('JPEG')) == 1
    with pytest.raises(ImageFileError, match=r'is 60x80 pixels high and wide, but .* for 80x60'):
        decode_image(saved('PNG'), size=(80, 60))


def test_other_colour_types_are_left_to_the_user():
    deep = encoded('.png', RGB.astype(np.uint16) * 16)
    assert decode_image(deep, 'unchanged').dtype == np.uint16
    assert decode_image(saved('JPEG'), 'grayscale').shape == (60, 80)
    stored = decode_image(saved('JPEG', exif=exif(6)), 'color_ignore_orientation')
    assert stored.shape == (60, 80, 3)


def test_description():
    assert describe_pixels(saved('PNG')) == dict(mode='RGB', frames=1, transparent=False, bits=8)
    assert describe_pixels(USED['animated webp'][0])['frames'] == 2
    assert describe_pixels(USED['palette with transparency'][0])['transparent']
    assert not describe_pixels(USED['rgba'][0])['transparent'], 'opaque everywhere'
    assert describe_pixels(USED['16 bits'][0])['bits'] == 16
    assert describe_pixels(b'nothing') == {}


def test_transform_gives_what_mmcv_gives(tmp_path):
    path = str(tmp_path / 'x.png')
    PICTURE.save(path)
    for options in (dict(), dict(to_float32=True), dict(color_type='grayscale'),
                    dict(imdecode_backend='pillow')):
        steps = [LoadImageFromFile(**options)]
        expected = steps[0](dict(img_path=path))
        use_checked_loading(steps)
        assert type(steps[0]) is LoadCheckedImage
        result = steps[0](dict(img_path=path))
        np.testing.assert_array_equal(result['img'], expected['img'])
        assert result['img'].dtype == expected['img'].dtype
        assert result['ori_shape'] == expected['ori_shape'] == result['img_shape']


def test_transform_names_the_file(tmp_path):
    path = tmp_path / 'x.jpg'
    path.write_bytes(WEB_PAGE)
    with pytest.raises(ImageFileError, match=rf'^{path} is not an image'):
        LoadCheckedImage()(dict(img_path=str(path)))
    assert LoadCheckedImage(ignore_empty=True)(dict(img_path=str(path))) is None
    with pytest.raises(FileNotFoundError, match='gone.jpg'):
        LoadCheckedImage()(dict(img_path=str(tmp_path / 'gone.jpg')))


def test_label_map_tells_how_a_photo_was_annotated(tmp_path):
    (tmp_path / 'x.jpg').write_bytes(saved('JPEG', exif=exif(6)))
    results = dict(img_path=str(tmp_path / 'x.jpg'), seg_map_path=str(tmp_path / 'x.png'))
    for size in ((60, 80), (80, 60)):
        Image.fromarray(np.zeros(size, np.uint8)).save(tmp_path / 'x.png')
        assert LoadCheckedImage()(dict(results))['img'].shape[:2] == size


@pytest.mark.parametrize('orientation, told', [(1, 0), (3, 1), (6, 0)])
def test_orientation_that_size_cannot_tell_is_warned_of_once(tmp_path, monkeypatch, orientation,
                                                             told):
    texts = []
    monkeypatch.setattr('flatten_mm.datasets.load_image.print_log',
                        lambda text, **options: texts.append(text))
    (tmp_path / 'x.jpg').write_bytes(saved('JPEG', exif=exif(orientation)))
    step = LoadCheckedImage()
    for _ in range(2):
        step(dict(img_path=str(tmp_path / 'x.jpg'), height=60, width=80))
    assert len(texts) == told


def test_marks_of_formats():
    for kind in ('JPEG', 'PNG', 'WEBP', 'BMP', 'TIFF'):
        assert image_file.kind_of(saved(kind)) == kind
    assert image_file.kind_of(b'Private notes') == ''
