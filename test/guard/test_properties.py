"""
The guard's promises P1 to P12, whatever comes in: 2,000 examples.

GuardBench checks P1, P2 and P12 at every tick. P9 is the execution node's, who slows the plan:
test_execution.py.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from benchmarks.fuzz.attack import Episode
from chunkpilot_core import robot as robots
from chunkpilot_core import spaces
from chunkpilot_core.safety.runtime.guard import Guard
from chunkpilot_core.safety.runtime.limiter import Limiter
from chunkpilot_core.safety.runtime.machine import Machine
from chunkpilot_core.types import (
    ActionChunk,
    ArmState,
    ChunkVerdict,
    Command,
    CommandGroup,
    F64,
    Health,
    Id,
    JointState,
    Kind,
    Observation,
    Reaction,
    Rotation,
)
from hypothesis import given, HealthCheck, Phase, settings
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

ROBOT = robots.load('panda')
SHAPELESS = replace(ROBOT, collision=None, max_tool_speed=5.0)
"""Free to go everywhere at any speed: these promises are about joints."""
HOME = np.array(ROBOT.home)
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

        @rule(
            rows=st.lists(st.tuples(*[NUMBERS] * 4), max_size=20),
            dt_s=st.sampled_from([0.04, 0.1, 0.0, float('nan')]),
            ok=st.booleans(),
        )
        def chunk(self, rows: list[tuple[float, ...]], dt_s: float, ok: bool) -> None:
            self.arm.seq += 1
            now_ns, identity = self.arm.now_ns(), Id(2, self.arm.seq)
            with np.errstate(over='ignore'):
                actions = np.array(rows, np.float32).reshape(-1, 4)
            epoch = self.arm.guard.machine.epoch
            self.arm.guard.on_chunk(
                ActionChunk(
                    identity, identity, epoch, '', Id(3, 1), now_ns, now_ns, dt_s, actions,
                    SPACE.hash, 'policy', 1,
                ),
                now_ns,
            )  # fmt: skip
            verdict = ChunkVerdict(now_ns, identity, ok, executable_rows=len(rows))
            self.arm.guard.on_chunk_verdict(verdict, now_ns)
            self.tick(self.arm.home(chunk_id=identity, row=0))

        @rule(cost_s=st.sampled_from([0.001, 0.006, 0.05, float('nan')]))
        def costs(self, cost_s: float) -> None:
            self.arm.guard.on_cost(cost_s, self.arm.now_ns())
            self.tick()

        @rule(approved=st.booleans())
        def approve(self, approved: bool) -> None:
            assert self.arm.guard.approve('', approved, self.arm.now_ns())[1]

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


def test_p6_no_sequence_of_inputs_breaks_a_promise(bench: Any) -> None:
    """P1, P2, P6, P11, P12 over everything at once."""
    run_state_machine_as_test(
        machine_of(bench),
        settings=settings(
            max_examples=40,
            stateful_step_count=20,
            phases=(Phase.explicit, Phase.reuse, Phase.generate),  # shrinking takes minutes
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


class Pair:
    """A guard without shape and ramp, armed at home, and the ticks that were made with it."""

    def __init__(self, **options: Any) -> None:
        self.guard = Guard(SHAPELESS, machine=Machine.Config(ramp_s=0.0), **options)
        self.now_ns, self.steady_ns = 1_000_000_000_000, 5_000_000_000
        self.measured = np.array([*ROBOT.home, 0.04, 0.04])
        self.velocity = np.zeros(9)
        self.seq = 0
        self.blind = False
        self.tick()
        done, message = self.guard.arm(self.now_ns)
        assert done, message
        self.tick()

    def tick(self, target: F64 | None = None, **changes: Any) -> Any:
        """Let 10 ms pass with a command of joint positions (7,), or none."""
        self.now_ns += 10_000_000
        self.steady_ns += 10_000_000
        if not self.blind:
            state = JointState(self.now_ns, ROBOT.joints, self.measured, self.velocity)
            self.guard.on_joint_state(state, self.now_ns)
        if target is not None:
            self.guard.on_command(self.command(target, **changes), self.now_ns)
        tick = self.guard.tick(self.now_ns, self.steady_ns, target is None)
        if tick.positions is not None:
            self.velocity = (tick.positions - self.measured) / 0.01
            self.measured = tick.positions.copy()
        return tick

    def command(self, target: F64, **changes: Any) -> Command:
        self.seq += 1
        names = changes.pop('names', ROBOT.arm_joints)
        arm = CommandGroup('arm', Kind.JOINT_POSITION, target, np.zeros(0), names=names)
        values: dict[str, Any] = {
            'id': Id(7, self.seq),
            'stamp_ns': self.now_ns,
            'arm_epoch': self.guard.machine.epoch,
            'groups': (arm,),
        }
        return Command(**{**values, **changes})


ANYWHERE = st.lists(st.floats(-0.15, 0.15), min_size=7, max_size=7).map(lambda x: HOME + x)
PATHS = st.lists(st.tuples(ANYWHERE, st.integers(1, 8)), min_size=2, max_size=5)
"""Places near home, where the tool stays in its box, and for how many ticks each is commanded."""
WAVES = st.lists(st.tuples(st.floats(0.0, 1.0), st.floats(0.5, 3.0)), min_size=7, max_size=7)
"""Size, as a share of what the limits allow, and rate [rad/s] of each joint's motion."""


def targets_of(path: list[tuple[F64, int]]) -> list[F64]:
    return [target for target, count in path for _ in range(count)]


