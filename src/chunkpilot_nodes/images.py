"""Camera messages to pixels and back; whatever arrives, the answer is an image or a reason."""

from chunkpilot_core import pictures
from chunkpilot_core.errors import InvalidDataError, UnknownNameError
from chunkpilot_core.types import Image
from chunkpilot_nodes.convert import to_ns
import cv2
import numpy as np
from sensor_msgs.msg import CompressedImage
from sensor_msgs.msg import Image as RawImage

_RAW = {
    'rgb8': (3, None),
    'bgr8': (3, cv2.COLOR_BGR2RGB),
    'rgba8': (4, cv2.COLOR_RGBA2RGB),
    'bgra8': (4, cv2.COLOR_BGRA2RGB),
    'mono8': (1, cv2.COLOR_GRAY2RGB),
}


def from_compressed(name: str, msg: CompressedImage) -> Image:
    """
    Decode a JPEG or PNG image.

    :param name: of the camera
    :raises InvalidDataError: empty, huge, truncated or damaged, or of another format
    """
    pixels = pictures.decode(name, msg.format, bytes(msg.data))
    return Image(name, to_ns(msg.header.stamp), pixels)


def from_raw(name: str, msg: RawImage) -> Image:
    """
    Take over an uncompressed image.

    :param name: of the camera
    :raises InvalidDataError: an encoding other than 8-bit colour or grey, or sizes that disagree
    """
    if msg.encoding not in _RAW:
        raise InvalidDataError(f'{name}: {UnknownNameError("encoding", msg.encoding, _RAW)}')
    channels, conversion = _RAW[msg.encoding]
    used = msg.width * channels
    if msg.width == 0 or msg.height == 0 or msg.step < used:
        raise InvalidDataError(
            f'{name}: step {msg.step} of {msg.width} x {msg.height} {msg.encoding}, '
            f'must be at least {used} of a non-empty image'
        )
    if len(msg.data) != msg.step * msg.height:
        raise InvalidDataError(
            f'{name}: {len(msg.data)} bytes, step {msg.step} times height {msg.height} '
            f'is {msg.step * msg.height}'
        )
    rows = np.frombuffer(msg.data, np.uint8).reshape(msg.height, msg.step)[:, :used]
    pixels = rows.reshape(msg.height, msg.width, channels)
    if conversion is not None:
        pixels = np.asarray(cv2.cvtColor(np.ascontiguousarray(pixels), conversion), np.uint8)
    return Image(name, to_ns(msg.header.stamp), np.ascontiguousarray(pixels))


def to_compressed(image: Image, quality: int = 90) -> CompressedImage:
    """Encode an image as JPEG, without a stamp."""
    flags = [cv2.IMWRITE_JPEG_QUALITY, quality]
    _, buffer = cv2.imencode('.jpg', cv2.cvtColor(image.pixels, cv2.COLOR_RGB2BGR), flags)
    return CompressedImage(format='jpeg', data=buffer.tobytes())
