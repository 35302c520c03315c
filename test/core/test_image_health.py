"""What perception says of a camera that no longer shows the scene (D4 to D6)."""

from collections.abc import Callable
from typing import Any

from chunkpilot_core import camera as cameras
from chunkpilot_core import robot as robots
from chunkpilot_core.perception.objects import Objects
from chunkpilot_core.perception.runtime.image_health import ImageHealth
from chunkpilot_core.perception.runtime.pipeline import Perception
from chunkpilot_core.types import (
    ArmState,
    Health,
    Image,
    Intervention,
    JointState,
    nanoseconds,
    Observation,
    Reaction,
)
import numpy as np
import pytest

ROBOT = robots.load('panda')
FRONT = cameras.load('front')
PERIOD_S = 0.2  # of the camera
RANDOM = np.random.default_rng(3)
SCENE = RANDOM.integers(60, 200, (FRONT.height, FRONT.width, 3)).astype(np.int16)


def live(number: int) -> Any:
    """Return the scene with a grey level of noise."""
    return np.clip(SCENE + RANDOM.normal(0.0, 1.0, SCENE.shape), 0, 255).astype(np.uint8)


def shown(value: int) -> Callable[[int], Any]:
    return lambda number: np.full_like(SCENE, value).astype(np.uint8)


