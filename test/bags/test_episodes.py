"""The bag of an episode as core dataclasses, from messages as the nodes send them."""

from dataclasses import fields
from pathlib import Path
from typing import Any

from chunkpilot_core.bags import episodes
from chunkpilot_core.bags.writer import BagWriter, TopicQos
from chunkpilot_core.errors import BagError
from chunkpilot_core.types import (
    ActionChunk,
    ChunkPart,
    EpisodeOutcome,
    ExecutedRows,
    Health,
    Id,
    ObjectEstimate,
    ObjectStatus,
    Observation,
    RowSource,
    Task,
)
import numpy as np
import pytest

pytest.importorskip('rclpy')
from chunkpilot.msg import EpisodeEvent, Outcome
from chunkpilot_nodes import convert
from rclpy.serialization import serialize_message

RNG = np.random.default_rng(0)
TASK = Task('t2', 'push', 'push it', ('goal.x',), np.array([0.25], np.float32))
OBSERVATION = Observation(
    Id(5, 6),
    3_000_000_001,
    2_000_000_002,
    ('ee.x', 'ee.y'),
    np.array([0.5, -0.5], np.float32),
    ('object.x',),
    np.array([np.nan], np.float32),
    TASK.goal_names,
    TASK.goal,
    (
        ObjectEstimate(
            'object',
            2_000_000_002,
            np.array([0.1, 0.2, 0.02]),
            np.array([0.0, 0.0, 0.0, 1.0]),
            np.diag(np.arange(1.0, 7.0)),
            ObjectStatus.HELD,
            0.75,
        ),
    ),
    9,
    't2',
    {'joint_states': 0.0, 'front': 0.25},
    ('side',),
    dropped=('front',),
    health=Health.DEGRADED,
    health_reason='object not found yet',
)
CHUNK = ActionChunk(
    Id(7, 8),
    Id(9, 10),
    11,
    't2',
    Id(5, 6),
    3_000_000_001,
    3_000_000_001,
    0.04,
    RNG.normal(size=(16, 4)).astype(np.float32),
    'hash',
    'flow',
    3,
    stamp_ns=3_010_000_000,
    observation_oldest_ns=2_000_000_002,
    parts=(ChunkPart(0, 16, Id(5, 6), 3_000_000_001, executable_rows=16),),
    samples=RNG.normal(size=(2, 16, 4)).astype(np.float32),
    diagnostics={'spread': 0.5},
    answered_by='flow',
    inference_s=0.0625,
    max_row_age_s=1.0,
)
ROWS = ExecutedRows(
    Id(1, 2),
    3_040_000_000,
    11,
    Id(7, 8),
    4,
    0.04,
    RNG.normal(size=(2, 4)).astype(np.float32),
    (RowSource.POLICY, RowSource.GUARD),
    (3_080_000_000, 3_120_000_000),
    ('a', 'b', 'c'),
    RNG.normal(size=(2, 3)),
    'hash',
    't2',
    'episode-2',
)


def assert_same(got: Any, expected: Any) -> None:
    """Compare dataclasses field by field, arrays by value with NaN equal to NaN."""
    for field in fields(expected):
        one, two = getattr(got, field.name), getattr(expected, field.name)
        if isinstance(two, np.ndarray):
            np.testing.assert_array_equal(one, two, err_msg=field.name)
            assert one.dtype == two.dtype
        elif isinstance(two, tuple) and two and isinstance(two[0], ObjectEstimate):
            assert_same(one[0], two[0])
        else:
            assert one == two, field.name


def write(path: Path, *messages: tuple[str, Any]) -> Path:
    with BagWriter(path) as bag:
        for i, (topic, msg) in enumerate(messages):
            package, kind = type(msg).__module__.split('.')[0], type(msg).__name__
            bag.add_topic(topic, f'{package}/msg/{kind}', TopicQos())
            bag.write(topic, i, bytes(serialize_message(msg)))
    return path


def event(number: int, kind: int = EpisodeEvent.START) -> EpisodeEvent:
    return EpisodeEvent(
        event=kind, episode_id=f'episode-{number}', task_id=f't{number}', keys=['a'], values=['b']
    )


def test_an_episode_comes_back_as_it_was(tmp_path: Path) -> None:
    path = write(
        tmp_path / 'bag',
        ('/arm/outcome', Outcome(episode_id='episode-1', outcome=Outcome.FAILURE)),
        ('/arm/task', convert.task_to_msg(Task('t1', 'reach'), 0)),
        ('/arm/task', convert.task_to_msg(TASK, 0)),
        ('/arm/episode', event(2)),
        ('/arm/observation', convert.observation_to_msg(OBSERVATION)),
        ('/arm/chunk', convert.chunk_to_msg(CHUNK)),
        ('/arm/executed_rows', convert.executed_rows_to_msg(ROWS)),
        ('/arm/outcome', Outcome(episode_id='episode-2', outcome=Outcome.SUCCESS, duration_s=2.5)),
        ('/arm/episode', event(2, EpisodeEvent.END)),
    )
    episode = episodes.load(path)
    assert (episode.id, episode.outcome) == ('episode-2', EpisodeOutcome.SUCCESS)
    assert episode.duration_s == 2.5
    assert episode.metadata['a'] == 'b'
    assert episode.task is not None
    assert_same(episode.task, TASK)
    assert_same(episode.observations[0], OBSERVATION)
    assert_same(episode.chunks[0], CHUNK)
    assert_same(episode.rows[0], ROWS)
    assert episodes.bags(tmp_path) == [path]


def test_an_outcome_of_another_episode_is_not_taken(tmp_path: Path) -> None:
    other = Outcome(episode_id='episode-1', outcome=Outcome.SUCCESS)
    path = write(tmp_path / 'bag', ('/outcome', other), ('/episode', event(2)))
    assert episodes.load(path).outcome is EpisodeOutcome.UNKNOWN


def test_the_start_of_the_next_episode_is_not_taken(tmp_path: Path) -> None:
    path = write(
        tmp_path / 'bag',
        ('/task', convert.task_to_msg(TASK, 0)),
        ('/episode', event(2)),
        ('/executed_rows', convert.executed_rows_to_msg(ROWS)),
        ('/outcome', Outcome(episode_id='episode-2', outcome=Outcome.SUCCESS)),
        ('/episode', event(3)),  # the recorder was late
    )
    episode = episodes.load(path)
    assert (episode.id, episode.outcome) == ('episode-2', EpisodeOutcome.SUCCESS)


def test_a_bag_without_an_episode_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / 'bag', ('/task', convert.task_to_msg(TASK, 0)))
    with pytest.raises(BagError, match='no episode starts in it'):
        episodes.load(path)
