"""The surprise interrupt: what it cuts for, what it leaves alone, and its limits."""

from dataclasses import replace
import json
import math
from pathlib import Path

from chunkpilot_core import spaces
from chunkpilot_core.config import build
from chunkpilot_core.errors import ConfigError
from chunkpilot_core.execution.runtime import surprise_limits
from chunkpilot_core.execution.runtime.expectation import Arm
from chunkpilot_core.execution.runtime.surprise import Surprise
from chunkpilot_core.execution.runtime.surprise_config import SurpriseConfig
from chunkpilot_core.types import (
    ActionChunk,
    ActionGroup,
    ActionSpace,
    Id,
    Kind,
    ObjectEstimate,
    ObjectStatus,
    Observation,
    PolicySpec,
)
import numpy as np
import pytest

MS = 1_000_000
T0 = 50_000 * MS
SPACE = spaces.ee_delta_space()
SPEC = PolicySpec('fake', 'fake', 1, SPACE, 16, 0.04)
FEATURES = ('object.x', 'object.y', 'object.z', 'object.held', 'object.age', 'force')
FAR = (0.0, 0.0, 0.3)
CUBE = (0.1, 0.05, 0.02)


def by(x: float, y: float, z: float) -> np.ndarray:
    """Return a displacement [m]."""
    return np.array([x, y, z])


