"""Frames of the video files of LeRobot datasets, as JPEG."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chunkpilot_core.bags.lerobot.contents import inside
from chunkpilot_core.errors import BagError
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

QUALITY = 95  # of the JPEG: what the video lost already is more
MAX_INDEX = 10**6


@dataclass(frozen=True, slots=True)
class Place:
    """Where the frames of one episode are: a file, and the time in it [s]."""

    file: Path
    start_s: float


def find(root: Path, version: str, column: str, episode: int) -> Place:
    """
    Return where the frames of one camera in one episode are.

    :raises BagError: the dataset does not say, or says what can't be
    """
    if version != 'v3.0':
        chunk = episode // 1000
        file = root / f'videos/chunk-{chunk:03d}' / column / f'episode_{episode:06d}.mp4'
        return _existing(Place(file, 0.0))
    keys = [f'videos/{column}/{name}' for name in ('chunk_index', 'file_index', 'from_timestamp')]
    for path in sorted((root / 'meta/episodes').glob('chunk-*/*.parquet')):
        try:
            table = pq.read_table(inside(root, path), columns=['episode_index', *keys])
        except (OSError, ValueError, KeyError, pa.ArrowException) as error:
            raise BagError(f'{path}: {error}') from error
        rows = table.filter(pc.equal(table['episode_index'], episode)).to_pylist()
        if rows:
            chunk, number, start_s = (rows[0][key] for key in keys)
            whole = all(isinstance(n, int) and 0 <= n < MAX_INDEX for n in (chunk, number))
            if not (whole and isinstance(start_s, int | float) and 0 <= start_s < 1e9):
                raise BagError(f'{path}: episode {episode} at {chunk}, {number}, {start_s}')
            file = root / 'videos' / column / f'chunk-{chunk:03d}' / f'file-{number:03d}.mp4'
            return _existing(Place(file, float(start_s)))
    raise BagError(f'{root}: meta/episodes does not tell the video of episode {episode}')


def _existing(place: Place) -> Place:
    if not place.file.is_file():
        raise BagError(f'{place.file}: no such video')
    return place


def frames(place: Place, count: int) -> Iterator[bytes]:
    """
    Iterate over frames from where an episode begins, as JPEG.

    :raises BagError: the video can't be decoded here, or ends before
    """
    import cv2

    capture = cv2.VideoCapture(str(place.file), cv2.CAP_FFMPEG)
    try:
        if not capture.isOpened():
            raise BagError(f'{place.file}: can not be opened as a video')
        fps = capture.get(cv2.CAP_PROP_FPS)
        first = round(place.start_s * fps)
        if first and not (
            capture.set(cv2.CAP_PROP_POS_FRAMES, first)
            and round(capture.get(cv2.CAP_PROP_POS_FRAMES)) == first
        ):
            raise BagError(f'{place.file}: frame {first} can not be found')
        for number in range(count):
            good, pixels = capture.read()
            if not good:
                raise BagError(f'{place.file}: {number} of {count} frames could be decoded')
            yield _jpeg(cv2, pixels)
    finally:
        capture.release()


def _jpeg(cv2: Any, pixels: Any) -> bytes:
    _, buffer = cv2.imencode('.jpg', pixels, [cv2.IMWRITE_JPEG_QUALITY, QUALITY])
    return bytes(buffer.tobytes())
