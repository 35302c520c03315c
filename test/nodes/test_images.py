"""Camera messages to pixels: what is taken, what is refused."""

import pytest

pytest.importorskip('sensor_msgs')
from chunkpilot_core.errors import InvalidDataError
from chunkpilot_core.types import Image
from chunkpilot_nodes import images
import cv2
import numpy as np
from sensor_msgs.msg import CompressedImage
from sensor_msgs.msg import Image as RawImage

pytestmark = pytest.mark.ros


def gradient() -> np.ndarray:
    rows, columns = np.mgrid[0:24, 0:32]
    return np.stack((rows * 8, columns * 6, rows + columns), axis=2).astype(np.uint8)


def raw(encoding: str, pixels: np.ndarray, padding: int = 0) -> RawImage:
    height, width = pixels.shape[:2]
    rows = pixels.reshape(height, -1)
    padded = np.hstack((rows, np.zeros((height, padding), np.uint8)))
    return RawImage(
        encoding=encoding, height=height, width=width, step=padded.shape[1], data=padded.tobytes()
    )


def test_jpeg_and_png_round_trip() -> None:
    pixels = gradient()
    msg = images.to_compressed(Image('front', 0, pixels), quality=100)
    msg.header.stamp.sec = 3
    image = images.from_compressed('front', msg)
    assert (image.name, image.stamp_ns) == ('front', 3_000_000_000)
    assert np.abs(image.pixels.astype(int) - pixels).mean() < 5  # JPEG halves colour resolution
    png = cv2.imencode('.png', cv2.cvtColor(pixels, cv2.COLOR_RGB2BGR))[1].tobytes()
    msg = CompressedImage(format='rgb8; png compressed', data=png)
    np.testing.assert_array_equal(images.from_compressed('front', msg).pixels, pixels)


@pytest.mark.parametrize('padding', [0, 5])
@pytest.mark.parametrize(
    ('encoding', 'conversion'),
    [
        ('rgb8', None),
        ('bgr8', cv2.COLOR_RGB2BGR),
        ('rgba8', cv2.COLOR_RGB2RGBA),
        ('bgra8', cv2.COLOR_RGB2BGRA),
    ],
)
def test_raw_encodings_give_rgb(encoding: str, conversion: int | None, padding: int) -> None:
    pixels = gradient()
    sent = pixels if conversion is None else cv2.cvtColor(pixels, conversion)
    np.testing.assert_array_equal(
        images.from_raw('front', raw(encoding, sent, padding)).pixels, pixels
    )


def test_grey_becomes_three_channels() -> None:
    grey = gradient()[:, :, :1]
    pixels = images.from_raw('front', raw('mono8', grey)).pixels
    np.testing.assert_array_equal(pixels, np.repeat(grey, 3, axis=2))


@pytest.mark.parametrize(
    ('changes', 'reason'),
    [
        ({'encoding': 'rgb_8'}, "Did you mean 'rgb8'"),
        ({'step': 20}, 'step 20'),
        ({'step': 100}, '2304 bytes'),
        ({'data': b''}, '0 bytes'),
        ({'width': 0}, 'non-empty'),
        ({'height': 4_000_000_000}, 'step 96 times height'),
    ],
)
def test_raw_images_that_disagree_with_themselves_are_refused(changes: dict, reason: str) -> None:
    msg = raw('rgb8', gradient())
    for name, value in changes.items():
        setattr(msg, name, value)
    with pytest.raises(InvalidDataError, match=reason):
        images.from_raw('front', msg)
