"""
The execution node as a process over DDS; robot, guard, task and policy are played by the test.
"""

from collections.abc import Iterator
from dataclasses import replace
import os
from pathlib import Path
import pickle
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

pytest.importorskip('rclpy')

from chunkpilot.msg import (
    ActionChunk,
    ChunkRequest,
    ChunkVerdict,
    Command,
    EpisodeEvent,
    ExecutionStats,
    GuardEvent,
    GuardState,
    HorizonDecision,
    Observation,
    PolicyInfo,
    Task,
)
from chunkpilot_core import registry, robot, spaces, types
from chunkpilot_core.execution.runtime import replay
from chunkpilot_core.execution.runtime.executor import Executor
from chunkpilot_core.kinematics import Kinematics
from chunkpilot_nodes import convert, qos
from diagnostic_msgs.msg import DiagnosticArray
import domain_coordinator
import rclpy
from rclpy.executors import SingleThreadedExecutor
from sensor_msgs.msg import JointState
from std_msgs.msg import Float64MultiArray

pytestmark = pytest.mark.ros

SPACE = spaces.ee_delta_space()
SPEC = types.PolicySpec('fake', 'fake', 1, SPACE, 16, 0.04, max_row_age_s=1.14)
ROBOT = robot.load('panda')
HOME = np.array([*ROBOT.home, 0.04, 0.04])
START = Kinematics(ROBOT).forward(HOME[:7]).position
ROW = np.array([0.0, 0.02, 0.0, 1.0], np.float32)  # 1 mm a row, 0.025 m/s