def smooth(waves: list[tuple[float, float]], count: int) -> F64:
    """Return a motion from rest at home within the limits of velocity and acceleration, (T, 7)."""
    limiter = Limiter(SHAPELESS, ROBOT.position_margin)
    share, rate = np.array(waves).T
    fastest = limiter.max_velocity[:7] / rate, limiter.max_acceleration[:7] / rate**2
    size = share * np.minimum(0.08, 0.9 * np.minimum(*fastest))
    time_s = 0.01 * np.arange(1, count + 1)[:, None]
    moved: F64 = HOME + size * (1.0 - np.cos(rate * time_s))
    return moved


@settings(max_examples=200)
@given(PATHS)
def test_p3_what_the_guard_lets_through_it_lets_through_again(path: Any) -> None:
    first, second = Pair(), Pair()
    for target in targets_of(path):
        sent = first.tick(target).positions[:7]
        again = second.tick(sent)
        assert np.array_equal(again.positions[:7], sent)
        assert again.verdict.reaction is Reaction.PASS


@settings(max_examples=300)
@given(WAVES)
def test_p4_a_smooth_motion_within_the_limits_passes_bit_for_bit(waves: Any) -> None:
    pair = Pair()
    for target in smooth(waves, 30):
        tick = pair.tick(target)
        assert np.array_equal(tick.positions[:7], target)
        assert tick.verdict.reaction is Reaction.PASS


def _nan(pair: Pair, target: F64) -> F64:
    return np.where(np.arange(7) == 3, np.nan, target)


def _estop(pair: Pair, target: F64) -> F64:
    pair.guard.on_estop(True, 'button', pair.now_ns)
    return target


def _silence(pair: Pair, target: F64) -> None:
    return None


def _blind(pair: Pair, target: F64) -> F64:
    pair.blind = True
    return target


def _broken_state(pair: Pair, target: F64) -> F64:
    pair.blind = True
    pair.guard.on_joint_error('not readable', pair.now_ns)
    return target


def _far(pair: Pair, target: F64) -> F64:
    return target + 5.0


def _refused_chunk(pair: Pair, target: F64) -> F64:
    pair.guard.on_cost(0.5, pair.now_ns)
    return target


FAULTS = st.sampled_from([_nan, _estop, _silence, _blind, _broken_state, _far, _refused_chunk])


@settings(max_examples=300)
@given(PATHS, FAULTS, st.integers(0, 30))
def test_p5_a_fault_never_lowers_the_reaction(
    path: Any, fault: Callable[[Pair, F64], F64 | None], begins: int
) -> None:
    """Of two guards with the same past, the one that meets a fault reacts at least as hard."""
    good, bad = Pair(), Pair()
    targets = targets_of(path)
    begins = min(begins, len(targets) - 1)
    for number, target in enumerate(targets):
        reaction = good.tick(target).verdict.reaction
        wished = fault(bad, target) if number >= begins else target
        faulty = bad.tick(wished).verdict.reaction
        if number == begins:
            assert faulty >= reaction or fault is _silence
        assert faulty >= Reaction.HOLD or number < begins + 25 or fault is _far


@settings(max_examples=600)
@given(
    st.lists(st.floats(-1.0, 1.0), min_size=7, max_size=7),
    st.sampled_from([0.01, 0.002, 0.03]),
)
def test_p7_stopping_takes_no_more_room_than_physics(speeds: list[float], dt: float) -> None:
    """All joints come to rest together, so the one that needs longest gives the time."""
    limiter = Limiter(SHAPELESS, 0.0)
    velocity = np.zeros(9)
    velocity[:7] = np.array(speeds) * limiter.max_velocity[:7]
    start = np.array([*ROBOT.home, 0.02, 0.02])
    longest_s = float((np.abs(velocity) / limiter.max_acceleration).max())
    position, now, spent_s = start, velocity, 0.0
    while not limiter.at_rest(now):
        step = limiter.brake(position, now, dt)
        position, now, spent_s = step.positions, step.velocities, spent_s + dt
        assert spent_s <= longest_s + dt * (1 + 1e-9)
    room = np.abs(velocity) * (longest_s / 2.0 + dt)
    assert np.all(np.abs(position - start) <= room + 1e-12)


@settings(max_examples=300)
@given(st.permutations(range(7)), PATHS)
def test_p8_the_order_of_joints_commutes(order: list[int], path: Any) -> None:
    plain, permuted = Pair(), Pair()
    names = tuple(ROBOT.arm_joints[i] for i in order)
    for target in targets_of(path):
        one = plain.tick(target)
        other = permuted.tick(target[list(order)], names=names)
        assert np.array_equal(one.positions, other.positions)
        assert one.verdict.reaction is other.verdict.reaction


@settings(max_examples=200)
@given(st.integers(0, 2**31))
def test_p11_no_attack_raises_or_breaks_a_promise(number: int) -> None:
    """P1, P2, P6 and P12, too: by the attacks of ``make fuzz``."""
    episode = Episode(SHAPELESS, (3, number))
    for tick in range(30):
        assert episode.step() == [], f'tick {tick}, {episode.mood.__name__}'


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
def test_p10_the_same_inputs_give_the_same_decisions(bench: Any, seed: int) -> None:
    """A recorded run can be replayed."""
    for once, again in zip(run_random(bench, seed), run_random(bench, seed), strict=True):
        assert repr(once) == repr(again)


@settings(max_examples=60)
@given(st.integers(0, 2**31))
def test_p10_attacks_are_met_twice_alike(number: int) -> None:
    once, again = Episode(SHAPELESS, (4, number)), Episode(SHAPELESS, (4, number))
    for _ in range(30):
        once.step()
        again.step()
        assert repr(once.tick) == repr(again.tick)
