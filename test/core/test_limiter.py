"""The limiter: never beyond a limit, never an overshoot, no lag where the arm can follow."""

from dataclasses import replace

from chunkpilot_core import robot as robots
from chunkpilot_core.errors import ConfigError
from chunkpilot_core.safety.runtime.limiter import (
    braking_speed,
    INWARD_SPEED,
    Limiter,
    Step,
    stopping_speed,
)
from chunkpilot_core.types import F64
from hypothesis import given, settings
from hypothesis import strategies as st
import numpy as np
import pytest

ROBOT = robots.load('panda')
START = np.array([*ROBOT.home, 0.04, 0.04])
STILL = np.zeros(9)


def run(
    limiter: Limiter, target: F64, ticks: int, dt: float = 0.01, start: F64 = START
) -> list[Step]:
    position, velocity, steps = start, STILL, []
    for _ in range(ticks):
        step = limiter.step(position, velocity, target, STILL, dt)
        position, velocity = step.positions, step.velocities
        steps.append(step)
    return steps


@pytest.mark.parametrize('dt', [0.01, 0.002])
def test_a_step_is_reached_exactly_and_never_overshot(dt: float) -> None:
    target = START + np.array([1.0, -0.5, 0.3, 0.2, 0.0, -0.1, -1.0, -0.04, -0.04])
    path = np.array([step.positions for step in run(Limiter(ROBOT), target, round(1.2 / dt), dt)])
    beyond = (path - target) * np.sign(target - START)
    assert beyond.max() <= 1e-15
    assert np.array_equal(path[-1], target)
    arm_done = next(i for i, row in enumerate(path) if np.array_equal(row[:7], target[:7]))
    fastest = 1.0 / 2.175 + 2.175 / 10.0  # [s] joint 1 at its limits, with its partners' in mind
    assert arm_done * dt < fastest + 0.1


def test_the_arm_goes_straight_and_the_gripper_does_not_slow_it() -> None:
    target = START + np.array([0.6, -0.3, 0.2, 0.1, 0.4, -0.2, 0.3, -0.04, -0.04])
    steps = run(Limiter(ROBOT), target, 100)
    share = np.array([(s.positions - START)[:7] / (target - START)[:7] for s in steps])
    assert np.abs(share - share[:, :1]).max() < 1e-12
    assert not any(step.direction_changed for step in steps)
    closed = target.copy()
    closed[7:] = START[7:]
    alone = run(Limiter(ROBOT), closed, 100)
    for with_gripper, without in zip(steps, alone, strict=True):
        assert np.array_equal(with_gripper.positions[:7], without.positions[:7])


def test_a_target_beyond_the_soft_limit_ends_on_it() -> None:
    limiter = Limiter(ROBOT, margin=0.05)
    target = START.copy()
    target[0] = limiter.hard_upper[0] + 1.0
    path = np.array([step.positions[0] for step in run(limiter, target, 400)])
    assert path.max() <= limiter.hard_upper[0] - 0.05
    assert path[-1] == pytest.approx(limiter.hard_upper[0] - 0.05, abs=1e-9)


def test_what_the_arm_can_follow_passes_bit_for_bit() -> None:
    limiter = Limiter(ROBOT)
    position, velocity = START, STILL
    for tick in range(300):
        time_s = 0.01 * (tick + 1)
        moved = 0.4 * (1.0 - np.cos(1.5 * time_s)) * np.array([1, -0.5, 0.3, 0.2, 1, 0.5, -1])
        target = START + np.append(moved, [0.0, 0.0])
        rate = np.append(0.6 * np.sin(1.5 * time_s) * np.ones(7), [0.0, 0.0]) * np.sign(
            np.append(moved, [0.0, 0.0])
        )
        rate[:7] *= np.abs([1, -0.5, 0.3, 0.2, 1, 0.5, -1])
        step = limiter.step(position, velocity, target, rate, 0.01)
        assert np.array_equal(step.positions, target), f'tick {tick}'
        position, velocity = step.positions, step.velocities


