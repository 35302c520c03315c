"""Observations: what is in them, what is refused and why, and how old parts are told."""

from dataclasses import replace

from chunkpilot_core import camera as cameras
from chunkpilot_core import robot as robots
from chunkpilot_core.errors import UnknownNameError
from chunkpilot_core.kinematics import Kinematics
from chunkpilot_core.perception.objects import Objects
from chunkpilot_core.perception.runtime.pipeline import Perception
from chunkpilot_core.types import Health, Image, JointState, nanoseconds, Observation, Task
import numpy as np
import pytest

ROBOT = robots.load('panda')
FRONT = cameras.load('front')
TICK_NS = 10_000_000
REST = np.array([*ROBOT.home, 0.04, 0.04])


def joint_state(stamp_ns: int, positions: np.ndarray = REST, **changes: object) -> JointState:
    state = JointState(stamp_ns, ROBOT.joints, positions.copy(), np.zeros(9))
    return replace(state, **changes)


def picture(stamp_ns: int, value: int = 200, name: str = 'front') -> Image:
    return Image(name, stamp_ns, np.full((120, 160, 3), value, np.uint8))


def perception(*stages: str, **options: object) -> Perception:
    config = Perception.Config(stages=stages, **options)
    return Perception(ROBOT, {'front': FRONT}, config)


def observed(source: Perception, stamp_ns: int, now_ns: int | None = None) -> Observation:
    assert source.on_joint_state(joint_state(stamp_ns)) is None
    observation = source.observe(stamp_ns if now_ns is None else now_ns)
    assert observation is not None
    return observation


def test_state_holds_joints_tool_and_width() -> None:
    source = perception()
    velocities = np.array([0.3, -0.2, 0.1, 0.4, 0.0, 0.2, -0.1, 0.01, 0.01])
    assert source.on_joint_state(joint_state(TICK_NS, velocities=velocities)) is None
    observation = source.observe(TICK_NS, arm_epoch=7)
    assert observation is not None
    kinematics = Kinematics(ROBOT)
    arm = np.array(ROBOT.home)
    names = ['ee.x', 'ee.y', 'ee.z']
    np.testing.assert_allclose(
        observation.vector(names), kinematics.forward(arm).position, atol=1e-6
    )
    later = kinematics.forward(arm + 1e-6 * velocities[:7]).position
    speed = (later - kinematics.forward(arm).position) / 1e-6
    np.testing.assert_allclose(observation.vector(['ee.vx', 'ee.vy', 'ee.vz']), speed, atol=1e-4)
    assert observation.vector(['gripper.width']) == pytest.approx(0.08)
    assert observation.vector(['panda_joint4.position']) == pytest.approx(ROBOT.home[3])
    assert len(observation.state) == 2 * 9 + 7
    assert (observation.arm_epoch, observation.stamp_ns) == (7, TICK_NS)


def test_joints_are_matched_by_name() -> None:
    order = list(reversed(range(9)))
    state = JointState(
        TICK_NS,
        (*(ROBOT.joints[i] for i in order), 'wheel'),
        np.array([*(REST[i] for i in order), 5.0]),
        np.zeros(10),
    )
    source = perception()
    assert source.on_joint_state(state) is None
    observation = source.observe(TICK_NS)
    assert observation is not None
    np.testing.assert_allclose(observation.state[:9], REST, atol=1e-6)


@pytest.mark.parametrize(
    ('changes', 'reason'),
    [
        ({'names': (), 'positions': np.zeros(0), 'velocities': np.zeros(0)}, 'lacks a joint'),
        ({'positions': np.zeros(3)}, '3 position values'),
        ({'positions': np.where(np.arange(9) == 4, np.nan, REST)}, 'panda_joint5 is nan'),
        ({'velocities': np.where(np.arange(9) == 0, np.inf, 0.0)}, 'panda_joint1 is inf'),
        ({'names': ('panda_joint_1', *ROBOT.joints[1:])}, "Did you mean 'panda_joint_1'"),
        ({'stamp_ns': TICK_NS}, 'older than the newest'),
    ],
)
def test_bad_joint_states_are_refused_with_a_reason(changes: dict, reason: str) -> None:
    source = perception()
    if 'stamp_ns' not in changes:  # the very first one is no exception
        assert source.on_joint_state(replace(joint_state(TICK_NS), **changes)) is not None
        source.counters.clear()
    observed(source, 5 * TICK_NS)
    refused = source.on_joint_state(replace(joint_state(6 * TICK_NS), **changes))
    assert refused is not None
    assert reason in refused
    assert source.observe(6 * TICK_NS) is None
    assert source.counters['joint_states_refused'] == 1
    assert observed(source, 7 * TICK_NS).stamp_ns == 7 * TICK_NS


