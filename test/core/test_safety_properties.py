"""Whatever comes in: the guard's promises hold. GuardBench checks the limits at every tick."""

from typing import Any

from chunkpilot_core import spaces
from chunkpilot_core.types import (
    ArmState,
    CommandGroup,
    Health,
    Id,
    Kind,
    Observation,
    Reaction,
    Rotation,
)
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    initialize,
    invariant,
    rule,
    RuleBasedStateMachine,
    run_state_machine_as_test,
)
import numpy as np
import pytest

SPACE = spaces.ee_delta_space()
LATCHED = (ArmState.STOPPED, ArmState.ESTOP)
NUMBERS = st.one_of(
    st.floats(-3.5, 3.5),
    st.sampled_from([float('nan'), float('inf'), -1e308, 1e308, 0.0, 1e-300]),
)
KINDS = st.sampled_from([*Kind])
LENGTHS = st.sampled_from([0.003, 0.01, 0.01, 0.01, 0.012, 0.03, 0.15])


def machine_of(bench: Any) -> type[RuleBasedStateMachine]:
    """Return a state machine over everything that can be done to a guard."""

    class AnythingGoes(RuleBasedStateMachine):
        """Messages, faults, services and time, in any order."""

        @initialize()
        def start(self) -> None:
            self.arm = bench()
            self.arm.slack_s = 0.01  # stamps in the past
            self.arm.guard.set_space(SPACE, 0.04)
            self.arm.ticks(2)
            self.seen = self.arm.state
            self.was_reset = self.was_armed = True

        def tick(self, command: Any = None, dt: float = 0.01, jump_s: float = 0.0) -> None:
            tick = self.arm.tick(command, dt=dt, jump_s=jump_s)
            status = tick.status
            assert status.state is self.arm.state
            if self.arm.state in (ArmState.ARMED, ArmState.HOLD):
                assert tick.positions is not None, 'never silent while armed'
            if self.arm.state is ArmState.DISARMED:
                assert tick.positions is None, 'always silent while disarmed'
            if self.arm.state is ArmState.HOLD:
                assert tick.verdict.reaction >= Reaction.HOLD
            self.arm.guard.executed()

        def follow(self) -> None:
            """P6: out of STOPPED and ESTOP leads only a reset, and out of DISARMED only arm."""
            state = self.arm.state
            if self.seen in LATCHED and state not in LATCHED:
                assert self.was_reset
                assert state is ArmState.DISARMED
            if self.seen is ArmState.DISARMED and state in (ArmState.ARMED, ArmState.HOLD):
                assert self.was_armed
            self.seen, self.was_reset, self.was_armed = state, False, False

        @rule(dt=LENGTHS, count=st.integers(1, 30))
        def wait(self, dt: float, count: int) -> None:
            for _ in range(count):
                self.tick(dt=dt)
                self.follow()

        @rule(values=st.lists(st.floats(-3.0, 3.0), min_size=7, max_size=7), dt=LENGTHS)
        def joints(self, values: list[float], dt: float) -> None:
            self.tick(self.arm.joints(np.array(values), stamp_ns=self.stamp(dt)), dt=dt)

        @rule(
            step=st.tuples(*[st.floats(-0.02, 0.02)] * 3),
            width=st.floats(0.0, 0.08),
            count=st.integers(1, 30),
        )
        def tool(self, step: tuple[float, ...], width: float, count: int) -> None:
            here = self.arm.guard.kinematics.forward(self.arm.measured[:7]).position
            for i in range(count):
                target = here + np.array(step) * i / 10.0
                self.tick(self.arm.tool(target, width, row=i // 4, chunk_id=Id(2, 1)))

        @rule(
            kind=KINDS,
            values=st.lists(NUMBERS, max_size=9),
            rotation=st.sampled_from([*Rotation]),
            frame=st.sampled_from(['', 'world', 'moon']),
        )
        def garbage(self, kind: Any, values: list[float], rotation: Any, frame: str) -> None:
            numbers = np.array(values)
            names = self.arm.limiter.joints[: len(values)]
            group = CommandGroup('x', kind, numbers, numbers, frame, rotation, names)
            self.tick(self.arm.command((group,), width=values[0] if values else None))

        @rule(back_s=st.floats(-5.0, 5.0))
        def stamped_wrongly(self, back_s: float) -> None:
            stamp_ns = self.arm.now_ns() - round(back_s * 1e9)
            self.tick(self.arm.home(stamp_ns=stamp_ns))

        @rule(epoch=st.integers(0, 5), session=st.integers(7, 8))
        def foreign(self, epoch: int, session: int) -> None:
            command = self.arm.home(arm_epoch=epoch, id=Id(session, self.arm.seq + 1))
            self.tick(command)

        @rule(index=st.integers(0, 8), value=NUMBERS)
        def broken_state(self, index: int, value: float) -> None:
            self.arm.state_comes = False
            positions = self.arm.measured.copy()
            positions[index] = value
            self.arm.measure(positions=positions)
            self.tick()
            self.arm.state_comes = True

        @rule(count=st.sampled_from([1, 5, 15, 110]))
        def no_state(self, count: int) -> None:
            self.arm.state_comes = False
            for _ in range(count):
                self.tick()
                self.follow()
            self.arm.state_comes = True

        @rule(jump_s=st.sampled_from([-60.0, -0.5, 2.0, 60.0]))
        def clock_jumps(self, jump_s: float) -> None:
            self.tick(jump_s=jump_s)

        @rule(health=st.sampled_from([*Health]))
        def observes(self, health: Health) -> None:
            self.arm.seq += 1
            observation = Observation(
                Id(3, self.arm.seq), 0, 0, (), np.zeros(0, np.float32), health=health
            )
            self.arm.guard.on_observation(observation, self.arm.now_ns())

        @rule(asserted=st.booleans(), source=st.sampled_from(['a', 'b']))
        def estop(self, asserted: bool, source: str) -> None:
            self.arm.guard.on_estop(asserted, source, self.arm.now_ns())

        @rule(name=st.sampled_from(['arm', 'disarm', 'hold', 'resume', 'stop', 'reset']))
        def request(self, name: str) -> None:
            self.follow()
            done, message = getattr(self.arm.guard, name)(self.arm.now_ns())
            assert message
            self.was_reset, self.was_armed = done and name == 'reset', done and name == 'arm'

        @rule(name=st.sampled_from(['arm', 'reset', 'arm']))
        def patiently(self, name: str) -> None:
            """Without this, chance alone rarely gets past the preconditions."""
            for source in ('a', 'b'):
                self.arm.guard.on_estop(False, source, self.arm.now_ns())
            self.wait(0.01, 60)
            self.request(name)

        @rule(fraction=st.floats(-0.5, 1.5), joint=st.integers(0, 6), value=NUMBERS)
        def move_to(self, fraction: float, joint: int, value: float) -> None:
            goal = self.arm.measured[:7].copy()
            goal[joint] = value
            self.arm.guard.move_to(goal, fraction, self.arm.now_ns())
            self.wait(0.01, 20)

        @rule(running=st.booleans())
        def episode(self, running: bool) -> None:
            self.arm.guard.set_episode(running, 'e', 't')

        @invariant()
        def follows(self) -> None:
            if hasattr(self, 'arm'):
                self.follow()

        def stamp(self, dt: float) -> int:
            return round((self.arm.now_s + dt) * 1e9)

    return AnythingGoes


def test_no_sequence_of_inputs_breaks_a_promise(bench: Any) -> None:
    """P1, P2, P6, P11, P12 over everything at once."""
    run_state_machine_as_test(
        machine_of(bench),
        settings=settings(
            max_examples=20,
            stateful_step_count=20,
            phases=(Phase.explicit, Phase.reuse, Phase.generate),  # shrinking takes minutes
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


def run_random(bench: Any, seed: int) -> list[Any]:
    """Return every verdict of a random run."""
    random = np.random.default_rng(seed)
    arm, verdicts = bench().armed(), []
    arm.slack_s = 0.005  # commands are stamped as if every tick took 0.01 s
    arm.guard.set_space(SPACE, 0.04)
    here = arm.guard.kinematics.forward(arm.measured[:7]).position
    for number in range(250):
        dt = float(random.choice([0.008, 0.01, 0.013]))
        command = None
        if random.random() < 0.9:
            here = here + random.normal(0.0, 0.002, 3)
            command = arm.tool(here, 0.08 * (random.random() < 0.5), row=number // 4)
        if random.random() < 0.02:
            command = arm.joints(np.full(7, np.nan))
        if random.random() < 0.005:
            arm.guard.on_estop(True, 'x', arm.now_ns())
        tick = arm.tick(command, dt=dt)
        verdicts.append((tick.verdict, tick.events, tick.status, arm.guard.executed()))
    return verdicts


@pytest.mark.parametrize('seed', [0, 1])
def test_the_same_inputs_give_the_same_decisions(bench: Any, seed: int) -> None:
    """P10: a recorded run can be replayed."""
    for once, again in zip(run_random(bench, seed), run_random(bench, seed), strict=True):
        assert repr(once) == repr(again)
