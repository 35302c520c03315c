"""Frames of recorded episodes: what was seen then, and what the guard sent from then on."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from chunkpilot_core import spaces
from chunkpilot_core.bags import episodes, frames
from chunkpilot_core.bags.frames import FrameOptions
from chunkpilot_core.errors import BagError, UnknownNameError
from chunkpilot_core.types import EpisodeOutcome, Image, Reference, RowSource
import numpy as np
import pytest

pytestmark = pytest.mark.ros
DT_NS, START_NS = 40_000_000, 10**18
SPACE = spaces.ee_delta_space()


def test_rows_on_one_grid_come_out_bit_by_bit(tmp_path: Path, made: Any) -> None:
    recording = made.reaching(0)
    recording.sources[7] = RowSource.GUARD
    found = frames.load(made.write(tmp_path / 'bag', recording))
    assert len(found) == 60
    np.testing.assert_array_equal(found.actions, recording.rows)
    np.testing.assert_array_equal(found.state, recording.state)
    np.testing.assert_array_equal(found.inputs(('goal.x', 'ee.y'))[:, 1], recording.state[:, 1])
    np.testing.assert_array_equal(np.diff(found.stamps_ns), DT_NS)
    assert found.stamps_ns[0] == START_NS
    assert found.valid.all()
    assert found.source[7] == RowSource.GUARD
    assert (found.source == RowSource.HUMAN).sum() == 59
    assert (found.outcome, found.reward) == (EpisodeOutcome.SUCCESS, 1.0)
    assert (found.task_kind, found.task_text) == ('push', 'push it')
    assert found.space == SPACE
    with pytest.raises(UnknownNameError, match=r"Did you mean 'ee.x'"):
        found.inputs(('ee.xx',))


def test_no_observation_from_the_future_is_used(tmp_path: Path, made: Any) -> None:
    recording = made.reaching(1, 40)
    late = [START_NS + DT_NS * i + (15_000_000 if i % 2 else 0) for i in range(40)]
    recording.seen_ns = late
    found = frames.load(made.write(tmp_path / 'bag', recording))
    stamps = np.array(late)
    for stamp, state in zip(found.stamps_ns, found.state, strict=True):
        newest = recording.state[np.searchsorted(stamps, stamp, side='right') - 1]
        np.testing.assert_array_equal(state, newest)


def test_the_grid_has_the_phase_of_the_observations(tmp_path: Path, made: Any) -> None:
    recording = made.reaching(2, 50)
    recording.seen_ns = [START_NS + 30_000_000 + DT_NS * i for i in range(50)]
    found = frames.load(made.write(tmp_path / 'bag', recording))
    assert found.skew_s.max() == 0.0
    assert (found.stamps_ns[0] - START_NS) % DT_NS == 30_000_000
    # what was sent in 40 ms from there: a quarter of one row and three of the next
    expected = 0.25 * recording.rows[:-1, :3] + 0.75 * recording.rows[1:, :3]
    np.testing.assert_allclose(found.actions[:40, :3], expected[:40], atol=1e-5)


def test_rows_of_chunks_with_other_phases_add_up_to_the_same_way(
    tmp_path: Path, made: Any
) -> None:
    recording = made.reaching(3, 60)
    ends, stamp = [], START_NS
    for i in range(60):  # every eighth row was cut short by the next chunk
        length = DT_NS // 2 if i % 8 == 7 else DT_NS
        recording.rows[i, :3] *= length / DT_NS
        stamp += length
        ends.append(stamp)
    recording.ends_ns = ends
    found = frames.load(made.write(tmp_path / 'bag', recording))
    assert found.valid.sum() > 50
    assert set(np.diff(found.stamps_ns)) == {DT_NS}
    way = np.cumsum(recording.rows[:, :3], axis=0)
    for i in np.flatnonzero(found.valid[:-1] & found.valid[1:])[:40]:
        reached = [
            np.interp(found.stamps_ns[i + 1], [START_NS, *ends], [0.0, *way[:, axis]])
            for axis in range(3)
        ]
        before = [
            np.interp(found.stamps_ns[i], [START_NS, *ends], [0.0, *way[:, axis]])
            for axis in range(3)
        ]
        np.testing.assert_allclose(found.actions[i, :3], np.subtract(reached, before), atol=2e-5)


def test_a_pause_is_there_but_not_valid(tmp_path: Path, made: Any) -> None:
    recording = made.reaching(4, 40)
    recording.ends_ns = [
        START_NS + DT_NS * (i + 1) + (400_000_000 if i >= 20 else 0) for i in range(40)
    ]
    recording.seen_ns = [START_NS + DT_NS * i for i in range(60)]
    for name in ('state', 'features', 'goal'):
        values = getattr(recording, name)
        setattr(recording, name, np.concatenate([values, values[:20]]))
    found = frames.load(made.write(tmp_path / 'bag', recording))
    assert len(found) == 50
    assert not found.valid[20:30].any()
    assert found.valid[:20].all()
    assert found.valid[30:].all()
    np.testing.assert_array_equal(found.actions[30:], recording.rows[20:])


def test_a_row_that_lasted_longer_is_no_pause(tmp_path: Path, made: Any) -> None:
    recording = made.reaching(4, 40)
    recording.ends_ns = [
        START_NS + DT_NS * (i + 1) + (20_000_000 if i >= 20 else 0) for i in range(40)
    ]
    found = frames.load(made.write(tmp_path / 'bag', recording))
    assert found.valid.all()
    moved = found.actions[:, :3].sum(axis=0)
    np.testing.assert_allclose(moved, recording.rows[:, :3].sum(axis=0), atol=0.6)
    np.testing.assert_array_equal(found.actions[:20], recording.rows[:20])


def test_rows_that_came_late_are_no_pause(tmp_path: Path, made: Any) -> None:
    recording = made.reaching(9, 30)
    late = [30_000_000 if i % 5 == 2 else -30_000_000 if i % 5 == 3 else 0 for i in range(30)]
    ends = [START_NS + DT_NS * (i + 1) for i in range(30)]
    recording.ends_ns = [end + sum(late[: i + 1]) for i, end in enumerate(ends)]
    path = made.write(tmp_path / 'bag', recording)
    found = frames.load(path)
    assert found.valid.all()
    np.testing.assert_array_equal(found.actions[:2], recording.rows[:2])
    way = recording.rows[:, :3].sum(axis=0)
    np.testing.assert_allclose(found.actions[:, :3].sum(axis=0), way, atol=1e-4)
    strict = frames.load(path, FrameOptions(longest_row=1.0))
    assert 0.5 < strict.valid.mean() < 0.9


def test_an_old_observation_makes_frames_invalid(tmp_path: Path, made: Any) -> None:
    recording = made.reaching(5, 40)
    recording.seen_ns = [s for i, s in enumerate(recording.seen_ns) if not 10 <= i < 20]
    keep = [i for i in range(40) if not 10 <= i < 20]
    for name in ('state', 'features', 'goal'):
        setattr(recording, name, getattr(recording, name)[keep])
    path = made.write(tmp_path / 'bag', recording)
    found = frames.load(path)
    np.testing.assert_array_equal(np.flatnonzero(~found.valid), np.arange(12, 20))
    assert frames.load(path, FrameOptions(max_skew_s=0.5)).valid.all()


def test_another_rate_is_a_resampling_of_the_same_motion(tmp_path: Path, made: Any) -> None:
    recording = made.reaching(6, 40)
    path = made.write(tmp_path / 'bag', recording)
    found = frames.load(path, FrameOptions(dt_s=0.08))
    assert len(found) == 20
    pairs = recording.rows.reshape(20, 2, 4)
    small = np.abs(pairs[:, :, :3].sum(axis=1)).max(axis=1) <= 1.0
    np.testing.assert_allclose(
        found.actions[small, :3], pairs[small, :, :3].sum(axis=1), atol=1e-5
    )
    np.testing.assert_allclose(found.actions[:, 3], pairs[:, 1, 3])  # absolute: where it ended


def test_images_are_those_that_came_with_the_observation(tmp_path: Path, made: Any) -> None:
    recording = made.reaching(7, 20)
    for i in range(0, 20, 4):
        pixels = np.full((24, 32, 3), 10 * i, np.uint8)
        recording.images.append((recording.seen_ns[i], Image('front', 0, pixels)))
    path = made.write(tmp_path / 'bag', recording)
    found = frames.load(path, FrameOptions(cameras=('front',)))
    seen = found.images['front'].mean(axis=(1, 2, 3))
    np.testing.assert_allclose(seen, np.repeat(10.0 * np.arange(0, 20, 4), 4), atol=1.5)
    aged = frames.load(path, FrameOptions(cameras=('front',), max_image_age_s=0.05))
    assert aged.valid.sum() == 10
    with pytest.raises(BagError, match=r"camera of the bag 'frnt'. Did you mean 'front'"):
        frames.load(path, FrameOptions(cameras=('frnt',)))


def test_what_makes_no_frames_says_why(tmp_path: Path, made: Any) -> None:
    episode = episodes.load(made.write(tmp_path / 'bag', made.reaching(8, 10)))
    other = [replace(batch, episode_id='other') for batch in episode.rows]
    with pytest.raises(BagError, match=r"no executed rows of episode 'e8'.*only of other"):
        frames.align(replace(episode, rows=tuple(other)))
    with pytest.raises(BagError, match='no observations'):
        frames.align(replace(episode, observations=()))
    with pytest.raises(BagError, match='which no policy/info defines'):
        frames.align(replace(episode, spaces={}))
    damaged = replace(episode.rows[-1], stamps_ns=(2**62, 2**62 + 1))
    with pytest.raises(BagError, match=r'frames of 0.04 s, at most 100000 allowed'):
        frames.align(replace(episode, rows=(*episode.rows[:-1], damaged)))
    arm = replace(SPACE.groups[0], reference=Reference.CHUNK_START)
    relative = spaces.make(replace(SPACE, groups=(arm, SPACE.groups[1])))
    rows = [replace(batch, space_hash=relative.hash) for batch in episode.rows]
    with pytest.raises(BagError, match='relative to the start of their chunk'):
        frames.align(replace(episode, rows=tuple(rows), spaces={relative.hash: relative}))
    with pytest.raises(BagError, match=str(tmp_path / 'none')):
        frames.load(tmp_path / 'none')
