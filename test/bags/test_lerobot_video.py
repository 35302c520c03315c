"""Video files of LeRobot datasets: which frames are an episode's, and what can't be."""

from pathlib import Path
from typing import Any

from chunkpilot_core.bags.lerobot import video
from chunkpilot_core.errors import BagError
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

cv2 = pytest.importorskip('cv2')
COLUMN, FPS = 'observation.images.front', 10
PLACE = {'chunk_index': 0, 'file_index': 0, 'from_timestamp': 0.5}


def tell(root: Path, **changes: Any) -> Path:
    """Write what the metadata of a v3.0 dataset says of episode 1."""
    file = root / 'meta/episodes/chunk-000/file-000.parquet'
    file.parent.mkdir(parents=True, exist_ok=True)
    place = {f'videos/{COLUMN}/{name}': [it] for name, it in {**PLACE, **changes}.items()}
    pq.write_table(pa.table({'episode_index': [1], **place}), file)
    return root


def film(file: Path, frames: int) -> None:
    """Write a video whose frame i has brightness 20 i."""
    file.parent.mkdir(parents=True)
    writer = cv2.VideoWriter(str(file), cv2.VideoWriter_fourcc(*'mp4v'), FPS, (64, 48))
    for i in range(frames):
        writer.write(np.full((48, 64, 3), 20 * i, np.uint8))
    writer.release()


def test_the_frames_of_an_episode_begin_where_the_metadata_says(tmp_path: Path) -> None:
    film(tmp_path / f'videos/{COLUMN}/chunk-000/file-000.mp4', 12)
    place = video.find(tell(tmp_path), 'v3.0', COLUMN, 1)
    pictures = [np.frombuffer(data, np.uint8) for data in video.frames(place, 4)]
    brightness = [cv2.imdecode(data, cv2.IMREAD_COLOR).mean() for data in pictures]
    np.testing.assert_allclose(brightness, [100, 120, 140, 160], atol=5)
    with pytest.raises(BagError, match='7 of 8 frames could be decoded'):
        list(video.frames(place, 8))


def test_older_formats_have_a_file_for_each_episode(tmp_path: Path) -> None:
    file = tmp_path / f'videos/chunk-001/{COLUMN}/episode_001002.mp4'
    film(file, 2)
    assert video.find(tmp_path, 'v2.1', COLUMN, 1002) == video.Place(file, 0.0)


@pytest.mark.parametrize(
    'changes',
    [
        {'chunk_index': None},
        {'file_index': '../../secret'},
        {'file_index': 0.5},
        {'chunk_index': -1},
        {'from_timestamp': None},
        {'from_timestamp': float('nan')},
        {'from_timestamp': 'soon'},
    ],
)
def test_a_place_that_can_not_be_is_an_error(changes: Any, tmp_path: Path) -> None:
    with pytest.raises(BagError, match='episode 1 at'):
        video.find(tell(tmp_path, **changes), 'v3.0', COLUMN, 1)


def test_metadata_without_the_video_is_an_error(tmp_path: Path) -> None:
    root = tell(tmp_path)
    with pytest.raises(BagError, match='does not tell the video of episode 2'):
        video.find(root, 'v3.0', COLUMN, 2)
    with pytest.raises(BagError, match='no such video'):
        video.find(root, 'v3.0', COLUMN, 1)
    with pytest.raises(BagError, match='parquet'):
        video.find(root, 'v3.0', 'observation.images.wrist', 1)
