"""From messages to episodes to examples: joined by stamps and ids, only what was really sent."""

from dataclasses import replace

from chunkpilot_core import robot as robots
from chunkpilot_core import spaces
from chunkpilot_core.errors import InvalidDataError
from chunkpilot_core.kinematics import Kinematics
from chunkpilot_core.learning.runtime.buffer import ReplayBuffer
from chunkpilot_core.learning.runtime.episodes import Episode, EpisodeAssembler
from chunkpilot_core.learning.runtime.windows import Windows, windows
from chunkpilot_core.types import (
    ActionChunk,
    EpisodeOutcome,
    ExecutedRows,
    Id,
    nanoseconds,
    Observation,
    PolicySpec,
    RowSource,
)
import numpy as np
import pytest

SPACE = spaces.ee_delta_space()
SPEC = PolicySpec('mlp', 'test', 1, SPACE, 4, 0.04, input_names=('ee.x',))
DT_NS = nanoseconds(0.04)
LEARNED = (RowSource.POLICY, RowSource.HUMAN)


def _path(stamp_s: float) -> np.ndarray:
    """Return a smooth target (4,): position and gripper width."""
    return np.array([0.1 * stamp_s, -0.05 * stamp_s, 0.2, 0.04 + 0.01 * stamp_s])


def _episode(ends_s, dts_s=None, sources=None, observed_s=()) -> Episode:
    ends_ns = np.array([nanoseconds(end) for end in ends_s], np.int64)
    lengths = [DT_NS if dts_s is None else nanoseconds(dts_s[i]) for i in range(len(ends_s))]
    return Episode(
        'e',
        't',
        EpisodeOutcome.SUCCESS,
        np.array([[stamp] for stamp in observed_s], np.float32).reshape(-1, 1),
        np.array([nanoseconds(stamp) for stamp in observed_s], np.int64),
        np.array([_path(end) for end in ends_s]),
        ends_ns - np.array(lengths),
        ends_ns,
        np.array(sources or [RowSource.POLICY] * len(ends_s), np.uint8),
    )


def test_examples_are_the_path_on_the_grid_of_the_observation() -> None:
    """Two chunks of different phase: the first is replaced in the middle of a row."""
    ends = [1.04, 1.08, 1.12, 1.13, 1.17, 1.21, 1.25, 1.29, 1.33, 1.37]
    found = windows(_episode(ends, observed_s=[1.05]), SPEC, LEARNED)
    assert found.valid.all()
    targets = np.array([_path(1.05 + 0.04 * k) for k in range(5)])
    expected = spaces.to_rows(SPACE, targets[1:], targets[0])
    np.testing.assert_allclose(found.rows[0], expected, atol=1e-6)


def test_only_rows_after_the_observation_matter() -> None:
    ends = [1.0 + 0.04 * i for i in range(12)]
    episode = _episode(ends, observed_s=[1.2])
    changed = episode.targets.copy()
    changed[: np.searchsorted(episode.ends_ns, nanoseconds(1.2))] += 0.3
    before = windows(episode, SPEC, LEARNED)
    after = windows(replace(episode, targets=changed), SPEC, LEARNED)
    np.testing.assert_allclose(before.rows, after.rows, atol=1e-6)


def test_rows_of_others_and_gaps_are_masked() -> None:
    ends = [1.0 + 0.04 * i for i in range(8)] + [1.6 + 0.04 * i for i in range(8)]
    sources = [RowSource.POLICY] * 16
    sources[3] = RowSource.GUARD
    sources[12] = RowSource.HUMAN
    observed = [1.0, 1.16, 1.6]
    found = windows(_episode(ends, sources=sources, observed_s=observed), SPEC, LEARNED)
    assert found.valid.tolist() == [
        [True, True, False, True],  # row 3 is the guard's
        [True, True, True, False],  # a gap begins at 1.28
        [True, True, True, True],
    ]


def test_waiting_for_the_first_chunk_is_not_learned() -> None:
    ends = [1.04 + 0.04 * i for i in range(8)]
    found = windows(_episode(ends, observed_s=[0.9, 0.98, 1.0, 1.04]), SPEC, LEARNED)
    assert found.inputs[:, 0].tolist() == pytest.approx([1.04])


def test_unknown_inputs_are_left_out_and_one_example_a_row() -> None:
    ends = [1.0 + 0.04 * i for i in range(20)]
    observed = [1.0 + 0.02 * i for i in range(20)]
    episode = _episode(ends, observed_s=observed)
    inputs = episode.inputs.copy()
    inputs[0] = np.nan
    found = windows(replace(episode, inputs=inputs), SPEC, LEARNED)
    assert found.inputs[:3, 0].tolist() == pytest.approx([1.02, 1.06, 1.10])


