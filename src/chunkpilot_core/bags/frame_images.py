"""The camera images that belong to the frames of an episode."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from chunkpilot_core import pictures
from chunkpilot_core.bags import decode
from chunkpilot_core.bags.reader import BagReader
from chunkpilot_core.errors import BagError, InvalidDataError, UnknownNameError
from chunkpilot_core.types import nanoseconds
import numpy as np
from numpy.typing import NDArray

I64 = NDArray[np.int64]
U8 = NDArray[np.uint8]
MAX_BYTES = 2**31  # of the pixels of one episode
_TYPE = 'chunkpilot/msg/ObservationImages'
_Shot = tuple[int, str, bytes]  # stamp of the observation, format, compressed


@dataclass(frozen=True, slots=True)
class Pictures:
    """The images of one camera that belong to T frames, still compressed; -1 where none."""

    camera: str
    shots: Sequence[_Shot]
    chosen: I64

    def encoded(self, frames: Iterable[int]) -> list[bytes]:
        """Return the compressed images of some frames, which all have one."""
        return [self.shots[int(self.chosen[i])][2] for i in frames]

    @property
    def size(self) -> tuple[int, int]:
        """
        Rows and columns of the images.

        :raises BagError: the first one is damaged, or there is none
        """
        first = np.flatnonzero(self.chosen >= 0)
        if not len(first):
            raise BagError(f'{self.camera}: no image is young enough for any frame')
        pixels = self._decode(int(self.chosen[first[0]]))
        return int(pixels.shape[0]), int(pixels.shape[1])

    def pixels(self, frames: NDArray[np.int64]) -> U8:
        """
        Return the images of some frames, (len(frames), rows, columns, 3) RGB; zeros for none.

        :raises BagError: damaged, of several sizes, or too many to hold
        """
        size = self.size
        chosen = self.chosen[frames]
        if len(chosen) * size[0] * size[1] * 3 > MAX_BYTES:
            raise BagError(
                f'{self.camera}: {len(chosen)} images of {size[1]} x {size[0]}, at most '
                f'{MAX_BYTES} bytes an episode allowed; cut the bag into shorter ones'
            )
        out = np.zeros((len(chosen), *size, 3), np.uint8)
        for number in np.unique(chosen[chosen >= 0]).tolist():
            pixels = self._decode(number)
            if pixels.shape != out.shape[1:]:
                raise BagError(
                    f'{self.camera}: image of {pixels.shape[1]} x {pixels.shape[0]} at '
                    f'{self.shots[number][0]} ns, the first one is {size[1]} x {size[0]}'
                )
            out[chosen == number] = pixels
        return out

    def _decode(self, number: int) -> U8:
        stamp_ns, kind, data = self.shots[number]
        try:
            return pictures.decode(self.camera, kind, data)
        except InvalidDataError as error:
            raise BagError(f'image at {stamp_ns} ns: {error}') from error


def choose(
    path: str | Path, stamps_ns: I64, cameras: Sequence[str], max_age_s: float
) -> tuple[dict[str, Pictures], NDArray[np.bool_]]:
    """
    Find for every frame the newest image that came with an observation up to then.

    :param stamps_ns: of the frames, shape (T,)
    :param max_age_s: an older image counts as none [s]
    :returns: pictures by camera, and whether every camera has one (T,)
    :raises BagError: a camera without images, or a damaged bag
    """
    found = _shots(path, cameras)
    images, known = {}, np.ones(len(stamps_ns), bool)
    for camera in cameras:
        shots = sorted(found[camera], key=lambda shot: shot[0])
        shot_ns = np.array([shot[0] for shot in shots], np.int64)
        newest = np.searchsorted(shot_ns, stamps_ns, side='right') - 1
        age_ns = stamps_ns - shot_ns[np.maximum(newest, 0)]
        fresh = (newest >= 0) & (age_ns <= nanoseconds(max_age_s))
        images[camera] = Pictures(camera, shots, np.where(fresh, newest, -1))
        known &= fresh
    return images, known


def load(
    path: str | Path, stamps_ns: I64, cameras: Sequence[str], max_age_s: float
) -> tuple[dict[str, U8], NDArray[np.bool_]]:
    """
    Return the images of :func:`choose` as pixels, by camera (T, rows, columns, 3) RGB.

    :raises BagError: as there, or images that are damaged, of several sizes or too many to hold
    """
    chosen, known = choose(path, stamps_ns, cameras, max_age_s)
    every = np.arange(len(stamps_ns))
    return {name: picture.pixels(every) for name, picture in chosen.items()}, known


def _shots(path: str | Path, cameras: Sequence[str]) -> dict[str, list[_Shot]]:
    found: dict[str, list[_Shot]] = {camera: [] for camera in cameras}
    there: set[str] = set()
    with BagReader(path) as bag:
        topics = [topic for topic, kind in bag.topics.items() if kind == _TYPE]
        for message in bag.messages(topics):
            msg = bag.decode(message)
            stamp_ns = decode.stamp_ns(msg.header.stamp)
            for name, image in zip(msg.names, msg.images, strict=False):
                there.add(str(name))
                if name in found:
                    found[name].append((stamp_ns, str(image.format), bytes(image.data)))
    for camera in cameras:
        if camera not in there:
            raise BagError(str(UnknownNameError('camera of the bag', camera, there)))
    return found
