"""Temporal and median ensembles and voting: their rules against numbers computed by hand."""

from dataclasses import replace
import math

from chunkpilot_core import registry, spaces
from chunkpilot_core.config import build
from chunkpilot_core.errors import ConfigError
from chunkpilot_core.execution.base import ExecutionState
from chunkpilot_core.types import (
    ActionGroup,
    ActionSpace,
    ChunkRequest,
    Id,
    Kind,
    PolicySpec,
    Reference,
    Rotation,
)
import numpy as np
import pytest

SPEC = PolicySpec('fake', 'fake', 1, spaces.ee_delta_space(), 16, 0.04)
ENSEMBLES = ('temporal_ensemble', 'median_ensemble', 'vote')
MS = 1_000_000


def made(name: str, spec: PolicySpec = SPEC, **options):
    plugin = registry.get('execution', name)
    strategy = plugin(build(plugin.Config, options))
    strategy.configure(spec)
    return strategy


def rows(*values) -> np.ndarray:
    """Return predictions that move along x, gripper open but for the last one."""
    result = np.zeros((len(values), 4), np.float32)
    result[:, 0] = values
    result[:, 3] = 1.0
    result[-1, 3] = -1.0
    return result


def pose_spec(kind: Kind = Kind.EE_POSE, reference=Reference.NONE, size: int = 7) -> PolicySpec:
    """Return a policy whose rows are poses with a quaternion, or displacements."""
    rotation = Rotation.QUATERNION if size == 7 else Rotation.NONE
    group = ActionGroup(
        'arm',
        0,
        size,
        kind,
        'world',
        reference,
        rotation,
        scale=(1.0,) * size,
        offset=(0.0,) * size,
    )
    one = (1.0,) * size
    space = spaces.make(
        ActionSpace((group,), (-9.0,) * size, (9.0,) * size, one, one, one, (False,) * size)
    )
    return replace(SPEC, space=space)


def test_weights_fall_from_the_oldest_prediction_on() -> None:
    strategy = made('temporal_ensemble', decay=math.log(2.0))  # 1, 1/2, 1/4
    blended = strategy.blend(rows(0.7, 0.0, 0.35))
    assert blended[0] == pytest.approx((0.7 + 0.35 / 4.0) / 1.75)
    assert blended.dtype == np.float32
    assert blended[3] == -1.0  # of the newest: half open is none of the answers
    paper = made('temporal_ensemble').blend(rows(1.0, 0.0))
    assert paper[0] == pytest.approx(1.0 / (1.0 + math.exp(-0.01)))


def test_only_the_newest_chunks_count() -> None:
    assert made('temporal_ensemble', chunks=2, decay=0.0).blend(rows(9.0, 0.2, 0.4))[
        0
    ] == pytest.approx(0.3)


def test_displacements_for_the_same_time_are_averaged_like_velocities() -> None:
    """Two chunks that go the same way at other speeds: the arm goes that way at the mean speed."""
    strategy = made('temporal_ensemble', decay=0.0)
    path = [strategy.blend(rows(0.2, 0.4))[0] for _ in range(5)]
    assert np.cumsum(path) == pytest.approx(0.3 * np.arange(1, 6))


def test_a_median_ignores_the_chunk_that_went_astray() -> None:
    strategy = made('median_ensemble')
    assert strategy.blend(rows(0.2, -1.0, 0.3))[0] == pytest.approx(0.2)
    assert strategy.blend(rows(0.2, -1.0, 0.3, 0.4))[0] == pytest.approx(0.25)
    assert strategy.blend(rows(0.5))[0] == pytest.approx(0.5)


def test_the_median_of_grippers_is_always_one_that_was_predicted() -> None:
    strategy = made('median_ensemble')
    grips = np.zeros((4, 4), np.float32)
    for given, expected in (([1, 1, -1], 1), ([1, 1, -1, -1], -1), ([-1, 1], 1), ([1, -1], -1)):
        grips[: len(given), 3] = given
        assert strategy.blend(grips[: len(given)])[3] == expected


