"""Compressed images from outside as pixels; whatever arrives, the answer is pixels or a reason."""

from chunkpilot_core.errors import InvalidDataError
import numpy as np
from numpy.typing import NDArray

MAX_BYTES = 64 * 1024 * 1024
_MARKS = {'jpeg': (b'\xff\xd8', b'\xff\xd9'), 'png': (b'\x89PNG', b'IEND\xaeB`\x82')}


def kind_of(data: bytes) -> str:
    """Return ``'jpeg'`` or ``'png'`` by how an image begins, ``''`` for neither."""
    return next((kind for kind, (head, _) in _MARKS.items() if data.startswith(head)), '')


def decode(name: str, kind: str, data: bytes) -> NDArray[np.uint8]:
    """
    Return the pixels (rows, columns, 3) RGB of a JPEG or PNG image.

    :param name: of the camera, for errors
    :param kind: what the sender says, e.g. ``'rgb8; jpeg compressed bgr8'``
    :raises InvalidDataError: empty, huge, truncated or damaged, or of another format
    """
    import cv2  # an extra: whoever has no cameras does without

    found = next((mark for mark in _MARKS if mark in kind.replace('jpg', 'jpeg')), None)
    if found is None:
        raise InvalidDataError(f'{name}: image format {kind!r}, must be jpeg or png')
    if not 0 < len(data) <= MAX_BYTES:
        raise InvalidDataError(f'{name}: {found} of {len(data)} bytes, allowed 1 to {MAX_BYTES}')
    head, tail = _MARKS[found]
    # OpenCV fills what is missing of a truncated JPEG with grey and calls it a success
    if not data.startswith(head) or tail not in data[-64:]:
        raise InvalidDataError(f'{name}: {found} of {len(data)} bytes is truncated or damaged')
    pixels = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR_RGB)
    if pixels is None:
        raise InvalidDataError(f'{name}: {found} of {len(data)} bytes cannot be decoded')
    return np.asarray(pixels, np.uint8)
