"""
Whether the images of a camera still show the scene (D4 frozen, D5 dark, saturated, blank).

Every 16th pixel of every 16th row is looked at (about 20 us for 640 x 480 pixels); the whole image
only where those equal the ones before. Live images are never equal: their sensors are noisy.
"""

import zlib

from chunkpilot_core.types import Image
import numpy as np
from numpy.typing import NDArray

STEP = 16
SAME = 0.2  # [grey levels] mean difference of equal images
FROZEN_FRAMES = 5
DARK, SATURATED, FLAT = 5.0, 250.0, 2.0  # [grey levels] mean, mean, standard deviation
BLANK_FRAMES = 3
MOVING = 0.05  # [rad/s] of the fastest joint: a scene with a moving arm changes


class ImageHealth:
    """The newest images of one camera, told one by one."""

    def __init__(self) -> None:
        self._sample: NDArray[np.int16] | None = None
        self._checksum: int | None = None  # of the whole image, made when it is needed
        self._pixels: NDArray[np.uint8] | None = None
        self._same = self._blank = 0
        self._fault = ''

    def see(self, image: Image, speed: float) -> None:
        """
        Look at the next image.

        :param speed: of the fastest joint when it was taken [rad/s]
        """
        sample = image.pixels[::STEP, ::STEP].astype(np.int16)
        if not self._repeated(image, sample):
            self._same = 0
        elif speed > MOVING:
            self._same += 1
        self._sample, self._pixels = sample, image.pixels
        self._fault = _fault(sample)
        self._blank = self._blank + 1 if self._fault else 0

    def _repeated(self, image: Image, sample: NDArray[np.int16]) -> bool:
        """Return whether an image is the one before, to the last bit."""
        before, pixels, checksum = self._sample, self._pixels, self._checksum
        self._checksum = None
        if before is None or pixels is None or before.shape != sample.shape:
            return False
        if float(np.abs(sample - before).mean()) >= SAME:
            return False
        if checksum is None:
            checksum = zlib.adler32(np.ascontiguousarray(pixels).data)
        self._checksum = zlib.adler32(np.ascontiguousarray(image.pixels).data)
        return self._checksum == checksum

    @property
    def frozen(self) -> bool:
        """Whether several images were equal while the arm moved."""
        return self._same >= FROZEN_FRAMES - 1

    @property
    def fault(self) -> str:
        """What makes the images useless, '' for nothing."""
        if self.frozen:
            return f'{self._same + 1} equal images while the arm moves'
        return self._fault if self._blank >= BLANK_FRAMES else ''


def _fault(sample: NDArray[np.int16]) -> str:
    mean, spread = float(sample.mean()), float(sample.std())
    if mean < DARK:
        return f'dark, mean {mean:.1f}'
    if mean > SATURATED:
        return f'saturated, mean {mean:.1f}'
    return f'blank, standard deviation {spread:.1f}' if spread < FLAT else ''