def test_missing_velocities_come_from_the_slope() -> None:
    source = perception()
    unknown = np.full(9, np.nan)
    source.on_joint_state(joint_state(TICK_NS, velocities=unknown))
    moved = REST + np.array([0.02, *[0.0] * 8])
    source.on_joint_state(joint_state(2 * TICK_NS, moved, velocities=unknown))
    observation = source.observe(2 * TICK_NS)
    assert observation is not None
    assert observation.vector(['panda_joint1.velocity']) == pytest.approx(2.0, rel=1e-5)


def test_never_two_observations_of_one_state() -> None:
    source = perception()
    first = observed(source, TICK_NS)
    assert source.observe(2 * TICK_NS) is None
    second = observed(source, 3 * TICK_NS)
    assert second.id.newer_than(first.id)
    assert second.id.session == first.id.session


def test_each_image_is_used_once_when_the_state_of_its_time_is_there() -> None:
    source = perception()
    observed(source, TICK_NS)
    assert source.on_image(picture(TICK_NS + 5)) is None
    assert source.on_joint_state(joint_state(TICK_NS + 2)) is None
    early = source.observe(TICK_NS + 2)
    assert early is not None
    assert early.images == ()  # the robot's pose at the image is not known yet
    assert [image.stamp_ns for image in observed(source, 2 * TICK_NS).images] == [TICK_NS + 5]
    later = observed(source, 3 * TICK_NS)
    assert later.images == ()
    assert later.oldest_ns == TICK_NS + 5
    assert later.ages_s['front'] == pytest.approx((2 * TICK_NS - 5) / 1e9)


@pytest.mark.parametrize(
    ('image', 'reason'),
    [
        (picture(5 * TICK_NS, name='frnt'), "Did you mean 'front'"),
        (Image('front', 5 * TICK_NS, np.zeros((240, 320, 3), np.uint8)), '(240, 320, 3)'),
        (Image('front', 5 * TICK_NS, np.zeros((120, 160), np.uint8)), '(120, 160)'),
        (Image('front', 5 * TICK_NS, np.zeros((120, 160, 3), np.float32)), 'float32'),
        (picture(TICK_NS), 'older than the newest'),
        (picture(nanoseconds(2.0)), 'ahead of joint_states'),
    ],
)
def test_bad_images_are_refused_with_a_reason(image: Image, reason: str) -> None:
    source = perception()
    observed(source, 4 * TICK_NS)
    assert source.on_image(picture(2 * TICK_NS)) is None
    refused = source.on_image(image)
    assert refused is not None
    assert reason in refused
    assert source.counters['images_refused'] == 1


def test_health_tells_old_missing_and_foreign_parts() -> None:
    source = perception('objects')
    source.on_task(Task('a', 'pick_and_place'))
    start = observed(source, TICK_NS)
    assert (start.health, start.missing) == (Health.BAD, ('front',))
    assert 'front: no image yet' in start.health_reason
    source.on_image(picture(TICK_NS))
    seen = observed(source, 2 * TICK_NS)
    assert (seen.health, seen.missing) == (Health.DEGRADED, ())
    assert seen.health_reason == 'object not found yet'
    assert 'front: image 0.80 s old' in observed(source, nanoseconds(0.81)).health_reason
    assert observed(source, nanoseconds(1.7)).health is Health.BAD
    late = observed(source, nanoseconds(1.8), now_ns=nanoseconds(2.0))
    assert 'joint_states 0.200 s old, limit 0.1 s' in late.health_reason
    ahead = observed(source, nanoseconds(9.0), now_ns=nanoseconds(2.0))
    assert 'ahead of the clock' in ahead.health_reason