class Scene:
    """An observation every 20 ms of a cube, a tool and a goal, given to a monitor."""

    def __init__(self, **options) -> None:
        self.monitor = Surprise(build(SurpriseConfig, {'enabled': True, **options}))
        self.monitor.configure(SPEC)
        self.now = T0
        self.cube, self.tool, self.goal = np.array(CUBE), np.array(FAR), np.zeros(3)
        self.held, self.age, self.width, self.force = False, 0.1, 0.08, 0.0
        self.chunk: ActionChunk | None = None
        self.arm: Arm | None = None
        self.objects: tuple[ObjectEstimate, ...] = ()
        self.row = 0.0
        self.task = 'task'

    def plan(self, **changes) -> 'Scene':
        """Observe, and put a chunk in force that was made of this observation."""
        self.see()
        chunk = ActionChunk(
            Id(1, self.now // MS),
            Id(1, 1),
            1,
            'task',
            Id(1, 1),
            self.now,
            self.now,
            0.04,
            np.zeros((16, 4), np.float32),
            SPACE.hash,
            'fake',
            1,
        )
        self.chunk = replace(chunk, **changes)
        return self

    def see(self, **changes) -> str | None:
        """Let 20 ms pass, change what is given, and observe."""
        self.now += 20 * MS
        for name, value in changes.items():
            setattr(self, name, value)
        features = [*self.cube, float(self.held), self.age, self.force]
        observation = Observation(
            Id(1, self.now),
            self.now,
            self.now,
            ('ee.x', 'ee.y', 'ee.z', 'gripper.width'),
            np.array([*self.tool, self.width], np.float32),
            FEATURES,
            np.array(features, np.float32),
            ('goal.x', 'goal.y', 'goal.z'),
            self.goal.astype(np.float32),
            self.objects,
            task_id=self.task,
        )
        return self.monitor.observe(observation, self.chunk, self.row, self.arm)

    def push(self, way: float, steps: int = 10, cube: float = 1.0) -> str | None:
        """Move the tool along x, and the cube by a share of that."""
        found = None
        for _ in range(steps):
            self.tool = self.tool + by(way / steps, 0, 0)
            self.cube = self.cube + by(cube * way / steps, 0, 0)
            found = found or self.see()
        return found


def estimate(scene: Scene, status: ObjectStatus, position=CUBE, age_ms: int = 0) -> ObjectEstimate:
    stamp = scene.now + 20 * MS - age_ms * MS
    return ObjectEstimate(
        'object', stamp, np.array(position), np.array([0, 0, 0, 1.0]), np.eye(6), status
    )


def test_an_object_that_jumps_is_a_surprise_at_once_and_once() -> None:
    scene = Scene().plan()
    assert scene.see() is None
    scene.cube = scene.cube + by(0.03, 0, 0)
    assert scene.see() == 'object moved 3.0 cm'
    assert scene.see() is None
    assert scene.plan().see() is None  # the next chunk knows where it is


def test_a_jump_between_observation_and_answer_counts_for_the_new_chunk() -> None:
    scene = Scene().plan()
    chunk, scene.chunk = scene.chunk, None
    scene.cube = scene.cube + by(0, 0.04, 0)
    assert scene.see() is None
    assert scene.see(chunk=chunk) == 'object moved 4.0 cm'


def test_noise_and_a_tool_that_moves_elsewhere_are_none() -> None:
    scene = Scene().plan()
    for i in range(30):
        scene.tool = scene.tool + by(0.004, 0, -0.004)
        scene.cube = np.array(CUBE) + np.random.default_rng(i).normal(0.0, 0.002, 3)
        if np.linalg.norm(scene.tool - scene.cube) > 0.08:
            assert scene.see() is None


@pytest.mark.parametrize('share', [0.0, 0.5, 1.0])
def test_a_pushed_object_may_go_along_with_the_fingers(share: float) -> None:
    scene = Scene()
    scene.tool, scene.width = np.array(CUBE) - [0.035, 0, 0], 0.0
    assert scene.plan().push(0.12, cube=share) is None


def test_a_pushed_object_that_goes_its_own_way_is_a_surprise() -> None:
    scene = Scene()
    scene.tool, scene.width = np.array(CUBE) - [0.035, 0, 0], 0.0
    scene.plan().push(0.03)
    scene.cube = scene.cube + by(0, 0.05, 0)
    assert scene.see() == 'object moved 5.0 cm'


def test_a_push_begins_within_a_chunk() -> None:
    scene = Scene()
    scene.tool, scene.width = np.array(CUBE) - [0.1, 0, 0], 0.0
    scene.plan().push(0.065, cube=0.0)
    assert scene.push(0.08) is None
    scene.cube = scene.cube + by(0, 0.04, 0)
    assert scene.see() is not None


def test_closing_fingers_shift_what_is_between_them() -> None:
    scene = Scene(contact_m=0.005)
    scene.tool = np.array(CUBE)
    scene.plan()
    for width in (0.07, 0.06, 0.05, 0.04):
        scene.cube = scene.cube + by(0, 0.004, 0)
        assert scene.see(width=width) is None


def test_a_held_object_follows_the_tool_and_may_not_slide() -> None:
    scene = Scene()
    scene.tool, scene.width, scene.held = np.array(CUBE), 0.04, True
    assert scene.plan().push(0.2) is None
    scene.cube = scene.cube + by(0.05, 0, 0)
    assert scene.see() == 'object slid 5.0 cm in the gripper'


def test_grasping_and_letting_go_are_what_rows_do() -> None:
    scene = Scene()
    scene.tool = np.array(CUBE)
    scene.plan()
    assert scene.see(width=0.04, held=True, cube=scene.cube + by(0, 0.02, 0)) is None
    assert scene.push(0.1) is None
    assert scene.see(width=0.05, held=False, cube=scene.cube - by(0, 0, 0.015)) is None


def test_an_object_that_leaves_closed_fingers_is_a_surprise() -> None:
    def lose(**options) -> str | None:
        scene = Scene(**options)
        scene.tool, scene.width, scene.held = np.array(CUBE), 0.04, True
        scene.plan()
        return scene.see(width=0.01, held=False)

    assert lose() == 'object left the gripper'
    assert lose(grip=False) is None


def test_what_is_not_seen_says_nothing() -> None:
    far = np.array(CUBE) + by(0.3, 0, 0)
    assert Scene().plan().see(cube=far * math.nan) is None
    assert Scene().plan().see(cube=far, age=2.0) is None
    for status, age_ms in ((ObjectStatus.LOST, 0), (ObjectStatus.VISIBLE, 2000)):
        scene = Scene().plan()
        assert scene.see(cube=far, objects=(estimate(scene, status, far, age_ms),)) is None
    scene = Scene()
    scene.cube = far * math.nan
    scene.plan()
    assert scene.see(cube=far) is None  # the chunk expected nothing of it


def test_hidden_objects_are_compared_when_they_come_back() -> None:
    scene = Scene().plan()
    for _ in range(5):
        assert scene.see(age=scene.age + 0.3) is None
    assert scene.see(age=0.1, cube=np.array(CUBE) + by(0.05, 0, 0)) is not None


def test_estimates_go_before_features() -> None:
    scene = Scene()
    scene.objects = (estimate(scene, ObjectStatus.VISIBLE),)
    scene.plan()
    moved = np.array(CUBE) + by(0.03, 0, 0)
    assert scene.see(objects=(estimate(scene, ObjectStatus.VISIBLE, moved),)) is not None


def test_a_goal_jumps_or_goes_on_as_it_went() -> None:
    scene = Scene()
    for _ in range(20):
        scene.see(goal=scene.goal + by(0.001, 0, 0))
    scene.plan()
    for _ in range(25):
        assert scene.see(goal=scene.goal + by(0.001, 0, 0)) is None
    assert scene.see(goal=scene.goal + by(0, 0.04, 0)) == 'goal moved 4.0 cm'
    scene.plan()
    for _ in range(25):  # the jump is no part of its velocity
        assert scene.see(goal=scene.goal + by(0.001, 0, 0)) is None
    still = Scene(goal_moves=False, goal_m=0.015).plan()
    found = [still.see(goal=still.goal + by(0.001, 0, 0)) for _ in range(25)]
    assert sum(reason is not None for reason in found) == 1


def test_a_new_task_is_no_surprise() -> None:
    scene = Scene().plan()
    scene.chunk = None
    assert scene.see(task='next', goal=np.ones(3), cube=np.zeros(3)) is None
    assert scene.plan().see() is None


def test_a_clock_set_back_starts_over() -> None:
    scene = Scene().plan()
    scene.now -= 5000 * MS
    assert scene.see(cube=np.zeros(3)) is None


def arm(measured, *path) -> Arm:
    return Arm(np.array([*measured, 0.08]), np.array([[*place, 0.08] for place in path]))


def test_an_arm_that_lags_is_none_and_one_that_is_pushed_aside_is() -> None:
    scene = Scene(arm_m=0.03)
    scene.arm = arm((0, 0, 0), (0.06, 0, 0), (0.03, 0, 0), (0, 0, 0))
    scene.plan()
    behind = arm((0.03, 0.002, 0), (0.09, 0, 0), (0.06, 0, 0), (0.03, 0, 0))
    assert scene.see(arm=behind) is None
    aside = arm((0.06, 0.04, 0), (0.09, 0, 0), (0.06, 0, 0))
    assert scene.see(arm=aside) == 'arm pushed 4.0 cm'
    scene.plan()
    assert scene.see() is None  # still pushed, but so it was when the policy looked
    assert scene.see(arm=arm((0.06, 0, 0), (0.06, 0, 0))) is None  # let go
    assert scene.see(arm=arm((0.06, -0.04, 0), (0.06, 0, 0))) is not None


def test_policies_of_joints_have_a_limit_in_radians() -> None:
    group = ActionGroup('arm', 0, 2, Kind.JOINT_POSITION, scale=(1.0,) * 2, offset=(0.0,) * 2)
    two = (1.0, 1.0)
    space = spaces.make(ActionSpace((group,), (-1.0, -1.0), two, two, two, two, (False, False)))
    scene = Scene()
    scene.monitor.configure(replace(SPEC, space=space))
    path = np.array([[0.2, 0.0], [0.1, 0.0], [0.0, 0.0]])
    scene.arm = Arm(np.array([0.1, 0.03]), path)
    scene.plan()
    assert scene.see(arm=Arm(np.array([0.2, 0.05]), path)) is None
    assert scene.see(arm=Arm(np.array([0.2, 0.15]), path)) == 'arm pushed 0.120 rad'


def test_named_features_stay_as_they_are() -> None:
    scene = Scene(features=['force=5']).plan()
    assert scene.see(force=4.0) is None
    assert scene.see(force=6.0) == 'force changed by 6'
    assert Scene(features=['force=5']).plan().see(force=math.nan) is None
    with pytest.raises(ConfigError, match=r"'force' is not .<name>=<limit above 0>"):
        Scene(features=['force'])


def test_a_policy_that_predicts_what_it_will_see_is_taken_at_its_word() -> None:
    expected = np.tile(np.array([*CUBE, 0, 0.1, 0], np.float32), (16, 1))
    expected[:, 5] = np.arange(1, 17)
    scene = Scene(expected=0.5).plan(expected_features=expected)
    assert scene.see(row=0.5, force=9.0) is None  # before the first prediction
    assert scene.see(row=4.0, force=4.0) is None
    assert scene.see(row=4.5, force=4.5) is None
    assert scene.see(row=5.0, force=9.0) == 'prediction of the policy off by 1.63'
    scene = Scene(expected=0.5).plan(expected_features=expected[:, :2])
    assert scene.see(row=4.0, force=99.0) is None  # of other features


def test_without_the_observation_that_a_chunk_rests_on_nothing_is_expected() -> None:
    scene = Scene().plan(observation_stamp_ns=T0 - 1000 * MS)
    assert scene.see(cube=np.zeros(3)) is None


def test_a_limit_of_zero_turns_a_source_off() -> None:
    assert Scene(object_m=0.0).plan().see(cube=np.zeros(3)) is None


# ---- limits -------------------------------------------------------------------------------------


def chunks(count: int, **largest: float) -> list[dict[str, float]]:
    return [
        {source: top * (i + 1) / count for source, top in largest.items()} for i in range(count)
    ]


def test_limits_are_conformal_quantiles_and_promise_no_more_than_the_chunks_can() -> None:
    seen = chunks(999, object=0.0999, grip=1.0)
    found = surprise_limits.make(SPEC, 'pick_and_place', 100, seen, 0.01)
    assert found.limits == {'object': pytest.approx(0.099)}  # the 990th of 999; grip has none
    assert found.guaranteed == 0.01
    few = surprise_limits.make(SPEC, 'pick_and_place', 5, chunks(99, object=0.03, arm=0.02), 0.01)
    assert few.limits == {'object': 0.03, 'arm': 0.02}  # the largest
    assert few.guaranteed == pytest.approx(0.02)
    quiet = surprise_limits.make(SPEC, '', 5, chunks(99, object=0.0, goal=0.0), 0.01)
    assert all(limit > 0.0 for limit in quiet.limits.values())
    with pytest.raises(ConfigError, match='needs 20 chunks, got 3'):
        surprise_limits.make(SPEC, '', 5, seen[:3], 0.01)


def test_a_calibration_file_replaces_the_limits_and_is_for_its_policy(tmp_path: Path) -> None:
    file = tmp_path / 'limits.json'
    found = surprise_limits.make(SPEC, 'push', 9, chunks(99, object=0.05), 0.02)
    surprise_limits.save(found, file)
    assert surprise_limits.load(file) == found
    scene = Scene(calibration=str(file)).plan()
    assert scene.see(cube=np.array(CUBE) + by(0.04, 0, 0)) is None
    assert scene.see(cube=np.array(CUBE) + by(0.06, 0, 0)) is not None
    with pytest.raises(ConfigError, match="for policy 'fake', in force is 'other'"):
        scene.monitor.configure(replace(SPEC, name='other'))


@pytest.mark.parametrize(
    'text', ['', '[]', '{}', '{"limits": {"object": -1}}', '{"limits": {"object": NaN}}']
)
def test_a_damaged_calibration_is_refused_with_its_name(tmp_path: Path, text: str) -> None:
    file = tmp_path / 'limits.json'
    whole = surprise_limits.make(SPEC, 'push', 9, chunks(99, object=0.05), 0.02)
    surprise_limits.save(whole, file)
    if 'limits' in text:
        text = json.dumps({**json.loads(file.read_text()), **json.loads(text)})
    file.write_text(text)
    with pytest.raises(ConfigError, match=r'surprise calibration .*limits\.json'):
        surprise_limits.load(file)


def test_departures_are_kept_per_chunk_for_a_calibration() -> None:
    scene = Scene().plan()
    scene.see(cube=np.array(CUBE) + by(0.004, 0, 0))
    scene.plan()
    scene.see()
    first, second = scene.monitor.take()
    assert first['object'] == pytest.approx(0.004, abs=1e-6)
    assert second['object'] == 0.0
    assert scene.monitor.take() == []