def test_the_larger_camp_wins_and_a_tie_goes_to_the_newest() -> None:
    strategy = made('vote')
    strategy.blend(rows(0.1))
    # cosine with the newest: 1, -1, 1
    assert strategy.blend(rows(0.2, -0.8, 0.4))[0] == pytest.approx(0.3)
    outvoted = strategy.blend(rows(-0.2, -0.4, 0.4))
    assert outvoted[0] == pytest.approx(-0.3)
    assert outvoted[3] == 1.0  # the gripper of the newest that agrees
    assert strategy.blend(rows(-0.2, 0.4))[0] == pytest.approx(0.4)


def test_agreement_is_a_cosine_of_one_half() -> None:
    strategy = made('vote')
    strategy.blend(rows(0.1))
    angled = np.zeros((3, 4), np.float32)
    angled[-1, 0] = 1.0
    for i, degrees in enumerate((59.0, 61.0)):
        angled[i, :2] = np.cos(np.radians(degrees)), np.sin(np.radians(degrees))
    mean = strategy.blend(angled)  # 61 degrees is outvoted
    assert mean[:2] == pytest.approx((angled[0, :2] + angled[2, :2]) / 2.0)


def test_predictions_that_stand_still_agree_with_each_other_only() -> None:
    strategy = made('vote')
    strategy.blend(rows(0.1))
    assert strategy.blend(rows(0.0, 0.6, 0.0))[0] == 0.0
    assert strategy.blend(rows(0.0, 0.0, 0.6))[0] == 0.0


def test_absolute_rows_vote_by_where_they_go_from_the_last_row() -> None:
    """Far from the origin all positions point the same way; only differences say something."""
    strategy = made('vote', pose_spec())
    upright = [0, 0, 0, 1]
    strategy.blend(np.array([[5.0, 0, 0, *upright]], np.float32))
    split = np.array([[4.9, 0, 0, *upright], [4.8, 0, 0, *upright], [5.1, 0, 0, *upright]])
    assert strategy.blend(split.astype(np.float32))[0] == pytest.approx(4.85)


@pytest.mark.parametrize('name', ENSEMBLES)
def test_a_quaternion_and_its_negative_are_one_orientation(name: str) -> None:
    strategy = made(name, pose_spec())
    half = math.sqrt(0.5)
    turned = np.zeros((3, 7), np.float32)
    turned[:, 5:] = [[half, half], [-half, -half], [half, half]]
    strategy.blend(turned[:1])
    assert strategy.blend(turned)[3:] == pytest.approx([0, 0, half, half], abs=1e-6)


@pytest.mark.parametrize('name', ENSEMBLES)
def test_rows_that_count_from_their_own_start_are_refused(name: str) -> None:
    spec = pose_spec(Kind.EE_DELTA, Reference.CHUNK_START, 3)
    with pytest.raises(ConfigError, match=r"'arm'.* start of their chunk.*commanded, measured"):
        made(name, spec)
    made(name, pose_spec(Kind.EE_DELTA, Reference.COMMANDED, 3))


@pytest.mark.parametrize('name', ENSEMBLES)
def test_it_asks_every_few_rows_whatever_is_left(name: str) -> None:
    strategy = made(name, every=2)
    state = ExecutionState(0, np.zeros(4, np.float32), 0, 0.05, 8.0)
    assert strategy.wants_chunk(state)
    request = ChunkRequest(Id(1, 1), 1000 * MS, 1, 't', 'start', 1000 * MS)
    assert strategy.ask(request) == request
    for after_ms, wanted in ((10, False), (79, False), (80, True), (-500, True)):
        assert strategy.wants_chunk(replace(state, now_ns=(1000 + after_ms) * MS)) is wanted


@pytest.mark.parametrize('name', ENSEMBLES)
def test_chunks_that_never_overlap_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match='every 16 rows a chunk of 16 rows'):
        made(name, every=16)