def test_after_a_step_of_velocity_the_lag_goes_to_zero() -> None:
    """As at the border of two rows: the limits forbid following at once, but not for long."""
    limiter = Limiter(ROBOT)
    rate = np.array([0.3, 0.2, -0.2, 0.3, 0.3, -0.3, 0.3, 0.0, 0.0])
    position, velocity, target = START, STILL, START
    lag = []
    for _ in range(60):
        target = target + rate * 0.01
        step = limiter.step(position, velocity, target, rate, 0.01)
        position, velocity = step.positions, step.velocities
        lag.append(np.abs(target - position).max())
    assert max(lag) < 0.02
    assert max(lag[15:]) == 0.0


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from([(0.01,), (0.002,), (0.002, 0.01, 0.03)]))
def test_no_target_no_timing_and_no_scale_breaks_a_limit(
    seed: int, lengths: tuple[float, ...]
) -> None:
    limiter, random = Limiter(ROBOT), np.random.default_rng(seed)
    position, velocity, target, rate, scale = START, STILL, START, STILL, 1.0
    for _ in range(150):
        dt = float(random.choice(lengths))
        if random.random() < 0.1:
            target = random.uniform(limiter.lower - 2.0, limiter.upper + 2.0)
            rate = random.uniform(-4.0, 4.0, 9) * (random.random() < 0.5)
            scale = float(random.choice([0.0, 0.3, 1.0]))
        if random.random() < 0.1:
            step = limiter.brake(position, velocity, dt)
        else:
            step = limiter.step(position, velocity, target, rate, dt, scale)
        assert np.all(step.positions <= limiter.upper + 1e-12)
        assert np.all(step.positions >= limiter.lower - 1e-12)
        assert np.all(np.abs(step.velocities) <= limiter.max_velocity * (1 + 1e-9))
        change = np.abs(step.velocities - velocity)
        assert np.all(change <= limiter.max_acceleration * dt * (1 + 1e-9))
        position, velocity = step.positions, step.velocities


def test_permuted_joints_give_the_permuted_answer() -> None:
    """P8: nothing depends on the place of a joint."""
    order = np.array([3, 0, 6, 1, 5, 2, 4])
    permuted = replace(
        ROBOT,
        chain=tuple(ROBOT.chain[i] for i in order),
        limits=tuple(ROBOT.limits[i] for i in order),
    )
    whole = np.append(order, [7, 8])
    target = START + np.linspace(-0.5, 0.5, 9)
    plain = run(Limiter(ROBOT), target, 30)
    other = run(Limiter(permuted), target[whole], 30, start=START[whole])
    for a, b in zip(plain, other, strict=True):
        assert np.allclose(a.positions[whole], b.positions, atol=1e-15)


def test_braking_keeps_the_direction_and_ends_where_it_was_foretold() -> None:
    limiter = Limiter(ROBOT)
    velocity = np.array([1.0, -0.7, 0.4, 0.9, -1.2, 0.3, 1.5, 0.0, 0.0])
    foretold = limiter.stop_position(START, velocity, 0.01)
    position, before, ticks = START, velocity, 0
    while not limiter.at_rest(before):
        step = limiter.brake(position, before, 0.01)
        assert not step.direction_changed
        if not limiter.at_rest(step.velocities):
            assert np.allclose(step.velocities[:7] / velocity[:7], step.velocities[0] / 1.0)
        position, before, ticks = step.positions, step.velocities, ticks + 1
    assert np.allclose(position, foretold, atol=1e-12)
    slowest = (np.abs(velocity[:7]) / limiter.max_acceleration[:7]).max()
    assert ticks * 0.01 <= slowest + 0.0101
    room = velocity**2 / (2 * limiter.max_acceleration.min()) + np.abs(velocity) * 0.01
    assert np.all(np.abs(position - START) <= room + 1e-12)  # P7


def test_outside_a_soft_limit_only_slowly_inwards() -> None:
    limiter = Limiter(ROBOT)
    start = START.copy()
    start[3] = limiter.lower[3] - 0.03
    outward = start.copy()
    outward[3] -= 0.01
    inwards = run(limiter, START, 100, start=start)
    path = np.array([step.positions[3] for step in inwards])
    assert np.all(np.diff(path) >= 0.0)
    outside = path < limiter.lower[3] - 1e-9
    speeds = np.array([step.velocities[3] for step in inwards])
    assert speeds[outside].max() <= INWARD_SPEED
    assert path[-1] > limiter.lower[3]
    stays = run(limiter, outward, 5, start=start)
    assert stays[-1].positions[3] >= start[3]


