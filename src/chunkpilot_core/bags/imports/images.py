"""Camera messages of any ROS as compressed pictures; what is compressed already stays as it is."""

from typing import Any

from chunkpilot_core import pictures
from chunkpilot_core.bags.imports.recording import Picture
from chunkpilot_core.errors import BagError
import numpy as np

QUALITY = 90
MAX_BYTES = 64 * 1024 * 1024
_RAW = {'rgb8': 3, 'bgr8': 3, 'rgba8': 4, 'bgra8': 4, 'mono8': 1}


def picture(camera: str, stamp_ns: int, message: Any) -> Picture:
    """
    Translate a CompressedImage or an Image with 8 bits per channel.

    :raises BagError: another message, encoding, or sizes that disagree
    """
    if hasattr(message, 'format') and hasattr(message, 'data'):
        data = bytes(message.data)
        kind = pictures.kind_of(data)
        if not kind:
            raise BagError(f'{camera}: image of format {message.format!r}, must be jpeg or png')
        return Picture(camera, stamp_ns, kind, data)
    if not all(hasattr(message, name) for name in ('encoding', 'height', 'width', 'step')):
        raise BagError(f'{camera}: {type(message).__name__} is no image')
    return Picture(camera, stamp_ns, 'jpeg', _encode(camera, message))


def _encode(camera: str, message: Any) -> bytes:
    import cv2

    channels = _RAW.get(message.encoding)
    if channels is None:
        raise BagError(f'{camera}: encoding {message.encoding!r}, known: {", ".join(_RAW)}')
    height, width, step = int(message.height), int(message.width), int(message.step)
    used = width * channels
    if not (0 < used <= step and height > 0 and height * step <= MAX_BYTES):
        raise BagError(f'{camera}: image of {width} x {height} with {step} bytes a row')
    if len(message.data) != height * step:
        raise BagError(f'{camera}: {len(message.data)} bytes, {height} rows of {step} expected')
    rows = np.frombuffer(bytes(message.data), np.uint8).reshape(height, step)[:, :used]
    pixels = rows.reshape(height, width, channels)
    if message.encoding.startswith('rgb'):
        code = cv2.COLOR_RGB2BGR if channels == 3 else cv2.COLOR_RGBA2BGR
        pixels = np.asarray(cv2.cvtColor(np.ascontiguousarray(pixels), code), np.uint8)
    elif channels == 4:
        pixels = pixels[:, :, :3]
    _, buffer = cv2.imencode('.jpg', pixels, [cv2.IMWRITE_JPEG_QUALITY, QUALITY])
    return bytes(buffer.tobytes())