def test_a_task_without_objects_needs_no_camera() -> None:
    source = perception('objects')
    source.on_task(Task('a', 'reach', goal_names=('goal.x',), goal=np.ones(1, np.float32)))
    observation = observed(source, TICK_NS)
    assert observation.health is Health.DEGRADED
    assert observation.feature_names == ()
    assert observation.vector(['goal.x']) == pytest.approx(1.0)


def test_lost_images_are_told_for_a_second() -> None:
    source = perception()
    observed(source, TICK_NS)
    source.on_image(picture(TICK_NS))
    observed(source, nanoseconds(1.0))
    source.on_image(picture(nanoseconds(1.0)))
    assert observed(source, nanoseconds(1.01)).dropped == ('front',)
    for tenth in range(12, 21, 2):
        observed(source, nanoseconds(0.1 * tenth))
        source.on_image(picture(nanoseconds(0.1 * tenth)))
    assert observed(source, nanoseconds(2.1)).dropped == ()
    assert observed(source, nanoseconds(2.6)).dropped == ()
    assert observed(source, nanoseconds(2.71)).dropped == ('front',), 'none comes any more'


def test_a_clock_that_is_set_back_starts_anew() -> None:
    source = perception('objects')
    observed(source, nanoseconds(100.0))
    source.on_image(picture(nanoseconds(100.0)))
    observed(source, nanoseconds(100.01))
    restarted = observed(source, TICK_NS)
    assert restarted.stamp_ns == TICK_NS
    assert restarted.missing == ('front',)
    assert source.counters['clock_jumps'] == 1


def test_the_same_task_again_moves_the_goal_and_forgets_nothing() -> None:
    source = perception('objects')
    task = Task('a', 'push', goal_names=('goal.x',), goal=np.zeros(1, np.float32))
    source.on_task(task)
    source._stages['objects']._trackers['object'].position = np.array([0.1, 0.0, 0.02])
    source.on_task(replace(task, goal=np.ones(1, np.float32)))
    observation = observed(source, TICK_NS)
    assert observation.vector(['goal.x', 'object.x']) == pytest.approx([1.0, 0.1])
    source.on_task(replace(task, id='b'))
    observation = observed(source, 2 * TICK_NS)
    assert observation.vector(['goal.x']) == 0.0
    assert np.isnan(observation.vector(['object.x']))


def test_images_from_before_the_task_are_not_used() -> None:
    source = perception()
    observed(source, 2 * TICK_NS)
    source.on_image(picture(TICK_NS))
    source.on_task(Task('b', 'pick_and_place'))
    source.on_image(picture(3 * TICK_NS))
    images = observed(source, 4 * TICK_NS).images
    assert [image.stamp_ns for image in images] == [3 * TICK_NS]


def test_unknown_stages_and_wrong_configurations_are_refused() -> None:
    with pytest.raises(UnknownNameError, match="Did you mean 'objects'"):
        perception('object')
    with pytest.raises(UnknownNameError, match='colour'):
        Perception(
            ROBOT, {}, stage_configs={'objects': Objects.Config(tasks=('push object=gren',))}
        )
    with pytest.raises(UnknownNameError, match='stage'):
        Perception(ROBOT, {}, stage_configs={'object': Objects.Config()})


def test_a_stage_that_throws_leaves_the_rest_standing(monkeypatch: pytest.MonkeyPatch) -> None:
    source = perception('objects')
    source.on_task(Task('a', 'pick_and_place'))
    observed(source, TICK_NS)

    def fail(*_: object) -> None:
        raise ZeroDivisionError('lens cap')

    monkeypatch.setattr(Objects, '_report', fail)
    broken = observed(source, 2 * TICK_NS)
    assert 'objects' in broken.missing
    assert 'stage objects failed: ZeroDivisionError: lens cap' in broken.health_reason
    assert np.isnan(broken.vector(['object.x', 'object.age'])).all()
    assert broken.vector(['gripper.width']) == pytest.approx(0.08)
    monkeypatch.undo()
    assert 'objects' not in observed(source, 3 * TICK_NS).missing
