"""A chunk is judged before it runs: limits, seam, workspace, room to stop, what it would hit."""

from dataclasses import replace
from typing import Any

from chunkpilot_core import registry, spaces
from chunkpilot_core import robot as robots
from chunkpilot_core.clearance.runtime.bodies import Obstacle, Shape
from chunkpilot_core.kinematics import Kinematics
from chunkpilot_core.prediction.inverse import inverse_along
from chunkpilot_core.prediction.path import PathMaker
from chunkpilot_core.prediction.predictor import Predictor
from chunkpilot_core.prediction.rates import time_scale
from chunkpilot_core.safety.runtime.limiter import Limiter
from chunkpilot_core.types import (
    ActionChunk,
    ActionGroup,
    ActionSpace,
    ChunkPart,
    Id,
    JointState,
    Kind,
    nanoseconds,
    Rotation,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
import numpy as np
import pytest

ROBOT = robots.load('panda')
KINEMATICS = Kinematics(ROBOT)
EE = spaces.ee_delta_space()
JOINTS = spaces.make(
    ActionSpace(
        (
            ActionGroup(
                'arm', 0, 7, Kind.JOINT_POSITION, names=ROBOT.arm_joints, unit='rad',
                scale=(1.0,) * 7, offset=(0.0,) * 7,
            ),
        ),
        (-3.0,) * 7, (3.0,) * 7, (2.0,) * 7, (10.0,) * 7, (5000.0,) * 7, (False,) * 7,
    )
)  # fmt: skip
HOME = np.array([*ROBOT.home, 0.04, 0.04])
NOW, DT = 10**10, 0.04


def chunk_of(rows: Any, space: ActionSpace = EE, **changes: Any) -> ActionChunk:
    actions = np.asarray(rows, np.float32)
    made = ActionChunk(
        Id(3, 1), Id(7, 1), 1, 't', Id(8, 1), NOW, NOW, DT, actions, space.hash, 'test', 1
    )
    return replace(made, **changes)


def present(joints: Any = HOME, velocity: Any = None) -> JointState:
    speed = np.zeros(9) if velocity is None else np.asarray(velocity, float)
    return JointState(NOW, ROBOT.joints, np.asarray(joints, float), speed)


def predictor(space: ActionSpace = EE, *obstacles: Obstacle, **options: Any) -> Predictor:
    clearance = registry.get('clearance', 'capsules')(ROBOT)
    clearance.set_obstacles(obstacles)
    made = Predictor(ROBOT, Predictor.Config(**options), clearance)
    made.space = space
    return made


def wall(x: float) -> Obstacle:
    return Obstacle(
        'wall', Shape.BOX, (0.02, 0.6, 0.6), np.array([x, 0.0, 0.3]), np.array([0, 0, 0, 1.0])
    )


def moving(x: float = 0.0, y: float = 0.0, z: float = 0.0, rows: int = 16) -> np.ndarray:
    """Return rows that move the tool by so many metres each; the gripper stays open."""
    return np.tile([x / 0.05, y / 0.05, z / 0.05, 1.0], (rows, 1))


def in_joints(*changes: tuple[int, Any], rows: int = 16) -> np.ndarray:
    """Return rows of joint positions: home, with what is given added to some joints."""
    path = np.tile(np.array(ROBOT.home), (rows, 1))
    for joint, values in changes:
        path[:, joint] += values
    return path


def test_a_chunk_that_keeps_away_from_everything_is_good() -> None:
    verdict = predictor().judge(chunk_of(moving(0.005, 0.003)), present(), NOW)
    assert (verdict.ok, verdict.first_bad_row, verdict.executable_rows) == (True, -1, 16)
    assert verdict.speed_scale == 1.0
    assert verdict.chunk_id == Id(3, 1)


BROKEN = {
    'NaN in row 12': (lambda rows: rows[12].__setitem__(1, np.nan), {}, 'row 12'),
    'no rows': (lambda rows: None, {'actions': np.zeros((0, 4), np.float32)}, 'shape'),
    '10 000 rows': (lambda rows: None, {'actions': np.zeros((10_000, 4), np.float32)}, '10000'),
    'wrong width': (lambda rows: None, {'actions': np.zeros((16, 6), np.float32)}, 'shape'),
    'another space': (lambda rows: None, {'space_hash': 'x'}, 'action space'),
    'an old observation': (lambda rows: None, {'observation_stamp_ns': NOW - 4 * 10**9}, 'old'),
}


@pytest.mark.parametrize('name', BROKEN)
def test_what_can_not_be_looked_at_is_bad_as_a_whole(name: str) -> None:
    spoil, changes, words = BROKEN[name]
    rows = moving(0.001)
    spoil(rows)
    verdict = predictor().judge(chunk_of(rows, **changes), present(), NOW)
    assert (verdict.ok, verdict.first_bad_row, verdict.executable_rows) == (False, 0, 0)
    assert words in verdict.reason


@pytest.mark.parametrize(('jump', 'ok'), [(0.05, True), (0.5, False)])
def test_the_seam_with_the_present_counts(jump: float, ok: bool) -> None:
    rows = in_joints((0, jump))
    verdict = predictor(JOINTS).judge(chunk_of(rows, JOINTS), present(), NOW)
    assert verdict.ok is ok
    if not ok:
        assert verdict.check == 'time_scale'
        assert 'row 0: panda_joint1' in verdict.reason


@pytest.mark.parametrize(('way', 'ok'), [(1.0, False), (-1.0, True)], ids=['towards', 'away'])
def test_near_the_end_of_its_range_a_joint_has_to_be_slower(way: float, ok: bool) -> None:
    limit = replace(ROBOT.limits[1], velocity_offset=0.2, deceleration_limit=2.585)
    robot = replace(ROBOT, limits=(ROBOT.limits[0], limit, *ROBOT.limits[2:]))
    at = HOME.copy()
    at[1] = limit.max_position - 0.08  # where 0.44 rad/s are allowed towards the end
    rows = np.tile(at[:7], (16, 1))
    rows[:, 1] += way * DT * np.cumsum([0.5, 0.3, 0.1] + [0.0] * 13)
    speed = np.zeros(9)
    speed[1] = way * 0.5
    path = PathMaker(Kinematics(robot), Limiter(robot, 0.01), 16).make(
        JOINTS, chunk_of(rows, JOINTS), rows.astype(np.float32), present(at, speed), NOW
    )
    found = time_scale(path, Limiter(robot, 0.01), 0.8)
    plain = time_scale(path, Limiter(ROBOT, 0.01), 0.8)
    assert plain.scale == 1.0
    assert (found.scale == 1.0) is ok
    if not ok:
        assert found.scale == pytest.approx(0.75, abs=0.05)  # at the end of row 0
        assert 'panda_joint2' in found.reason


@pytest.mark.matrix(16)
def test_too_fast_by_half_is_slowed_and_far_too_fast_is_bad() -> None:
    ramp = np.cumsum(np.minimum(np.arange(16), 8)) / 8.0 * DT  # comes to 1 rad/s, gently
    judge = predictor(JOINTS)
    for speed, scale in ((2.0, 1.0), (4.0, 0.54), (7.5, None)):
        rows = in_joints((6, speed * (ramp - ramp.mean())))
        start = HOME.copy()
        start[:7] = rows[0]
        verdict = judge.judge(chunk_of(rows, JOINTS), present(start), NOW)
        assert verdict.ok is (scale is not None), verdict
        if scale is not None:
            assert verdict.speed_scale == pytest.approx(scale, abs=0.12)
        assert scale == 1.0 or 'panda_joint7' in verdict.reason


@pytest.mark.matrix(17)
def test_a_spike_of_acceleration_is_slowed() -> None:
    rows = in_joints()
    rows[8, 3] += 0.04
    verdict = predictor(JOINTS).judge(chunk_of(rows, JOINTS), present(), NOW)
    assert verdict.ok
    assert 0.3 < verdict.speed_scale < 0.8
    assert 'rad/s2' in verdict.reason


def test_motion_under_way_is_no_jump() -> None:
    speed = np.zeros(9)
    speed[1] = -1.5
    rows = in_joints((1, -1.5 * DT * np.arange(1, 7)), rows=6)
    judge = predictor(JOINTS, workspace_m=1.0)
    moving_on = judge.judge(chunk_of(rows, JOINTS), present(velocity=speed), NOW)
    from_rest = judge.judge(chunk_of(rows, JOINTS), present(), NOW)
    assert moving_on.speed_scale == 1.0
    assert from_rest.speed_scale < 0.8


def test_joints_stay_inside_their_soft_limits() -> None:
    rows = in_joints((3, np.linspace(0.0, -1.4, 16)))
    judge = Predictor(ROBOT, Predictor.Config(workspace_m=1.0))
    judge.space = JOINTS
    verdict = judge.judge(chunk_of(rows, JOINTS), present(), NOW)
    assert not verdict.ok
    assert (verdict.check, verdict.first_bad_row) == ('position_limits', 13)
    assert 'panda_joint4' in verdict.reason
    assert verdict.executable_rows < 13


def test_who_is_outside_may_come_back() -> None:
    start = HOME.copy()
    start[3] = -3.06
    rows = in_joints((3, np.linspace(-1.2, 0.0, 16)))
    judge = Predictor(ROBOT, Predictor.Config(workspace_m=1.0))
    judge.space = JOINTS
    assert judge.judge(chunk_of(rows, JOINTS), present(start), NOW).ok


def test_the_workspace_ends_a_chunk_but_sliding_along_its_wall_does_not() -> None:
    far = predictor().judge(chunk_of(moving(y=0.04)), present(), NOW)
    assert (far.ok, far.check) == (False, 'workspace')
    assert 'y would be' in far.reason
    assert far.first_bad_row == 11  # 0.04 a row: 0.45 is passed in the twelfth
    at_the_wall = KINEMATICS.forward(HOME[:7]).position
    rows = moving(y=0.0)
    rows[:, 1] = (0.40 - at_the_wall[1] + 0.03) / 0.05 / 16
    slides = predictor().judge(chunk_of(rows), present(), NOW)
    assert slides.ok, slides.reason


def test_no_room_to_stop_at_the_end() -> None:
    ramp = np.linspace(0.0, 1.0, 16) ** 2
    rows = in_joints((5, 1.395 * ramp))
    verdict = predictor(JOINTS, workspace_m=2.0, reject_scale=0.05).judge(
        chunk_of(rows, JOINTS), present(), NOW
    )
    assert not verdict.ok
    assert verdict.check in ('stop_room', 'position_limits')
    assert verdict.first_bad_row == 15


def test_what_would_be_hit_is_named_with_the_row_and_the_rows_that_may_run() -> None:
    tool = KINEMATICS.forward(HOME[:7]).position
    verdict = predictor(EE, wall(tool[0] + 0.25)).judge(chunk_of(moving(0.02)), present(), NOW)
    assert (verdict.ok, verdict.check) == (False, 'clearance')
    assert 'wall' in verdict.reason
    assert 5 <= verdict.first_bad_row <= 12
    assert 0 < verdict.executable_rows < verdict.first_bad_row
    assert verdict.risk == 1.0
    assert 'wall' in verdict.clearance_pair or verdict.min_clearance < 0.05


def test_a_thin_obstacle_between_two_rows_is_not_jumped_over() -> None:
    tool = KINEMATICS.forward(HOME[:7]).position
    post = Obstacle(
        'post', Shape.CAPSULE, (0.005, 0.3), tool + np.array([0.0, 0.13, 0.05]),
        np.array([0, 0, 0, 1.0]),
    )  # fmt: skip
    rows = moving(y=0.13, rows=3)
    wide = {'reject_scale': 0.01, 'workspace_m': 0.2}
    verdict = predictor(EE, post, **wide).judge(chunk_of(rows, dt_s=0.5), present(), NOW)
    assert not verdict.ok
    assert 'post' in verdict.reason


def test_leaving_what_is_too_near_is_allowed() -> None:
    tool = KINEMATICS.forward(HOME[:7]).position
    near = predictor(EE, wall(tool[0] + 0.07))
    assert near.judge(chunk_of(moving(-0.01)), present(), NOW).ok
    assert not near.judge(chunk_of(moving(0.01)), present(), NOW).ok


def test_what_comes_after_the_chunk_is_a_risk_and_no_reason_to_reject() -> None:
    tool = KINEMATICS.forward(HOME[:7]).position
    judge = predictor(EE, wall(tool[0] + 0.26))
    short = judge.judge(chunk_of(moving(0.02, rows=6)), present(), NOW)
    assert short.ok
    assert short.risk_beyond > short.risk + 0.3
    away = judge.judge(chunk_of(moving(-0.02, rows=6)), present(), NOW)
    assert (away.ok, away.risk, away.risk_beyond) == (True, 0.0, 0.0)


def test_the_safest_sample_of_a_bad_chunk_is_named() -> None:
    tool = KINEMATICS.forward(HOME[:7]).position
    judge = predictor(EE, wall(tool[0] + 0.25))
    bad, good = moving(0.02), moving(0.001)
    samples = np.array([bad, moving(0.011), good, np.full_like(bad, np.nan)], np.float32)
    verdict = judge.judge(chunk_of(bad, samples=samples), present(), NOW)
    assert (verdict.ok, verdict.best_sample) == (False, 2)
    none = judge.judge(chunk_of(bad, samples=samples[[0, 3]]), present(), NOW)
    assert none.best_sample == -1


def test_only_rows_that_are_not_over_count() -> None:
    rows = in_joints((0, 0.05 * np.arange(16)))
    late = chunk_of(rows, JOINTS, start_ns=NOW - nanoseconds(6.5 * DT))
    start = HOME.copy()
    start[:7] = rows[6]
    verdict = predictor(JOINTS).judge(late, present(start), NOW)
    assert verdict.ok
    assert verdict.speed_scale > 0.3


def test_rows_that_are_not_known_yet_are_not_promised() -> None:
    parts = (ChunkPart(0, 6, Id(8, 1), NOW, executable_rows=6, final=False),)
    rows = moving(0.005)
    rows[6:] = 100.0
    verdict = predictor().judge(chunk_of(rows, parts=parts), present(), NOW)
    assert (verdict.ok, verdict.executable_rows) == (True, 6)


def test_parts_of_an_answer_are_judged_under_the_id_that_commands_carry() -> None:
    judge = predictor()
    judge.judge(chunk_of(moving(0.001)), present(), NOW)
    part = ChunkPart(8, 8, Id(8, 1), NOW, executable_rows=8, revision=2)
    first = ChunkPart(0, 8, Id(8, 1), NOW, executable_rows=8)
    later = chunk_of(moving(0.001), id=Id(3, 2), parts=(first, part))
    verdict = judge.judge(later, present(), NOW)
    assert (verdict.chunk_id, verdict.revision) == (Id(3, 1), 2)
    other = judge.judge(replace(later, request_id=Id(7, 2)), present(), NOW)
    assert other.chunk_id == Id(3, 2)


def test_a_long_chunk_costs_no_more_rows_than_allowed() -> None:
    rows = np.zeros((1000, 4))
    rows[:, 3] = 1.0
    rows[500:, 0] = 0.01
    outlook = predictor(max_rows=20).outlook(chunk_of(rows), rows, present(), NOW)
    assert outlook.path is not None
    assert len(outlook.path.row) <= 20
    assert outlook.path.row[-1] == 999  # the end is looked at


@pytest.mark.parametrize('from_row', [49, 50, 51, 52])
def test_of_a_long_chunk_no_row_runs_on_a_way_that_ends_badly(from_row: int) -> None:
    rows = np.tile(ROBOT.home, (100, 1))
    rows[from_row:, 0] = 2.95  # beyond the soft limit
    verdict = predictor(JOINTS, max_rows=25).judge(chunk_of(rows, JOINTS), present(), NOW)
    assert not verdict.ok
    assert verdict.executable_rows <= from_row
    assert verdict.first_bad_row - verdict.executable_rows >= 1


@pytest.mark.parametrize('shapes', [True, False])
def test_a_row_that_leads_nowhere_is_bad_and_raises_nothing(shapes: bool) -> None:
    group = ActionGroup(
        'arm', 0, 7, Kind.EE_POSE, rotation=Rotation.QUATERNION, unit='m',
        scale=(1.0,) * 7, offset=(0.0,) * 7,
    )  # fmt: skip
    space = spaces.make(
        ActionSpace(
            (group,), (-1.0,) * 7, (1.0,) * 7, (2.0,) * 7, (10.0,) * 7, (5000.0,) * 7, (False,) * 7
        )
    )
    judge = predictor(space) if shapes else Predictor(ROBOT)
    judge.space = space
    verdict = judge.judge(chunk_of(np.zeros((8, 7)), space), present(), NOW)
    assert (verdict.ok, verdict.check, verdict.executable_rows) == (False, 'kinematics', 0)
    assert verdict.risk == 1.0


def test_without_samples_between_rows_their_ends_are_looked_at() -> None:
    judge = predictor(EE, wall(0.15), max_samples=0)
    assert not judge.judge(chunk_of(moving(0.03)), present(), NOW).ok


def test_without_shapes_limits_still_count() -> None:
    judge = Predictor(ROBOT)
    judge.space = EE
    assert judge.judge(chunk_of(moving(0.005)), present(), NOW).ok
    assert not judge.judge(chunk_of(moving(y=0.04)), present(), NOW).ok


def test_the_path_is_where_the_guards_own_kinematics_leads() -> None:
    rows = moving(0.009, -0.008, -0.004)
    outlook = predictor().outlook(chunk_of(rows), np.float32(rows), present(), NOW)
    joints = HOME[:7].copy()
    start = KINEMATICS.forward(joints).position
    for i in range(16):
        for part in (0.25, 0.5, 0.75, 1.0):
            place = start + (i + part) * np.array([0.009, -0.008, -0.004])
            joints = KINEMATICS.inverse(place, KINEMATICS.tool_rotation, joints).joints
        assert outlook.path.positions[i + 1, :7] == pytest.approx(joints, abs=0.01)


def test_inverse_kinematics_says_what_it_could_not_reach() -> None:
    tool = KINEMATICS.forward(HOME[:7]).position
    places = tool + np.array([[0.1, 0.0, 0.0], [2.0, 0.0, 0.0]])
    joints, left = inverse_along(
        KINEMATICS, places, KINEMATICS.tool_rotation, HOME[:7], np.array([0.1, 0.2])
    )
    assert left[0].max() < 1e-4
    assert left[1, 0] > 0.5
    assert np.isfinite(joints).all()


def test_dynamics_show_what_the_drives_make_of_a_path() -> None:
    pytest.importorskip('pybullet')
    tool = KINEMATICS.forward(HOME[:7]).position
    judge = predictor(EE, wall(tool[0] + 0.25), dynamics=True)
    verdict = judge.judge(chunk_of(moving(0.02)), present(), NOW)
    assert (verdict.ok, verdict.check) == (False, 'clearance')
    assert judge.judge(chunk_of(moving(-0.002)), present(), NOW).ok
    assert judge._dynamics is not None
    rows = in_joints((0, 0.06 * np.arange(1, 17)))
    path = predictor(JOINTS).outlook(chunk_of(rows, JOINTS), np.float32(rows), present(), NOW).path
    reached = judge._dynamics.follow(path)
    assert reached[0] == pytest.approx(HOME)
    lag = path.positions[8, 0] - reached[8, 0]
    assert 0.0 < lag < 0.1  # the drive follows, and lags behind


@settings(max_examples=60, deadline=None)
@given(
    arrays(np.float32, (5, 4), elements=st.floats(-1e6, 1e6, width=32)),
    st.floats(-3.0, 3.0),
    st.integers(-(10**9), 10**9),
)
def test_whatever_a_policy_sends_there_is_a_verdict(rows, velocity, late_ns) -> None:
    speed = np.full(9, velocity)
    chunk = chunk_of(rows, start_ns=NOW - late_ns)
    verdict = SHARED.judge(chunk, present(velocity=speed), NOW)
    assert 0 <= verdict.executable_rows <= 5
    assert (verdict.first_bad_row == -1) == (verdict.ok and verdict.speed_scale == 1.0)
    assert 0.0 < verdict.speed_scale <= 1.0
    for risk in (verdict.risk, verdict.risk_end, verdict.risk_beyond):
        assert 0.0 <= risk <= 1.0
    again = SHARED.judge(chunk, present(velocity=speed), NOW)
    assert again == verdict or np.isnan(again.min_clearance)


SHARED = predictor()