class Peer:
    """The rest of the graph: a robot that stands still, and a policy that answers at once."""

    def __init__(self, domain: int) -> None:
        self.domain = domain
        self.context = rclpy.context.Context()
        rclpy.init(context=self.context, domain_id=domain)
        self.node = rclpy.create_node('peer', context=self.context)
        self.executor = SingleThreadedExecutor(context=self.context)
        self.executor.add_node(self.node)
        self.commands: list[tuple[int, types.Command]] = []
        self.requests: list[types.ChunkRequest] = []
        self.horizons: list[types.HorizonDecision] = []
        self.stats: list[types.ExecutionStats] = []
        self.diagnostics: list[str] = []
        self.epoch, self.seq, self.session = 41, 0, 9
        self.alive, self.changes = True, {}
        self.wavy, self.sent = False, []
        self.program = ['-m', 'chunkpilot_nodes.execution_node']
        make, listen = self.node.create_publisher, self.node.create_subscription
        self.chunks = make(ActionChunk, 'chunk', qos.RELIABLE_10)
        self.joints = make(JointState, 'joint_states', qos.SENSOR)
        self.guards = make(GuardState, 'guard/state', qos.LATCHED)
        self.wishes = make(GuardEvent, 'guard/events', qos.EVENTS)
        self.judgements = make(ChunkVerdict, 'chunk_verdict', qos.RELIABLE_10)
        self.episodes = make(EpisodeEvent, 'episode', qos.LATCHED)
        self.tasks = make(Task, 'task', qos.LATCHED)
        self.policies = make(PolicyInfo, 'policy/info', qos.LATCHED)
        listen(Command, 'command', self._on_command, qos.COMMAND)
        listen(ChunkRequest, 'chunk_request', self._on_request, qos.RELIABLE_10)
        listen(HorizonDecision, 'horizon', self._on_horizon, qos.RELIABLE_10)
        listen(ExecutionStats, 'execution_stats', self._on_stats, qos.RELIABLE_10)
        listen(DiagnosticArray, '/diagnostics', self._on_diagnostics, qos.RELIABLE_10)
        self.node.create_timer(0.02, self._move)
        self.process: subprocess.Popen[str] | None = None

    def now(self) -> int:
        return int(self.node.get_clock().now().nanoseconds)

    def _move(self) -> None:
        state = types.JointState(self.now(), ROBOT.joints, HOME, np.zeros(9))
        self.joints.publish(convert.joint_state_to_msg(state))

    def _on_command(self, msg: Command) -> None:
        self.commands.append((time.monotonic_ns(), convert.command_from_msg(msg)))

    def _on_horizon(self, msg: HorizonDecision) -> None:
        self.horizons.append(convert.horizon_from_msg(msg))

    def _on_stats(self, msg: ExecutionStats) -> None:
        self.stats.append(convert.execution_stats_from_msg(msg))

    def _on_diagnostics(self, msg: DiagnosticArray) -> None:
        self.diagnostics += [status.message for status in msg.status]

    def _on_request(self, msg: ChunkRequest) -> None:
        request = convert.request_from_msg(msg)
        self.requests.append(request)
        if self.alive:
            self.answer(request)

    def answer(self, request: types.ChunkRequest) -> None:
        self.seq += 1
        chunk = types.ActionChunk(
            id=types.Id(self.session, self.seq),
            request_id=request.id,
            arm_epoch=request.arm_epoch,
            task_id=request.task_id,
            observation_id=types.Id(8, self.seq),
            observation_stamp_ns=self.now(),
            start_ns=self.now(),
            dt_s=0.04,
            actions=np.tile(ROW, (16, 1)),
            space_hash=SPACE.hash,
            policy='fake',
            policy_version=1,
            max_row_age_s=1.14,
        )
        if self.wavy:
            wave = 0.2 * np.sin(0.1 * self.seq * np.arange(16.0) ** 1.5)
            chunk.actions[:, 0] = wave
        chunk = replace(chunk, **self.changes)
        self.sent.append(chunk)
        self.chunks.publish(convert.chunk_to_msg(chunk))

    def start(self, *values: str) -> None:
        words = [word for value in values for word in ('-p', value)]
        self.process = subprocess.Popen(
            [sys.executable, *self.program, '--ros-args', *words],
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, 'ROS_DOMAIN_ID': str(self.domain), 'OMP_NUM_THREADS': '1'},
        )

    def start_ready(self, *values: str) -> None:
        """Start the node, serve a policy, arm, and wait until everybody knows everybody."""
        self.start(*values)
        inputs = (self.chunks, self.joints, self.guards, self.episodes, self.tasks, self.policies)
        self.wait(lambda: all(one.get_subscription_count() for one in inputs), 20.0)
        self.wait(lambda: self.node.count_publishers('command') > 0)
        self.serve()
        self.guard(types.ArmState.ARMED)
        self.spin(0.3)

    def serve(self, spec: types.PolicySpec = SPEC, session: int = 9) -> None:
        info = convert.policy_info_to_msg(
            spec, session=session, stamp_ns=self.now(), state='ready', warm_inference_s=0.01
        )
        self.policies.publish(info)

    def guard(self, state: types.ArmState) -> None:
        now = self.now()
        status = types.GuardStatus(now, state, self.epoch, now)
        self.guards.publish(convert.guard_state_to_msg(status, session=4))

    def episode(self, event: int, episode_id: str = 'e1', task_id: str = 't1') -> None:
        msg = EpisodeEvent(event=event, episode_id=episode_id, task_id=task_id)
        msg.header.stamp = convert.to_time(self.now())
        self.episodes.publish(msg)

    def wait(self, condition, seconds: float = 10.0) -> None:
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end, f'not within {seconds} s'
            assert self.process is None or self.process.poll() is None, 'the node died'
            self.executor.spin_once(timeout_sec=0.02)

    def spin(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.executor.spin_once(timeout_sec=0.02)

    def end(self, number: int = signal.SIGTERM) -> tuple[int, str]:
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(number)
        _, errors = self.process.communicate(timeout=20)
        return self.process.returncode, errors


@pytest.fixture
def peer() -> Iterator[Peer]:
    with domain_coordinator.domain_id() as domain:
        made = Peer(int(domain))
        try:
            yield made
        finally:
            if made.process is not None and made.process.poll() is None:
                made.process.kill()
                made.process.communicate()
            made.node.destroy_node()
            rclpy.shutdown(context=made.context)


def values_of(command: types.Command) -> np.ndarray:
    return np.concatenate([group.values for group in command.groups])


def test_an_episode_from_start_to_end(peer: Peer) -> None:
    # The policy is this process, which a busy machine delays: ask it early enough.
    peer.start_ready('strategy:=fixed', 'fixed.horizon:=8', 'margin:=10.0')
    assert not peer.requests  # armed, and a policy serves, but no episode runs
    peer.episode(EpisodeEvent.START)
    peer.wait(lambda: len(peer.commands) > 150)
    first = peer.requests[0]
    assert (first.arm_epoch, first.task_id, first.reason) == (41, 't1', 'start')

    commands = [command for _, command in peer.commands]
    assert values_of(commands[0]) == pytest.approx([*START, 0.08], abs=2e-3)
    assert [group.kind for group in commands[0].groups] == [
        types.Kind.EE_POSE,
        types.Kind.GRIPPER,
    ]
    # No step at a chunk's border, nor where ticks came late or commands were lost on the way.
    stamps_s = np.array([command.stamp_ns for command in commands]) / 1e9
    path = np.array([values_of(command)[1] for command in commands])
    assert np.all(np.diff(path) >= -1e-9)
    from_rest = stamps_s[1:] < stamps_s[0] + 0.1  # the first row needs up to 4/3 of its pace
    fastest = 0.025 * np.where(from_rest, 4 / 3, 1.0)
    assert np.all(np.diff(path) <= fastest * np.diff(stamps_s) + 1e-6)
    assert path[-1] > START[1] + 0.02
    assert {command.arm_epoch for command in commands} == {41}
    assert not any(command.starved for command in commands)
    received = np.array([at - command.tick_steady_ns for at, command in peer.commands])
    assert received.min() > 0  # stamped with this machine's steady clock
    assert np.median(np.diff(stamps_s)) == pytest.approx(0.01, abs=0.002)
    assert [decision.chosen for decision in peer.horizons] == [8] * len(peer.horizons)

    peer.episode(EpisodeEvent.END)
    count = len(peer.stats)
    peer.wait(lambda: len(peer.stats) > count)
    peer.spin(0.2)
    last, silent = peer.stats[-1], len(peer.commands)
    assert (last.episode_id, last.strategy, last.base_horizon) == ('e1', 'fixed', 8)
    assert last.policy_calls == len(peer.requests)
    assert last.starved_ticks == 0
    # everything accepted by the end is accounted for
    total = last.executed_rows + last.discarded_rows + last.late_rows
    assert total == 16 * last.chunks_accepted
    peer.spin(0.3)
    assert len(peer.commands) == silent
    assert peer.end()[0] == 0


def test_the_guards_wish_for_another_chunk_ends_the_one_that_runs(peer: Peer) -> None:
    peer.start_ready('strategy:=fixed', 'fixed.horizon:=16', 'margin:=10.0')
    peer.wait(lambda: peer.wishes.get_subscription_count() > 0)
    peer.episode(EpisodeEvent.START)
    peer.wait(lambda: len(peer.commands) > 10)
    peer.alive, asked = False, len(peer.requests)
    bad = peer.sent[-1].id
    armed = types.ArmState.ARMED
    for kind in ('reaction', 'replan'):
        event = types.GuardEvent(
            peer.now(),
            peer.epoch,
            kind,
            armed,
            armed,
            types.Reaction.REPLAN,
            check='chunk_verdict',
            reason='row 9 hits the wall',
            chunk_id=bad,
            keep_rows=0,
        )
        peer.wishes.publish(convert.guard_event_to_msg(event, 4))
    wish = 'guard: chunk_verdict: row 9 hits the wall'
    peer.wait(lambda: any(request.reason == wish for request in peer.requests[asked:]))
    peer.wait(lambda: any((d.chunk_id, d.cut) == (bad, True) for d in peer.horizons))
    assert [request.reason for request in peer.requests].count(wish) == 1
    peer.wait(lambda: peer.commands[-1][1].starved)
    peer.alive = True
    peer.answer(peer.requests[-1])
    peer.wait(lambda: not peer.commands[-1][1].starved)
    assert peer.commands[-1][1].chunk_id.newer_than(bad)
    assert peer.end()[0] == 0


def test_the_rows_that_a_verdict_names_run_in_place_of_a_bad_chunks(peer: Peer) -> None:
    peer.start_ready('strategy:=fixed', 'fixed.horizon:=16')
    peer.wait(lambda: peer.judgements.get_subscription_count() > 0)
    still = np.tile(np.float32([0.0, 0.0, 0.0, 1.0]), (2, 16, 1))
    peer.changes = {'samples': still}
    peer.episode(EpisodeEvent.START)
    peer.wait(lambda: len(peer.commands) > 5)
    peer.alive = False
    chunk_id = peer.sent[-1].id
    verdict = types.ChunkVerdict(
        peer.now(), chunk_id, ok=False, check='clearance', reason='row 9', best_sample=1
    )
    peer.judgements.publish(convert.chunk_verdict_to_msg(verdict))
    peer.wait(lambda: peer.commands[-1][1].source == 'guided')
    assert peer.commands[-1][1].chunk_id == chunk_id
    peer.wait(lambda: any(d.reason == 'guided: clearance: row 9' for d in peer.horizons))
    assert peer.end()[0] == 0


BAD = {
    'must be finite': {'actions': np.full((16, 4), np.nan, np.float32)},
    r'shape \(16, 3\)|48 numbers': {'actions': np.zeros((16, 3), np.float32)},
    'action space': {'space_hash': 'another'},
    'arm epoch 40, in force is 41': {'arm_epoch': 40},
}


def test_bad_chunks_are_refused_in_words_and_move_nothing(peer: Peer) -> None:
    peer.start_ready()
    for i, changes in enumerate(BAD.values()):
        peer.changes = changes
        count = len(peer.requests)
        peer.episode(EpisodeEvent.START, f'e{i}')
        peer.wait(lambda count=count: len(peer.requests) > count)
        peer.spin(0.3)
        peer.episode(EpisodeEvent.END, f'e{i}')
        peer.spin(1.1)  # the log is throttled
    assert not peer.commands
    assert max(stats.chunks_rejected for stats in peer.stats) >= 1
    code, errors = peer.end()
    assert code == 0
    lines = [line for line in errors.splitlines() if 'refused' in line]
    for text in ('must be finite', '(16, 3)', "action space 'another'", 'arm epoch'):
        assert any(text in line for line in lines), (text, lines)
    assert len(lines) < 15


def test_hold_and_rearm_and_a_dead_policy(peer: Peer) -> None:
    peer.start_ready('request_timeout_s:=0.5')
    peer.episode(EpisodeEvent.START)
    peer.wait(lambda: len(peer.commands) > 50)

    held = peer.now()
    peer.guard(types.ArmState.HOLD)
    peer.spin(0.3)
    silent, asked = len(peer.commands), len(peer.requests)
    peer.spin(0.3)
    assert (len(peer.commands), len(peer.requests)) == (silent, asked)
    peer.epoch += 1
    peer.guard(types.ArmState.ARMED)
    peer.wait(lambda: len(peer.commands) > silent + 30)
    again = peer.requests[asked]
    assert (again.arm_epoch, again.reason) == (42, 'guard: armed')
    assert held <= again.not_before_ns <= held + 300_000_000
    assert values_of(peer.commands[silent][1])[1] == pytest.approx(START[1], abs=2e-3)

    peer.alive = False  # as after kill -9 of the policy
    peer.wait(lambda: peer.commands[-1][1].starved)
    at = len(peer.requests)
    peer.spin(1.7)
    starved = [command for _, command in peer.commands if command.starved]
    assert values_of(starved[-1]) == pytest.approx(values_of(starved[-20]))  # at rest
    assert np.abs(starved[-1].groups[0].velocity).max() == 0.0
    assert 2 <= len(peer.requests) - at <= 4  # asked again, without a burst
    peer.alive, count = True, len(peer.requests)
    peer.serve(session=10)  # respawned: it is asked at once, and motion goes on
    peer.wait(lambda: len(peer.requests) > count and not peer.commands[-1][1].starved, 1.0)
    assert peer.end()[0] == 0


def test_a_new_task_within_an_episode_invalidates_what_was_planned(peer: Peer) -> None:
    peer.start_ready()
    peer.episode(EpisodeEvent.START)
    peer.wait(lambda: len(peer.commands) > 20)
    peer.tasks.publish(convert.task_to_msg(types.Task('t2', 'push'), peer.now()))
    peer.wait(lambda: peer.requests[-1].task_id == 't2')
    assert peer.requests[-1].reason in ('task', 'horizon')
    peer.wait(lambda: not peer.commands[-1][1].starved)


class Cube:
    """What perception would say of a cube, 50 times a second."""

    def __init__(self, peer: Peer) -> None:
        self.peer, self.x, self.shown = peer, 0.1, 0
        self.topic = peer.node.create_publisher(Observation, 'observation', qos.RELIABLE_10)
        peer.node.create_timer(0.02, self.show)

    def show(self) -> None:
        self.shown += 1
        seen = types.Observation(
            types.Id(8, self.shown),
            self.peer.now(),
            self.peer.now(),
            ('ee.x', 'ee.y', 'ee.z', 'gripper.width'),
            np.array([0.0, 0.0, 0.4, 0.08], np.float32),
            ('object.x', 'object.y', 'object.z', 'object.held', 'object.age'),
            np.array([self.x, 0.1, 0.02, 0.0, 0.1], np.float32),
        )
        self.topic.publish(convert.observation_to_msg(seen))


def test_a_surprise_cuts_the_horizon_and_viewers_see_it(peer: Peer) -> None:
    cube, arrays, states = Cube(peer), [], []
    listen = peer.node.create_subscription
    listen(Float64MultiArray, 'plot/horizon', arrays.append, qos.RELIABLE_10)
    listen(JointState, 'plot/command', states.append, qos.RELIABLE_10)
    peer.start_ready(
        'strategy:=fixed', 'fixed.horizon:=16', 'surprise.enabled:=true', 'plots:=true'
    )
    peer.wait(lambda: cube.topic.get_subscription_count() > 0)
    peer.episode(EpisodeEvent.START)
    peer.wait(lambda: len(peer.commands) > 60)
    assert not any(decision.cut for decision in peer.horizons)
    cube.x = 0.14
    peer.wait(lambda: any(decision.cut for decision in peer.horizons))
    cut = next(decision for decision in peer.horizons if decision.cut)
    assert cut.reason == 'surprise: object moved 4.0 cm'
    assert cut.chosen < 16
    peer.wait(lambda: peer.requests[-1].reason == cut.reason or peer.requests[-1].id.seq > 3)
    assert [r.reason for r in peer.requests].count(cut.reason) == 1
    peer.wait(lambda: any(stats.cuts == 1 for stats in peer.stats))
    names = arrays[0].layout.dim[0].label.split(' ')
    assert dict(zip(names, arrays[0].data, strict=True))['chosen'] == 16.0
    assert states[-1].name == ['arm.x', 'arm.y', 'arm.z', 'gripper']
    assert states[-1].position[:3] == pytest.approx(START, abs=0.05)


def test_the_decision_trace_of_the_node_is_the_cores_on_the_same_inputs(
    peer: Peer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The core is told what was sent here, at the times at which the node heard it."""
    file = tmp_path / 'trace'
    monkeypatch.setenv('TRACE_FILE', str(file))
    peer.program = [str(Path(__file__).with_name('recorded_execution_node.py'))]
    peer.wavy, peer.changes = True, {'max_row_age_s': 1.125}  # exact in the message's float32
    peer.start_ready('strategy:=upcycling', 'upcycling.horizon:=4', 'upcycling.ratio:=2.0')
    peer.episode(EpisodeEvent.START)
    peer.wait(lambda: len(peer.horizons) > 12, 20.0)
    peer.guard(types.ArmState.HOLD)
    peer.spin(0.2)
    peer.epoch += 1
    peer.guard(types.ArmState.ARMED)
    peer.wait(lambda: len(peer.horizons) > 18, 20.0)
    peer.episode(EpisodeEvent.END)
    peer.spin(0.3)
    assert peer.end()[0] == 0

    trace = pickle.loads(file.read_bytes())  # written by this test's own child
    sent = {chunk.id: chunk for chunk in peer.sent}
    calls = [
        replace(call, arguments=(sent[call.arguments[0].id], *call.arguments[1:]))
        if call.method == 'receive'
        else call
        for call in trace['calls']
    ]
    strategy = registry.get('execution', 'upcycling')(trace['options'])
    core = Executor(strategy, trace['config'], ROBOT, trace['session'])
    assert replay.differences(calls, core) == []  # every command, request and decision

    ticks = [call.result for call in calls if call.method == 'tick']
    decided = [tick.decision for tick in ticks if tick.decision is not None]
    heard = peer.horizons
    assert [(d.chunk_id, d.chosen, d.reason, d.base, d.cut) for d in heard] == [
        (d.chunk_id, d.chosen, d.reason, d.base, d.cut) for d in decided
    ]
    assert {d.reason for d in heard} >= {'calibrating', 'fluctuation'}
    assert len({d.chosen for d in heard}) > 2
    for one, other in zip(heard, decided, strict=True):
        assert one.fluctuation == pytest.approx(other.fluctuation, nan_ok=True)
    assert [r.id for r in peer.requests] == [t.request.id for t in ticks if t.request]


def test_a_horizon_that_is_too_short_for_the_delay_is_told(peer: Peer) -> None:
    peer.start_ready('strategy:=fixed', 'fixed.horizon:=8')  # 0.32 s
    peer.alive = False
    peer.episode(EpisodeEvent.START)

    def told() -> bool:
        return any('of the ticks will starve' in text for text in peer.diagnostics)

    for count in range(1, 20):
        peer.wait(lambda count=count: len(peer.requests) >= count)
        peer.spin(0.3)
        peer.answer(peer.requests[-1])
        if told():
            break
    peer.wait(told, 3.0)
    errors = peer.end()[1]
    assert errors.count('horizons of 8 rows are 0.32 s, less than 2 times the delay') == 1


def test_a_policy_that_does_not_fit_the_strategy_is_not_asked(peer: Peer) -> None:
    peer.start_ready('strategy:=fixed', 'fixed.horizon:=32')
    peer.episode(EpisodeEvent.START)
    peer.wait(lambda: any('base horizon 32' in text for text in peer.diagnostics))
    assert not peer.requests
    assert 'base horizon 32 is longer than the chunks' in peer.end()[1]


@pytest.mark.parametrize(
    ('value', 'message'),
    [
        ('strategy:=upcycle', "Did you mean 'upcycling'"),
        ('upcycling.ratoi:=2.0', "'upcycling.ratoi'. Did you mean 'upcycling.ratio'"),
        ('starvation:=wait', 'starvation'),
        ('upcycling.calibration:=/nowhere.json', 'No such file'),
    ],
)
def test_a_wrong_parameter_stops_the_node_with_one_line(peer: Peer, value, message) -> None:
    peer.start(value)
    code, errors = peer.end(0)
    assert code == 1
    assert message in errors
    assert 'Traceback' not in errors
