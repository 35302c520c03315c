"""A robot that does not go where it is sent: stuck, in a protective stop, pushed (D14, D18)."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from chunkpilot_core import robot as robots
from chunkpilot_core.safety.runtime.guard import Guard
from chunkpilot_core.types import ArmState, F64, JointState
import numpy as np
import pytest

ROBOT = robots.load('panda')


class Servo:
    """Lets the measured robot of a bench follow as real ones do: late, noisily, or not at all."""

    def __init__(self, bench: Any, lag_ticks: int = 0, noise: float = 0.0) -> None:
        self.bench, self.lag, self.noise = bench, lag_ticks, noise
        self.random = np.random.default_rng(1)
        self.sent: list[F64] = []
        self.stopped: F64 | None = None
        bench.follows = False
        bench.state_comes = False

    def ticks(self, count: int, make: Callable[[], Any] = lambda: None) -> Any:
        bench = self.bench
        for _ in range(count):
            where = self.sent[-1 - self.lag] if len(self.sent) > self.lag else bench.measured
            if self.stopped is not None:
                where = self.stopped
            bench.measured = where.copy()
            bench.now_s += 0.01  # measured at the time of the tick to come
            bench.measure(
                positions=where + self.random.normal(0.0, self.noise + 1e-9, 9),
                velocities=np.zeros(9),
            )
            bench.now_s -= 0.01
            tick = bench.tick(make())
            if tick.positions is not None:
                self.sent.append(tick.positions)
        return tick

    def stop(self) -> None:
        """Fix the robot where it is, as its own protective stop does."""
        self.stopped = self.bench.measured.copy()


@pytest.fixture
def servo(bench: Any) -> Callable[..., Servo]:
    return lambda **options: Servo(bench().armed(), **options)


@pytest.mark.matrix(34)
@pytest.mark.parametrize('speed', [0.3, 0.6, 1.5])
def test_a_protective_stop_holds_within_0_3_s(servo: Any, speed: float) -> None:
    made = servo(lag_ticks=2, noise=1e-4)
    move = made.bench.moving(speed)
    made.ticks(25, move)
    assert made.bench.state is ArmState.ARMED
    made.stop()
    made.ticks(31, move)
    assert made.bench.state is ArmState.HOLD
    cause = made.bench.guard.machine.causes[0]
    assert cause.startswith('tracking: panda_joint1')


@pytest.mark.matrix(34)
def test_the_hold_stays_while_the_robot_does_and_ends_without_a_jump(servo: Any) -> None:
    made = servo(lag_ticks=2, noise=1e-5)
    bench = made.bench
    move = bench.moving(0.6)
    made.ticks(50, move)
    made.stop()
    made.ticks(31, move)
    made.ticks(300)
    assert bench.state is ArmState.HOLD, 'as long as the robot is elsewhere'
    made.stopped = None
    before = bench.last.positions
    made.ticks(60)
    assert bench.state is ArmState.ARMED, 'released when it is where it is sent'
    assert np.array_equal(bench.last.positions, before), 'the setpoint has not moved'
    follow = bench.moving(0.6)
    made.ticks(100, follow)  # every step is checked by the bench


@pytest.mark.parametrize(
    ('lag_ticks', 'noise'), [(0, 0.0), (5, 1e-4), (9, 1e-3), (2, 0.01)], ids=str
)
def test_a_servo_that_lags_or_is_noisy_holds_nothing(
    servo: Any, lag_ticks: int, noise: float
) -> None:
    made = servo(lag_ticks=lag_ticks, noise=noise)
    bench = made.bench
    start = bench.measured[:7].copy()

    def swing() -> Any:
        angle = 2.0 * np.pi * 0.7 * (bench.now_s - 1000.0)
        target = start + 0.3 * np.sin(angle) * np.array([1, -0.5, 0, 0.5, 1, 0, 1])
        return bench.joints(target)

    made.ticks(600, swing)
    assert bench.state is ArmState.ARMED
    assert not [event for event in bench.events if event.check == 'tracking']


def test_an_arm_pushed_away_at_rest_holds(servo: Any) -> None:
    made = servo()
    made.ticks(30, made.bench.home)
    made.stopped = made.bench.measured + np.array([0, 0, 0, 0.12, 0, 0, 0, 0, 0])
    made.ticks(19, made.bench.home)
    assert made.bench.state is ArmState.ARMED, 'not for a moment'
    made.ticks(3, made.bench.home)
    assert made.bench.state is ArmState.HOLD
    assert 'panda_joint4 is 0.12' in made.bench.guard.machine.causes[0]


def test_a_joint_that_stays_behind_alone_is_named(servo: Any) -> None:
    made = servo()
    bench = made.bench
    start = bench.measured[:7].copy()
    began = bench.now_s
    both = lambda: bench.joints(  # noqa: E731
        start + 0.3 * (bench.now_s + 0.01 - began) * np.array([1, 0, 1, 0, 0, 0, 0])
    )
    for _ in range(60):
        made.stopped = made.sent[-1].copy() if made.sent else bench.measured.copy()
        made.stopped[2] = start[2]
        made.ticks(1, both)
    assert bench.state is ArmState.HOLD
    assert 'panda_joint3' in bench.guard.machine.causes[0]


@pytest.mark.matrix(35)
def test_efforts_above_the_robots_limit_hold_at_the_second_state(bench: Any) -> None:
    strong = replace(ROBOT, max_effort=(20.0,) * 7)
    made = bench()
    made.guard = Guard(strong)
    made.armed()
    made.state_comes = False
    efforts = np.zeros(9)
    efforts[3] = -25.0

    def tick() -> None:
        made.now_s += 0.01
        state = JointState(
            made.now_ns(), ROBOT.joints, made.measured, np.zeros(9), efforts=efforts
        )
        made.guard.on_joint_state(state, made.now_ns())
        made.now_s -= 0.01
        made.tick(made.home())

    tick()
    assert made.state is ArmState.ARMED
    tick()
    assert made.state is ArmState.HOLD
    assert 'panda_joint4' in made.guard.machine.causes[0]
    assert '25.0 Nm' in made.guard.machine.causes[0]


@pytest.mark.parametrize(
    ('efforts', 'words'), [([np.nan] * 9, ''), ([np.inf] * 9, 'effort'), ([1.0] * 3, '3 efforts')]
)
def test_efforts_that_are_none_and_those_that_are_wrong(
    bench: Any, efforts: list[float], words: str
) -> None:
    made = bench().armed()
    made.state_comes = False
    made.now_s += 0.01
    made.measure(efforts=np.array(efforts), velocities=np.zeros(9))
    made.now_s -= 0.01
    made.tick(made.home())
    assert made.state is (ArmState.HOLD if words else ArmState.ARMED)
    assert words in ' '.join(made.guard.machine.causes)
