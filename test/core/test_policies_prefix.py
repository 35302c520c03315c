"""The rows that run before an answer, as a policy sees them: to continue, and to start from."""

from dataclasses import replace

from chunkpilot_core import spaces
from chunkpilot_core.errors import InvalidDataError
from chunkpilot_core.policies.mlp import MlpPolicy
from chunkpilot_core.policies.runtime import checkpoint, prefix
from chunkpilot_core.types import (
    ActionGroup,
    ActionSpace,
    ChunkRequest,
    Id,
    Kind,
    Observation,
    PolicySpec,
    Reference,
    Rotation,
)
import numpy as np
import pytest

MS = 1_000_000
EE = spaces.ee_delta_space()
SPEC = PolicySpec('mlp', 'fake', 1, EE, 4, 0.04, ('ee.x',))


def request(targets, origin, weights=None, **changes) -> ChunkRequest:
    """Return a request whose prefix moves from ``origin`` through targets of 40 ms each."""
    path = np.array(targets, np.float64)
    return ChunkRequest(
        **{
            'id': Id(1, 1),
            'stamp_ns': 0,
            'arm_epoch': 1,
            'task_id': 't',
            'reason': 'horizon',
            'start_ns': 0,
            'prefix': path,
            'prefix_velocity': np.diff(path, axis=0, prepend=[origin]) / 0.04,
            'prefix_start_ns': 0,
            'prefix_dt_s': 0.04,
            'committed_rows': 2,
            'guidance_weights': np.ones(len(path), np.float32)
            if weights is None
            else np.array(weights, np.float32),
            **changes,
        }
    )


# 10, 20, 30, 10 mm along x; the gripper closes in the third row
PATH = [[0.01, 0, 0.2, 0.08], [0.03, 0, 0.2, 0.08], [0.06, 0, 0.2, 0.0], [0.07, 0, 0.2, 0.0]]
ORIGIN = [0.0, 0, 0.2, 0.08]


def test_displacements_are_those_of_the_prefix_in_policy_units() -> None:
    rows, weights = prefix.guidance(SPEC, request(PATH, ORIGIN, [1, 1, 0.5, 0.25]), 0)
    assert rows[:, 0] == pytest.approx([0.2, 0.4, 0.6, 0.2])
    assert rows[:, 3] == pytest.approx([1, 1, -1, -1])
    assert weights == pytest.approx([1, 1, 0.5, 0.25])


def test_a_chunk_that_begins_within_a_row_gets_the_path_between_the_rows() -> None:
    """10 ms in: 3/4 of a row and 1/4 of the next; past the end the last row goes on."""
    rows, weights = prefix.guidance(SPEC, request(PATH, ORIGIN, [1, 1, 0.5, 0.25]), 10 * MS)
    assert rows[:, 0] == pytest.approx([0.25, 0.45, 0.5, 0.2])
    assert rows[:, 3] == pytest.approx([1, 1, -1, -1])  # never half closed
    assert weights == pytest.approx([1, 1, 0.5, 0.25])


def test_rows_before_and_after_the_prefix_are_free() -> None:
    early = request(PATH[:2], ORIGIN, [1, 0.5], prefix_start_ns=40 * MS)
    rows, weights = prefix.guidance(SPEC, early, 0)
    assert weights == pytest.approx([0, 1, 0.5, 0])
    assert rows[:, 0] == pytest.approx([0, 0.2, 0.4, 0])
    none = replace(early, prefix=np.zeros((0, 4)))
    assert not prefix.guidance(SPEC, none, 0)[1].any()


def space_of(kind: Kind, size: int, **changes) -> ActionSpace:
    group = ActionGroup(
        'arm',
        0,
        size,
        kind,
        names=('j1',) if size == 1 else (),
        scale=(1.0,) * size,
        offset=(0.0,) * size,
        **changes,
    )
    one = (1.0,) * size
    return spaces.make(
        ActionSpace((group,), (-9.0,) * size, (9.0,) * size, one, one, one, (False,) * size)
    )


def test_absolute_rows_are_the_path_itself() -> None:
    spec = replace(SPEC, space=space_of(Kind.JOINT_POSITION, 1))
    rows, _ = prefix.guidance(spec, request([[1.0], [2.0], [4.0], [4.0]], [0.0]), 10 * MS)
    assert rows[:, 0] == pytest.approx([1.25, 2.5, 4.0, 4.0])