def run(
    picture: Callable[[int], Any],
    duration_s: float = 3.0,
    speed: float = 0.3,
    stages: tuple[str, ...] = ('objects',),
) -> list[Observation]:
    """Show what a camera shows to perception; ``picture`` gives None for a frame that is lost."""
    source = Perception(ROBOT, {'front': FRONT}, Perception.Config(stages=stages))
    positions, seen = np.array([*ROBOT.home, 0.04, 0.04]), []
    velocities = np.full(9, speed)
    for tick in range(round(duration_s / 0.02)):
        now_ns = nanoseconds(1.0 + 0.02 * tick)
        source.on_joint_state(JointState(now_ns, ROBOT.joints, positions, velocities))
        if tick % round(PERIOD_S / 0.02) == 0:
            pixels = picture(tick // round(PERIOD_S / 0.02))
            if pixels is not None:
                assert source.on_image(Image('front', now_ns, pixels)) is None
        found = source.observe(now_ns)
        assert found is not None
        seen.append(found)
    return seen


def test_a_live_camera_is_well() -> None:
    for found in run(live):
        assert not found.frozen
        assert not found.dropped
        assert 'front' not in found.health_reason


def test_the_fifth_equal_image_while_the_arm_moves_is_frozen() -> None:
    same = live(0)
    seen = run(lambda number: same if number >= 3 else live(number))
    first = next(i for i, found in enumerate(seen) if found.frozen)
    assert first == (3 + 4) * 10, 'the fifth of equal images'
    assert seen[first].frozen == ('front',)
    assert seen[first].health is Health.BAD
    assert '5 equal images' in seen[first].health_reason


def test_a_still_arm_before_a_quiet_camera_is_no_frozen_image() -> None:
    same = live(0)
    assert not any(found.frozen for found in run(lambda number: same, speed=0.0))


def test_a_change_of_one_pixel_between_the_samples_is_a_new_image() -> None:
    def almost(number: int) -> Any:
        pixels = SCENE.astype(np.uint8)
        pixels[7, 9] = number
        return pixels

    assert not any(found.frozen for found in run(almost))


def test_a_frozen_camera_that_lives_again_is_well() -> None:
    same = live(0)
    seen = run(lambda number: same if number < 8 else live(number))
    assert seen[79].frozen
    assert not seen[-1].frozen
    assert 'equal' not in seen[-1].health_reason


@pytest.mark.parametrize(
    ('picture', 'words'),
    [(shown(1), 'dark'), (shown(254), 'saturated'), (shown(128), 'blank')],
    ids=['dark', 'saturated', 'blank'],
)
def test_an_image_of_nothing_is_bad_at_the_third(picture: Any, words: str) -> None:
    seen = run(lambda number: picture(number) if number >= 2 else live(number), speed=0.0)
    first = next(i for i, found in enumerate(seen) if words in found.health_reason)
    assert first == (2 + 2) * 10
    assert seen[first].health is Health.BAD


def test_without_need_of_images_a_dark_one_is_no_reason_to_hold() -> None:
    assert run(shown(1), stages=())[-1].health is Health.DEGRADED


def test_every_second_image_lost_is_told_and_one_lost_is_not() -> None:
    half = run(lambda number: live(number) if number % 2 == 0 else None, duration_s=4.0)
    assert half[-1].dropped == ('front',)
    assert half[-1].health is Health.DEGRADED
    one = run(lambda number: live(number) if number != 7 else None)
    assert not any(found.dropped for found in one)


def test_the_cost_is_that_of_a_sample() -> None:
    """Whole images are looked at only where samples are equal."""
    health, image = ImageHealth(), Image('front', 1, live(0))
    health.see(image, 1.0)
    health.see(Image('front', 2, live(1)), 1.0)
    assert health._checksum is None
    assert not health.frozen


# ---- what the guard makes of it (rows 36 and 37) -----------------------------------------------


@pytest.fixture
def driven(bench: Any) -> Any:
    """Return an armed bench that a sender drives."""
    arm = bench().armed()
    arm.ticks(10, arm.home)
    return arm


def show(arm: Any, seen: list[Observation]) -> float:
    """Give the guard observations at 50 Hz until it holds; returns how long that took."""
    for number, found in enumerate(seen):
        arm.guard.on_observation(found, arm.now_ns())
        arm.ticks(2, arm.home)
        if arm.state is not ArmState.ARMED:
            return 0.02 * number
    return float('inf')


@pytest.mark.matrix(37)
@pytest.mark.parametrize('first', [1, 254])
def test_black_and_saturated_images_hold(driven: Any, first: int) -> None:
    assert show(driven, run(shown(first))) <= 3 * PERIOD_S
    assert driven.state is ArmState.HOLD


@pytest.mark.matrix(36)
def test_a_frozen_camera_holds_within_five_images_and_calls_somebody(driven: Any) -> None:
    same = live(0)
    objects = Objects.Config()
    assert objects.tasks, 'the default task needs images'
    assert show(driven, run(lambda number: same)) <= 5 * PERIOD_S
    assert driven.state is ArmState.HOLD
    assert driven.last.verdict.escalate


@pytest.mark.matrix(37)
def test_half_of_the_images_slow_the_arm_to_half(driven: Any) -> None:
    seen = run(lambda number: live(number) if number % 2 == 0 else None, duration_s=4.0, stages=())
    assert show(driven, seen) == float('inf'), 'it goes on'
    assert driven.last.speed_scale == 0.5


@pytest.mark.matrix(37)
def test_a_camera_that_stops_slows_and_then_holds_at_its_age_limit(driven: Any) -> None:
    last = 4
    took_s = show(driven, run(lambda number: live(number) if number <= last else None))
    assert driven.state is ArmState.HOLD
    assert driven.last.verdict.check == 'sensor_health'
    assert 'front' in driven.last.verdict.reason
    slowed = [event for event in driven.events if event.reaction is Reaction.SLOW]
    assert [event.check for event in slowed][:1] == ['sensor_health']
    silent_s = took_s - last * PERIOD_S
    limit_s = Perception.Config().max_image_age_s
    assert limit_s - 0.02 <= silent_s <= limit_s + 0.1, 'and no sooner'


def drive_by_hand(arm: Any, seen: list[Observation]) -> None:
    """Give the guard observations at 50 Hz while a hand drives."""
    for found in seen:
        arm.guard.on_observation(found, arm.now_ns())
        arm.ticks(2, lambda: arm.joints(arm.measured[:7], source='teleop'))


def take(arm: Any, active: bool) -> None:
    arm.guard.on_intervention(Intervention(arm.now_ns(), 'teleop', active), arm.now_ns())


def test_a_hand_is_not_slowed_by_missing_images(driven: Any) -> None:
    take(driven, True)
    half = run(lambda number: live(number) if number % 2 == 0 else None, duration_s=4.0, stages=())
    assert half[-1].dropped
    drive_by_hand(driven, half)
    assert driven.last.verdict.source == 'teleop'
    assert driven.last.speed_scale == 1.0


def test_a_hand_may_drive_where_a_dark_camera_holds_the_policy(driven: Any) -> None:
    dark = run(shown(1))
    show(driven, dark)
    assert driven.state is ArmState.HOLD
    take(driven, True)
    drive_by_hand(driven, dark * 3)
    assert driven.state is ArmState.ARMED
    assert driven.last.verdict.source == 'teleop'
    take(driven, False)
    driven.ticks(1, driven.home)
    assert show(driven, dark) < float('inf'), 'the policy does not go on blindly'
    assert driven.state is ArmState.HOLD
