"""
The node decides as the core does: an episode of the core alone, played to the node message by
message, gives the same requests, decisions and commands.
"""

from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip('rclpy')

from chunkpilot.msg import EpisodeEvent
from chunkpilot_core import registry, types
from chunkpilot_core.config import build
from chunkpilot_core.eval.loop import Loop, LoopConfig
from chunkpilot_core.execution.runtime.executor import Executor
from chunkpilot_core.policies.runtime import checkpoint
from chunkpilot_core.safety.runtime.guard import Guard
from chunkpilot_nodes import convert, execution_node
import domain_coordinator
import rclpy
from std_msgs.msg import Float64

pytestmark = pytest.mark.ros

SEED = 3
CASES = {
    'upcycling': ('mlp', {'horizon': 4, 'ratio': 2.0}),
    'fixed': ('mlp', {'horizon': 8}),
    'auto': ('mlp', {'horizon': 4}),
    'temporal_ensemble': ('mlp', {'every': 2}),
    'median_ensemble': ('mlp', {'every': 2}),
    'vote': ('flow', {'every': 2}),
    'foresight': ('mlp', {'horizon': 8}),
    'real_time_chunking': ('flow', {'horizon': 8}),
    'bid': ('flow', {'horizon': 8, 'samples': 5}),
}
FAST = ('upcycling', 'real_time_chunking')
INPUTS = ('set_guard', 'set_episode', 'set_speed_scale', 'observe', 'receive')


@pytest.fixture
def record(monkeypatch) -> list[tuple[str, tuple[Any, ...]]]:
    """Return a list that fills with all that an executor of the core is told, and its ticks."""
    calls: list[tuple[str, tuple[Any, ...]]] = []
    tick, told = Executor.tick, Guard.on_joint_state

    def remember(name: str) -> None:
        method = getattr(Executor, name)

        def wrapped(self, *args):
            calls.append((name, args))
            return method(self, *args)

        monkeypatch.setattr(Executor, name, wrapped)

    def ticked(self, *args):
        done = tick(self, *args)
        calls.append(('tick', (args[0], done)))
        return done

    def joints(self, state, now_ns):
        calls.append(('joints', (state,)))
        return told(self, state, now_ns)

    for name in INPUTS:
        remember(name)
    monkeypatch.setattr(Executor, 'tick', ticked)
    monkeypatch.setattr(Guard, 'on_joint_state', joints)
    return calls


def run_core(name: str) -> types.PolicySpec:
    """Run one episode without ROS."""
    short, options = CASES[name]
    policy = checkpoint.load(f'{short}_pick_and_place')
    plugin = registry.get('execution', name)
    loop = Loop('pick_and_place', policy, config=LoopConfig(known_delays=0))
    try:
        result = loop.run(SEED, plugin(build(plugin.Config, options)))
    finally:
        loop.close()
    assert result.policy_calls > 2
    return policy.spec