def test_velocities_are_never_interpolated() -> None:
    spec = replace(SPEC, space=space_of(Kind.JOINT_VELOCITY, 1))
    rows, _ = prefix.guidance(spec, request([[1.0], [2.0], [4.0], [4.0]], [0.0]), 10 * MS)
    assert rows[:, 0] == pytest.approx([1.0, 2.0, 4.0, 4.0])


def test_rows_from_the_start_of_the_chunk_count_from_the_path_then() -> None:
    space = space_of(Kind.JOINT_DELTA, 1, reference=Reference.CHUNK_START)
    rows, _ = prefix.guidance(
        replace(SPEC, space=space), request([[1.0], [2.0], [4.0], [4.0]], [0.0]), 10 * MS
    )
    assert rows[:, 0] == pytest.approx([1.0, 2.25, 3.75, 3.75])


def test_turns_are_turns_from_one_row_to_the_next() -> None:
    group = {'reference': Reference.COMMANDED, 'rotation': Rotation.VECTOR}
    space = space_of(Kind.EE_DELTA, 6, **group)
    angles = np.array([0.1, 0.3, 0.6])
    poses = np.zeros((3, 7))
    poses[:, 5], poses[:, 6] = np.sin(angles / 2), np.cos(angles / 2)
    rows, _ = prefix.guidance(
        replace(SPEC, space=space, horizon=3), request(poses, [0, 0, 0, 0, 0, 0, 1.0]), 0
    )
    assert rows[:, 5] == pytest.approx([0.1, 0.2, 0.3], abs=1e-6)


# ---- the state at the start of the chunk --------------------------------------------------------

NAMES = ('ee.x', 'ee.vx', 'ee.z', 'gripper.width', 'object.x', 'object.held', 'goal.x')


def ahead(held: float = 0.0, start_ms: int = 80, **changes) -> dict[str, float]:
    """Return the inputs at the end of the second row, observed 20 ms after it all began."""
    values = np.array([0.004, 0.2, 0.2, 0.08, 0.5, held, 0.7], np.float32)
    asked = request(PATH, ORIGIN, start_ns=start_ms * MS, **changes)
    found = prefix.at_start(EE, NAMES, values, asked, 20 * MS)
    return dict(zip(NAMES, found.tolist(), strict=True))


def test_the_robot_is_where_the_last_committed_row_ends() -> None:
    inputs = ahead()
    assert inputs['ee.x'] == pytest.approx(0.03)
    assert inputs['ee.vx'] == pytest.approx(0.5)
    assert (inputs['object.x'], inputs['goal.x']) == (0.5, pytest.approx(0.7))
    within = ahead(start_ms=60)
    assert (within['ee.x'], within['ee.vx']) == (pytest.approx(0.02), pytest.approx(0.5))


def test_the_gripper_gets_as_far_as_its_speed_allows() -> None:
    assert ahead()['gripper.width'] == pytest.approx(0.08)  # it closes in the row after that
    closing = ahead(start_ms=120)  # 100 ms at 0.2 m/s
    assert closing['gripper.width'] == pytest.approx(0.06)


def test_what_is_held_moves_along_and_keeps_the_fingers_apart() -> None:
    inputs = ahead(held=1.0, start_ms=120)
    assert inputs['object.x'] == pytest.approx(0.5 + 0.06 - 0.004)
    assert inputs['gripper.width'] == pytest.approx(0.08)


def test_without_rows_that_run_it_is_the_state_that_was_observed() -> None:
    inputs = ahead(prefix=np.zeros((0, 4)))
    assert (inputs['ee.x'], inputs['ee.vx']) == (pytest.approx(0.004), pytest.approx(0.2))


def test_joints_are_foreseen_in_joint_spaces_only() -> None:
    space = space_of(Kind.JOINT_POSITION, 1)
    assert prefix.foreseeable(space, ('j1.position', 'j1.velocity', 'object.x'))
    assert not prefix.foreseeable(space, ('j1.position', 'ee.x'))
    assert not prefix.foreseeable(EE, ('j1.position', 'ee.x'))
    assert prefix.foreseeable(EE, ('ee.x', 'ee.vz', 'gripper.width'))
    assert not prefix.foreseeable(EE, ('object.x',))  # nothing to foresee
    values = np.zeros(2, np.float32)
    asked = request([[1.0], [2.0]], [0.0], start_ns=80 * MS)
    found = prefix.at_start(space, ('j1.position', 'j1.velocity'), values, asked, 0)
    assert found == pytest.approx([2.0, 25.0])