def test_a_margin_without_room_and_a_bad_limit_are_refused() -> None:
    with pytest.raises(ConfigError, match='leaves no room'):
        Limiter(ROBOT, margin=2.0)
    broken = replace(
        ROBOT, limits=(replace(ROBOT.limits[0], max_velocity=np.nan), *ROBOT.limits[1:])
    )
    with pytest.raises(ConfigError, match='max_velocity'):
        Limiter(broken)


def test_speeds_to_stop_are_exact() -> None:
    acceleration, dt = np.array([7.5]), 0.01
    for way in (0.0, 1e-6, 0.0004, 0.01, 0.5):
        position, speed = 0.0, float(stopping_speed(np.array([way]), acceleration, dt)[0])
        while speed > 0.0:
            position += speed * dt
            speed -= 7.5 * dt
        assert position <= way + 1e-12
        careful = float(braking_speed(np.array([way]), acceleration, dt)[0])
        assert careful <= float(stopping_speed(np.array([way]), acceleration, dt)[0]) + 1e-12


# ---- limits that depend on the pose -------------------------------------------------------------

# Franka's published ones of the FR3 for these joints: velocity offset and deceleration limit.
FR3 = [(0.3, 6.0), (0.2, 2.585), (0.2, 3.5), (0.3, 4.0), (0.35, 17.0), (0.35, 5.5), (0.35, 17.0)]


def slow_at_the_ends() -> Limiter:
    limits = tuple(
        replace(limit, velocity_offset=offset, deceleration_limit=deceleration)
        for limit, (offset, deceleration) in zip(ROBOT.limits, FR3, strict=True)
    )
    return Limiter(replace(ROBOT, limits=limits), 0.01)


def allowed_there(limiter: Limiter, position: F64, upwards: bool) -> F64:
    """Return the maker's limit of each arm joint at a position, as it is published."""
    offset, deceleration = np.array(FR3).T
    room = limiter.hard_upper - position if upwards else position - limiter.hard_lower
    speed = np.sqrt(np.maximum(2.0 * deceleration * room[:7], 0.0)) - offset
    return np.minimum(limiter.max_velocity[:7], np.maximum(speed, 0.0))


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.lists(st.floats(-4.0, 4.0), min_size=7, max_size=7), min_size=1, max_size=4),
    st.sampled_from([0.01, 0.002]),
)
def test_near_the_end_of_its_range_a_joint_is_as_slow_as_there_is_asked(
    goals: list[list[float]], dt: float
) -> None:
    limiter = slow_at_the_ends()
    position, velocity = START, STILL
    for goal in goals:
        target = np.array([*goal, 0.04, 0.04])
        for _ in range(round(1.0 / dt)):
            step = limiter.step(position, velocity, target, STILL, dt)
            assert np.abs(step.velocities - velocity).max() <= 20.0 * dt + 1e-9
            position, velocity = step.positions, step.velocities
            for upwards in (True, False):
                speed = velocity[:7] if upwards else -velocity[:7]
                # Both where the tick began and where it ended, as a driver looks at either.
                assert np.all(speed <= allowed_there(limiter, position, upwards) + 1e-9)


def test_limits_at_the_ends_slow_the_arm_there_and_nowhere_else() -> None:
    plain, slow = Limiter(ROBOT, 0.01), slow_at_the_ends()
    inside = START + np.array([0.5, 0.2, -0.4, 0.1, 0.3, -0.2, 0.4, 0.0, 0.0])
    for one, other in zip(run(plain, inside, 60), run(slow, inside, 60), strict=True):
        assert np.array_equal(one.positions, other.positions)
    end = START.copy()
    end[1] = 5.0
    ticks = [len(run_until(limiter, end, 1.6)) for limiter in (plain, slow)]
    assert ticks[1] > ticks[0] + 5
    assert run(slow, end, 1500)[-1].positions[1] <= slow.upper[1]
    fastest = slow.speed_limits(np.array([0, 1.7, 0, -1, 0, 1, 0, 0, 0], float), 0.01)
    assert fastest[1] < 0.4
    assert np.array_equal(fastest[[0, 2]], slow.max_velocity[[0, 2]])


def run_until(limiter: Limiter, target: F64, position: float) -> list[Step]:
    """Return the steps until joint 2 is there."""
    steps = run(limiter, target, 400)
    there = next(i for i, step in enumerate(steps) if step.positions[1] >= position)
    return steps[:there]