class Replay:
    """An execution node whose clock, inputs and outputs are the test's."""

    def __init__(self, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.node = execution_node.ExecutionNode()
        self.now_ns = 0
        self.commands: list[types.Command] = []
        self.requests: list[types.ChunkRequest] = []
        self.decisions: list[types.HorizonDecision] = []
        monkeypatch.setattr(self.node, 'now_ns', lambda: self.now_ns)
        # The two clocks go together, or one of them is taken to have jumped.
        steady = SimpleNamespace(monotonic_ns=lambda: self.now_ns)
        monkeypatch.setattr(execution_node, 'time', steady)
        for publisher, kept, back in (
            ('_commands', self.commands, convert.command_from_msg),
            ('_requests', self.requests, convert.request_from_msg),
            ('_horizons', self.decisions, convert.horizon_from_msg),
        ):
            keep = Keeper(kept, back)
            monkeypatch.setattr(self.node, publisher, keep)

    def serve(self, spec: types.PolicySpec) -> None:
        info = convert.policy_info_to_msg(
            spec, session=0, stamp_ns=0, state='ready', warm_inference_s=0.01
        )
        self.node._on_policy(info)

    def play(self, name: str, args: tuple[Any, ...]) -> None:
        """Tell the node what the core's executor was told."""
        node = self.node
        if name == 'tick':
            self.now_ns = args[0]
            node._on_tick()
            return
        if name == 'joints':
            node._on_joint_state(convert.joint_state_to_msg(args[0]))
            return
        if name != 'set_speed_scale':
            self.now_ns = args[2] if name == 'set_episode' else args[1]
        if name == 'set_guard':
            node._on_guard(convert.guard_state_to_msg(args[0], session=4))
        elif name == 'set_speed_scale':
            node._on_scale(Float64(data=args[0]))
        elif name == 'set_episode':
            msg = EpisodeEvent(event=EpisodeEvent.START, task_id=args[1], episode_id=args[3])
            msg.header.stamp = convert.to_time(args[2])
            node._on_episode(msg)
        elif name == 'observe':
            node._on_observation(convert.observation_to_msg(args[0]))
        else:
            chunk = args[0]
            session = self.requests[-1].id.session  # of its own requests, drawn at random
            asked = replace(chunk.request_id, session=session)
            node._on_chunk(convert.chunk_to_msg(replace(chunk, request_id=asked)))


class Keeper:
    """A publisher that keeps what it is given."""

    def __init__(self, kept: list[Any], back: Any) -> None:
        self.kept, self.back = kept, back

    def publish(self, msg: Any) -> None:
        self.kept.append(self.back(msg))


@pytest.fixture
def graph() -> Iterator[Any]:
    """Return a function that starts ROS with parameters, in a domain of its own."""
    with domain_coordinator.domain_id() as domain:

        def start(*values: str) -> None:
            words = [word for value in values for word in ('-p', value)]
            rclpy.init(args=['--ros-args', *words], domain_id=domain)

        yield start
        if rclpy.ok():
            rclpy.shutdown()


@pytest.mark.parametrize(
    'name',
    [name if name in FAST else pytest.param(name, marks=pytest.mark.slow) for name in CASES],
)
def test_the_node_decides_as_the_core(name: str, record, graph, monkeypatch) -> None:
    spec = run_core(name)
    monkeypatch.undo()
    calls = list(record)
    graph(
        f'strategy:={name}', *(f'{name}.{key}:={value}' for key, value in CASES[name][1].items())
    )
    replay = Replay(name, monkeypatch)
    try:
        replay.serve(spec)
        for call in calls:
            replay.play(*call)
    finally:
        replay.node.destroy_node()
    ticks = [args[1] for kind, args in calls if kind == 'tick']
    assert_same_decisions(replay.decisions, [tick.decision for tick in ticks if tick.decision])
    assert_same_requests(replay.requests, [tick.request for tick in ticks if tick.request])
    assert_same_commands(replay.commands, [tick.command for tick in ticks if tick.command])


def assert_same_decisions(found: list[types.HorizonDecision], expected: list[Any]) -> None:
    assert len(expected) > 2
    for one, other in zip(found, expected, strict=True):
        for field in ('chunk_id', 'strategy', 'base', 'chosen', 'reason', 'cut'):
            assert getattr(one, field) == getattr(other, field)
        np.testing.assert_array_equal(one.fluctuation, other.fluctuation)
        assert one.threshold == pytest.approx(other.threshold)


def assert_same_requests(found: list[types.ChunkRequest], expected: list[Any]) -> None:
    for one, other in zip(found, expected, strict=True):
        for field in (
            *('stamp_ns', 'start_ns', 'reason', 'task_id', 'n_samples', 'committed_rows'),
            *('prefix_start_ns', 'guidance', 'state_at_start', 'mode'),
        ):
            assert getattr(one, field) == getattr(other, field), field
        np.testing.assert_array_equal(one.prefix, other.prefix)
        np.testing.assert_array_equal(one.guidance_weights, other.guidance_weights)


def assert_same_commands(found: list[types.Command], expected: list[Any]) -> None:
    assert len(expected) > 50
    for one, other in zip(found, expected, strict=True):
        assert (one.stamp_ns, one.chunk_id, one.row) == (
            other.stamp_ns,
            other.chunk_id,
            other.row,
        )
        assert one.starved == other.starved
        for group, known in zip(one.groups, other.groups, strict=True):
            np.testing.assert_allclose(group.values, known.values, atol=1e-12)