def test_an_episode_without_rows_gives_nothing() -> None:
    found = windows(_episode([], observed_s=[1.0]), SPEC, LEARNED)
    assert len(found) == 0
    assert found.rows.shape == (0, 4, 4)


@pytest.fixture(name='assembler')
def _assembler() -> EpisodeAssembler:
    return EpisodeAssembler(robots.load('panda'), SPEC)


def _observation(seq: int, stamp_ns: int) -> Observation:
    value = np.array([seq], np.float32)
    return Observation(Id(7, seq), stamp_ns, stamp_ns, ('ee.x',), value)


def _executed(seq: int, stamps_ns, source=RowSource.POLICY, episode='e1') -> ExecutedRows:
    panda = robots.load('panda')
    joints = np.tile([*panda.home, 0.02, 0.02], (len(stamps_ns), 1))
    rows = np.zeros((len(stamps_ns), 4), np.float32)
    return ExecutedRows(
        Id(9, seq),
        stamps_ns[0],
        1,
        Id(5, 1),
        0,
        0.04,
        rows,
        (source,) * len(stamps_ns),
        tuple(stamps_ns),
        panda.joints,
        joints,
        SPACE.hash,
        't1',
        episode,
    )


def test_joined_whatever_the_order_and_without_duplicates(assembler) -> None:
    base = 10**9
    assembler.start('e1', 't1', base)
    assembler.outcome('e1', EpisodeOutcome.SUCCESS)
    for seq in (2, 1, 2):
        assembler.observation(_observation(seq, base + seq * 20_000_000))
    first = [base + DT_NS, base + 2 * DT_NS]
    second = [base + 3 * DT_NS]
    assembler.executed(_executed(2, second, RowSource.HUMAN))
    assembler.executed(_executed(1, first))
    assembler.executed(_executed(1, first))
    chunk = ActionChunk(
        Id(5, 1), Id(), 1, 't1', Id(), base, base, 0.04, np.zeros((4, 4), np.float32), '', 'mlp', 3
    )
    assembler.chunk(chunk)
    assembler.chunk(chunk)
    assembler.end('e1', base + 10**9)
    assembler.observation(_observation(99, base + 2 * 10**9))
    assert assembler.finished(base + 10**9) == []  # rows may still be on their way
    (episode,) = assembler.finished(base + 2 * 10**9)
    assert assembler.finished(base + 3 * 10**9) == []
    assert episode.success
    assert episode.inputs[:, 0].tolist() == [1, 2]
    assert episode.ends_ns.tolist() == first + second
    assert episode.sources.tolist() == [RowSource.POLICY] * 2 + [RowSource.HUMAN]
    assert (episode.policy_versions, episode.policy_calls) == ((3,), 1)
    assert episode.duplicates == 4
    kinematics = Kinematics(robots.load('panda'))
    tool = kinematics.forward(np.array(robots.load('panda').home)).position
    np.testing.assert_allclose(episode.targets[0], [*tool, 0.04], atol=1e-9)


def test_a_lost_end_is_made_up_by_the_next_start(assembler) -> None:
    assembler.start('e1', 't1', 10**9)
    assembler.start('e2', 't2', 2 * 10**9)
    assert assembler.running == 'e2'
    (episode,) = assembler.finished(8 * 10**9)
    assert (episode.id, episode.outcome) == ('e1', EpisodeOutcome.UNKNOWN)


def test_what_was_over_before_is_ignored(assembler) -> None:
    """Latched messages of an episode that ended before this process began."""
    assembler.end('old', 10**9)
    assembler.outcome('old', EpisodeOutcome.SUCCESS)
    assert assembler.finished(10**12) == []


def test_rows_of_another_space_are_refused(assembler) -> None:
    assembler.start('e1', 't1', 0)
    with pytest.raises(InvalidDataError, match='action space'):
        assembler.executed(replace(_executed(1, [DT_NS]), space_hash='other'))


def test_replay_is_bounded_and_keeps_the_newest() -> None:
    buffer = ReplayBuffer(10)
    for first in range(0, 24, 4):
        values = np.arange(first, first + 4, dtype=np.float32)[:, None]
        buffer.add(Windows(values, np.zeros((4, 2, 1), np.float32), np.ones((4, 2), bool)))
    assert len(buffer) == 10
    assert sorted(buffer.all().inputs[:, 0].tolist()) == list(range(14, 24))
    drawn = buffer.sample(500, np.random.default_rng(0))
    assert set(drawn.inputs[:, 0].tolist()) == set(range(14, 24))
