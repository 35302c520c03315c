"""
What is done to a guard: random and adversarial commands, states, limits, clocks and requests.

An episode is a robot with limits of its own, followed for some thousand ticks. Its mood changes
every now and then; most moods are built to make the guard overshoot, alias or divide by nothing.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from benchmarks.fuzz import news
from benchmarks.fuzz.judge import Judge
from benchmarks.fuzz.moods import MOODS, Moods, SPACE, WEIGHTS
from chunkpilot_core.config import options as options_of
from chunkpilot_core.robot import Robot
from chunkpilot_core.safety.chunk_verdict import ChunkVerdict
from chunkpilot_core.safety.runtime.gate_config import GateConfig
from chunkpilot_core.safety.runtime.guard import Guard, GuardTick
from chunkpilot_core.safety.runtime.machine import Machine
from chunkpilot_core.types import (
    ArmState,
    Command,
    JointState,
    nanoseconds,
)
import numpy as np

PERIOD_S = 0.01
SHAPELESS = 0.7  # of the robots
DISTANCES = ('capsules', 'pybullet')


def random_robot(robot: Robot, random: np.random.Generator) -> Robot:
    """Return the robot with random limits, all within its own."""
    if random.random() < SHAPELESS:  # goes everywhere, and its ticks take half the time
        robot = replace(robot, collision=None)
    if random.random() < 0.2:
        return robot
    margin = float(random.choice([0.0, 0.01, 0.05]))
    limits = []
    for home, limit in zip(robot.home, robot.limits, strict=True):
        low, high = limit.min_position, limit.max_position
        if random.random() < 0.5:  # home stays inside
            low += random.random() * max(home - margin - 0.05 - low, 0.0)
            high -= random.random() * max(high - home - margin - 0.05, 0.0)
        limits.append(
            replace(
                limit,
                min_position=float(low),
                max_position=float(high),
                max_velocity=limit.max_velocity * float(random.uniform(0.05, 1.0)),
                max_acceleration=limit.max_acceleration * float(random.uniform(0.05, 1.0)),
            )
        )
    return replace(
        robot,
        limits=tuple(limits),
        position_margin=margin,
        max_tool_speed=float(random.uniform(0.05, 1.7)),
    )


class Episode(Moods):
    """One guard under attack."""

    def __init__(self, robot: Robot, seed: tuple[int, int], **options: Any) -> None:
        """
        Make a guard of a random variant of a robot.

        :param options: more arguments of :class:`Guard`
        """
        self.random = np.random.default_rng(seed)
        self.robot = self._choose_robot(robot)
        self.guard = Guard(
            self.robot,
            Guard.Config(distances=str(self.random.choice(DISTANCES))),
            machine=Machine.Config(
                ramp_s=float(self.random.choice([0.0, 0.05, 1.0])),
                release_s=float(self.random.choice([0.0, 0.05, 0.5])),
                cooldown_s=0.02,
                ladder_count=100,
            ),
            gate=self._any_gate(),
            checks={
                'chunk_verdict': ChunkVerdict.Config(require=bool(self.random.random() < 0.3))
            },
            **options,
        )
        self.guard.set_space(SPACE, 0.04)
        self.judge = Judge(self.robot, PERIOD_S)
        self.steady_ns = 5_000_000_000
        self.jumped = False
        self.n = len(self.robot.arm_joints)
        grip = self.robot.gripper
        fingers = len(self.robot.joints) - self.n
        width = grip.max_width / 2.0 if grip else 0.0
        self.measured = np.array([*self.robot.home, *[width] * fingers])
        self.velocity = np.zeros(len(self.measured))
        self.lag = 1.0  # share of the way that the robot follows in a tick
        self.noise = 0.0
        self.jitter = 0.0
        self.pressed = False
        self.asked: set[str] = set()
        self.mood: Callable[[], Command | None] = self.smooth
        self._left = 0

    def close(self) -> None:
        """Free what the episode has taken."""

    def _choose_robot(self, robot: Robot) -> Robot:
        return random_robot(robot, self.random)

    def _any_gate(self) -> GateConfig:
        choices = [info for info in options_of(GateConfig) if info.choices]
        return GateConfig(**{i.name: str(self.random.choice(i.choices)) for i in choices})

    # ---- one tick -------------------------------------------------------------------------------

    def step(self) -> list[str]:
        """Let one tick pass and return what was wrong with it."""
        random = self.random
        if self._left <= 0:
            self._change_mood()
        self._left -= 1
        passed_s = self._pass_time()
        self._measure()
        self._ask()
        if random.random() < 0.01:
            news.bring(self)
        command = self.mood()
        if command is not None:
            self.guard.on_command(command, self.now_ns)
        tick = self.guard.tick(self.now_ns, self.steady_ns, command is None)
        wrong = self.judge.look(tick, passed_s, self.jumped, self.asked)
        self.asked = set()
        self.guard.executed()
        self.tick = tick
        self._follow(tick)
        return wrong

    def _pass_time(self) -> float:
        random = self.random
        dt_s = max(self.dt_s * (1.0 + self.jitter * random.uniform(-1.0, 1.0)), 0.0)
        if random.random() < 0.002:
            dt_s = float(random.choice([0.0, 1e-6, 0.001, 0.05, 0.2, 0.9]))
        jump_s = 0.0
        if random.random() < 0.0005:
            jump_s = float(random.choice([-60.0, -0.5, -0.001, 0.3, 0.99, 1.01, 60.0]))
        self.steady_ns += nanoseconds(dt_s)
        self.now_ns += nanoseconds(dt_s + jump_s)
        self.jumped = jump_s != 0.0
        return dt_s + jump_s

    def _measure(self) -> None:
        if self.lag < 0.0:
            return
        positions = self.measured
        if self.noise:
            positions = positions + self.random.normal(0.0, self.noise, len(positions))
        names, stamp_ns = self.robot.joints, self.now_ns
        self.guard.on_joint_state(
            JointState(stamp_ns, names, positions, self.velocity.copy()), stamp_ns
        )

    def _follow(self, tick: GuardTick) -> None:
        before = self.measured
        if tick.positions is not None:
            share = max(self.lag, 0.0)
            self.measured = before + share * (tick.positions - before)
        self.velocity = (self.measured - before) / max(self.dt_s, 1e-3)

    def _ask(self) -> None:
        """Bring the arm back to life, mostly; otherwise ask for anything."""
        random, now_ns = self.random, self.now_ns
        state = self.guard.machine.state
        if state is not ArmState.ARMED and random.random() < 0.2:
            self.lag, self.noise = 1.0, 0.0
            if self.pressed:
                self._press(False)
            wish = {ArmState.DISARMED: 'arm', ArmState.HOLD: 'resume'}.get(state, 'reset')
            self._request(wish)
        if random.random() < 0.003:
            self._request(str(random.choice(['hold', 'resume', 'stop', 'disarm', 'arm', 'reset'])))
        if random.random() < 0.001:
            self._press(bool(random.random() < 0.5))
        if random.random() < 0.002:
            goal = None if random.random() < 0.3 else self.anywhere()
            self.guard.move_to(goal, float(random.choice([0.0, 0.3, 1.0, 2.0])), now_ns)

    def _request(self, name: str) -> None:
        done, _ = getattr(self.guard, name)(self.now_ns)
        if done:
            self.asked.add(name)

    def _press(self, asserted: bool) -> None:
        self.pressed = asserted
        self.guard.on_estop(asserted, 'button', self.now_ns)
        if asserted:
            self.asked.add('pressed')

    def _change_mood(self) -> None:
        random = self.random
        self._left = int(random.integers(10, 300))
        self.mood = getattr(self, str(random.choice(MOODS, p=WEIGHTS)))
        self.dt_s = float(random.choice([0.01] * 6 + [0.002, 0.0101, 0.012, 0.03]))
        self.jitter = float(random.choice([0.0, 0.0, 0.1, 0.9]))
        self.lag = float(random.choice([1.0] * 6 + [0.5, 0.1, 0.0, -1.0]))
        self.noise = float(random.choice([0.0, 0.0, 0.0, 1e-5, 1e-3]))
        if self.mood == self.harmless:
            self.dt_s, self.jitter, self.lag, self.noise = PERIOD_S, 0.0, 1.0, 0.0
        self.begin_mood()