@pytest.mark.parametrize('name', ['mlp_pick_and_place', 'flow_pick_and_place'])
def test_shipped_policies_start_in_the_future(name: str) -> None:
    policy = checkpoint.load(name)
    assert 'future_state' in policy.spec.capabilities
    names = policy.spec.input_names
    seen = Observation(Id(1, 1), 20 * MS, 20 * MS, names, np.zeros(len(names), np.float32))
    there = seen.state.copy()
    asked = request(PATH, ORIGIN, start_ns=80 * MS, state_at_start=True)
    policy.reset(1)
    chunk = policy.act(seen, asked)
    assert chunk.start_ns == 80 * MS
    assert chunk.observation_stamp_ns == 20 * MS
    for entry, value in {'ee.x': 0.03, 'ee.z': 0.2, 'ee.vx': 0.5, 'gripper.width': 0.012}.items():
        there[names.index(entry)] = value
    policy.reset(1)
    same = policy.act(replace(seen, state=there), replace(asked, state_at_start=False))
    assert chunk.actions == pytest.approx(same.actions, abs=1e-5)
    assert same.start_ns == 20 * MS


def test_a_policy_that_reads_what_can_not_be_foreseen_says_so() -> None:
    policy = MlpPolicy(MlpPolicy.Config(), replace(SPEC, input_names=('ee.x', 'j1.position')))
    assert policy.spec.capabilities == ()
    seen = Observation(Id(1, 1), 0, 0, policy.spec.input_names, np.zeros(2, np.float32))
    with pytest.raises(InvalidDataError, match=r'future state.* ee\.x, j1\.position'):
        policy.act(seen, request(PATH, ORIGIN, state_at_start=True))


@pytest.mark.parametrize(
    ('changes', 'message'),
    [
        ({'guidance_weights': np.full(4, np.nan, np.float32)}, 'guidance_weights .*4 from 0 to 1'),
        ({'guidance_weights': np.ones(2, np.float32)}, 'must be 4 from 0 to 1'),
        ({'guidance_weights': np.zeros(0, np.float32)}, 'must be 4 from 0 to 1'),
        ({'guidance_weights': np.full(4, -1, np.float32)}, 'must be 4 from 0 to 1'),
        ({'guidance_limit': float('nan')}, 'guidance_limit is nan'),
        ({'guidance_limit': -1.0}, 'guidance_limit is -1.0'),
        ({'prefix': np.full((4, 4), np.nan)}, 'prefix holds numbers that are not finite'),
        ({'prefix': np.zeros((4, 5))}, r'prefix has shape \(4, 5\), expected \(4, 4\)'),
        ({'prefix': np.zeros(4)}, r'prefix has shape \(4,\), expected'),
        ({'prefix_velocity': np.zeros((2, 4))}, r'prefix_velocity has shape \(2, 4\)'),
        ({'prefix_velocity': np.zeros((0, 0))}, r'prefix_velocity has shape \(0, 0\)'),
        ({'prefix_dt_s': 0.0}, 'prefix_dt_s is 0.0 s, allowed'),
        ({'prefix_dt_s': float('nan')}, 'prefix_dt_s is nan s, allowed'),
        ({'n_samples': -1}, 'n_samples is -1, allowed 0 to 1024'),
        ({'n_samples': 10**9}, 'n_samples is 1000000000, allowed'),
    ],
)
@pytest.mark.parametrize('use', [{'guidance': 'identity'}, {'state_at_start': True}])
def test_a_request_that_can_not_be_served_is_refused_by_what_is_wrong(
    use, changes, message
) -> None:
    policy = MlpPolicy(MlpPolicy.Config(width=8, depth=1), SPEC)
    seen = Observation(Id(1, 1), 0, 0, ('ee.x',), np.zeros(1, np.float32))
    asked = request(PATH, ORIGIN, guidance_limit=5.0, **use)
    if message.startswith(('guidance', 'must')) and 'guidance' not in use:
        prefix.check(EE, replace(asked, **changes))  # nobody reads them
        return
    with pytest.raises(InvalidDataError, match=f'request 1: .*{message}'):
        policy.act(seen, replace(asked, **changes))
