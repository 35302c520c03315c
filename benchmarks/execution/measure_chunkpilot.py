"""
Measures chunkpilot: its execution node, as a process over DDS, at 30 Hz.

    python -m benchmarks.execution.measure_chunkpilot CASE.json RESULT.json

This process plays the rest of the graph: a slow policy, an armed guard, a task, an episode, and a
robot that follows every command.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
import os
from pathlib import Path
import signal
import subprocess
import sys
import threading
import time

from benchmarks.execution import cases, record
from benchmarks.execution.reference import Case, DEGREES, DT_S, END, FakePolicy, JOINTS
from chunkpilot.msg import (
    ActionChunk,
    ChunkRequest,
    Command,
    EpisodeEvent,
    ExecutionStats,
    GuardState,
    PolicyInfo,
)
from chunkpilot_core import robot as robots
from chunkpilot_core import spaces, types
from chunkpilot_nodes import convert, qos
import domain_coordinator
import numpy as np
import psutil
import rclpy
from rclpy.executors import SingleThreadedExecutor
from sensor_msgs.msg import JointState

ROBOT_FILE = Path(__file__).with_name('robot.yaml')
EPOCH, SESSION, POLICY_SESSION = 41, 8, 9
MAX_AGE_S = 30.0
KEPT = (
    'late_ticks', 'worst_lateness_s', 'policy_calls', 'timeouts', 'chunks_accepted',
    'chunks_rejected', 'executed_rows', 'discarded_rows', 'late_rows', 'merges',
    'largest_merge_step', 'delay_p50_s', 'delay_p95_s', 'cold_start_s', 'mean_horizon',
)  # fmt: skip


def space_of(unit: str) -> types.ActionSpace:
    """Return absolute positions of six joints; rows in radians or degrees."""
    scale = 1.0 / DEGREES if unit == 'degrees' else 1.0
    arm = types.ActionGroup(
        'arm',
        0,
        JOINTS,
        types.Kind.JOINT_POSITION,
        names=robots.load(ROBOT_FILE).arm_joints,
        unit='rad',
        scale=(scale,) * JOINTS,
        offset=(0.0,) * JOINTS,
    )
    return spaces.make(
        types.ActionSpace(
            (arm,),
            lower=(-3.0 / scale,) * JOINTS,
            upper=(3.0 / scale,) * JOINTS,
            max_velocity=(2.2,) * JOINTS,
            max_acceleration=(10.0,) * JOINTS,
            max_jerk=(5000.0,) * JOINTS,
            irreversible=(False,) * JOINTS,
        )
    )


def parameters(case: Case, strategy: str) -> list[str]:
    """
    Return what the execution node is started with: its defaults but for the rate.

    A strategy may be followed by variants: ``/degrees`` for the unit of the rows, ``/time`` for
    rows that are late when their time is over, even where nothing ran.
    """
    values = [f'robot:={ROBOT_FILE}', f'period_s:={DT_S}', f'strategy:={strategy}']
    halved = strategy in cases.EXTENDING
    values.append(f'{strategy}.horizon:={case.horizon // (2 if halved else 1)}')
    if 'time' in case.strategy.split('/'):
        values.append('alignment:=time')
    if case.in_flight > 1:
        values.append(f'in_flight:={case.in_flight}')
    return values


class Policy:
    """Serves requests, at most ``in_flight`` at a time; of those that wait the newest wins."""

    def __init__(self, peer: 'Peer', case: Case, unit: str) -> None:
        self.answers_s: list[float] = []
        self.calls = 0
        self._peer, self._case = peer, case
        self._scale = DEGREES if unit == 'degrees' else 1.0
        self._fake = FakePolicy(case, END)
        self._workers = ThreadPoolExecutor(case.in_flight)
        self._lock = threading.Lock()
        self._busy = 0
        self._waiting: types.ChunkRequest | None = None

    def ask(self, request: types.ChunkRequest) -> None:
        with self._lock:
            if self._busy == self._case.in_flight:
                self._waiting = request
                return
            self._busy += 1
        self._workers.submit(self._serve, request)

    def close(self) -> None:
        self._waiting = None
        self._workers.shutdown(wait=False, cancel_futures=True)

    def _serve(self, first: types.ChunkRequest) -> None:
        request: types.ChunkRequest | None = first
        while request is not None:
            with self._lock:
                call, self.calls = self.calls, self.calls + 1
            observed_ns = time.time_ns()
            rows = self._fake.rows(self._peer.since_start_s(observed_ns), call)
            due = time.monotonic() + self._fake.latency_s(call)
            time.sleep(max(0.0, due - time.monotonic()))
            self._peer.answer(request, call, observed_ns, (self._scale * rows).astype(np.float32))
            with self._lock:
                self.answers_s.append(self._peer.since_start_s(time.time_ns()))
                request, self._waiting = self._waiting, None
                self._busy -= request is None


class Peer:
    """The rest of the graph."""

    def __init__(self, case: Case, domain: int) -> None:
        self.recorder = record.Recorder()
        self.stats: list[types.ExecutionStats] = []
        self.lost = 0
        self._case = case
        self.strategy, *variants = case.strategy.split('/')
        unit = 'degrees' if 'degrees' in variants else 'radians'
        self._space = space_of(unit)
        self._start_ns = 0
        self._newest = 0
        self.node_process: subprocess.Popen[bytes] | None = None
        self.policy = Policy(self, case, unit)
        self.context = rclpy.context.Context()
        rclpy.init(context=self.context, domain_id=domain)
        self.node = rclpy.create_node('bench', context=self.context)
        self.executor = SingleThreadedExecutor(context=self.context)
        self.executor.add_node(self.node)
        self._connect()

    def _connect(self) -> None:
        make, listen = self.node.create_publisher, self.node.create_subscription
        self._chunks = make(ActionChunk, 'chunk', qos.RELIABLE_10)
        self._joints = make(JointState, 'joint_states', qos.SENSOR)
        self._guards = make(GuardState, 'guard/state', qos.LATCHED)
        self._episodes = make(EpisodeEvent, 'episode', qos.LATCHED)
        self._policies = make(PolicyInfo, 'policy/info', qos.LATCHED)
        # A deeper queue than the guard's: on a busy machine this process would miss commands.
        listen(Command, 'command', self._on_command, qos.ROWS)
        listen(ChunkRequest, 'chunk_request', self._on_request, qos.RELIABLE_10)
        listen(ExecutionStats, 'execution_stats', self._on_stats, qos.RELIABLE_10)
        self.node.create_timer(0.02, self._move)

    def since_start_s(self, time_ns: int) -> float:
        """Return a time as seconds since the run began."""
        return (time_ns - self._start_ns) * 1e-9 if self._start_ns else 0.0

    def _move(self) -> None:
        now_ns = time.time_ns()
        pose = self.recorder.pose(self.since_start_s(now_ns))
        state = types.JointState(now_ns, self._space.groups[0].names, pose, np.zeros(JOINTS))
        self._joints.publish(convert.joint_state_to_msg(state))

    def _on_command(self, msg: Command) -> None:
        sent_s = self.since_start_s(convert.to_ns(msg.header.stamp))
        values = np.array(msg.groups[0].values)
        self.recorder.tick(sent_s, values, sent_s)
        self.recorder.starved[-1] = bool(msg.starved)
        self.lost += max(0, int(msg.id.seq) - self._newest - 1) if self._newest else 0
        self._newest = int(msg.id.seq)

    def _on_request(self, msg: ChunkRequest) -> None:
        self.policy.ask(convert.request_from_msg(msg))

    def _on_stats(self, msg: ExecutionStats) -> None:
        self.stats.append(convert.execution_stats_from_msg(msg))

    def answer(
        self, request: types.ChunkRequest, call: int, observed_ns: int, rows: types.F32
    ) -> None:
        """Publish a chunk; called by a worker of the policy."""
        chunk = types.ActionChunk(
            id=types.Id(POLICY_SESSION, call + 1),
            request_id=request.id,
            arm_epoch=request.arm_epoch,
            task_id=request.task_id,
            observation_id=types.Id(SESSION, call + 1),
            observation_stamp_ns=observed_ns,
            start_ns=observed_ns,
            dt_s=DT_S,
            actions=rows,
            space_hash=self._space.hash,
            policy='bench',
            policy_version=1,
            max_row_age_s=MAX_AGE_S,
        )
        self._chunks.publish(convert.chunk_to_msg(chunk))

    def start(self) -> None:
        """Wait until the node knows everybody, then begin the episode: time 0."""
        outputs = (self._chunks, self._joints, self._guards, self._episodes, self._policies)
        self.wait(lambda: all(one.get_subscription_count() for one in outputs), 30.0)
        self.wait(lambda: self.node.count_publishers('command') > 0, 10.0)
        now_ns, case = time.time_ns(), self._case
        spec = types.PolicySpec(
            'bench', 'bench', 1, self._space, case.horizon, DT_S, max_row_age_s=MAX_AGE_S
        )
        info = convert.policy_info_to_msg(
            spec,
            session=POLICY_SESSION,
            stamp_ns=now_ns,
            state='ready',
            warm_inference_s=case.latency_s,
        )
        self._policies.publish(info)
        status = types.GuardStatus(now_ns, types.ArmState.ARMED, EPOCH, now_ns)
        self._guards.publish(convert.guard_state_to_msg(status, session=4))
        self.wait(lambda: False, 0.3, required=False)
        self._start_ns = time.time_ns()
        self._episode(EpisodeEvent.START)

    def end(self) -> None:
        """End the episode and take the node's own counters."""
        self._episode(EpisodeEvent.END)
        count = len(self.stats)
        self.wait(lambda: len(self.stats) > count, 2.0, required=False)

    def _episode(self, event: int) -> None:
        msg = EpisodeEvent(event=event, episode_id='bench', task_id='bench')
        msg.header.stamp = convert.to_time(time.time_ns())
        self._episodes.publish(msg)

    def run(self) -> None:
        """Let the episode go on until enough was commanded, or nothing will be."""
        case, recorder = self._case, self.recorder
        patience_s = 10.0 + 5.0 * case.latency_s + case.cold_start_s
        self.wait(lambda: bool(recorder.values), patience_s, required=False)
        if recorder.values:
            until_s = recorder.sent_s[0] + case.seconds
            self.wait(lambda: recorder.sent_s[-1] >= until_s, case.seconds + 5.0)

    def wait(
        self, condition: Callable[[], bool], seconds: float, *, required: bool = True
    ) -> None:
        """Serve the graph until a condition holds."""
        end = time.monotonic() + seconds
        while not condition():
            if self.node_process is not None and self.node_process.poll() is not None:
                raise ChildProcessError('the execution node ended')
            if time.monotonic() > end:
                if required:
                    raise TimeoutError(f'the execution node did not get there in {seconds} s')
                return
            self.executor.spin_once(timeout_sec=0.02)

    def close(self) -> None:
        """Leave the graph."""
        self.policy.close()
        self.executor.shutdown()
        self.node.destroy_node()
        rclpy.shutdown(context=self.context)


def start_node(case: Case, strategy: str) -> subprocess.Popen[bytes]:
    """Start the execution node, as a launcher would."""
    words = [word for value in parameters(case, strategy) for word in ('-p', value)]
    return subprocess.Popen(
        [sys.executable, '-m', 'chunkpilot_nodes.execution_node', '--ros-args', *words]
    )


def measure(case: Case, out: Path, domain: int) -> None:
    """Run a case and write its result."""
    peer = Peer(case, domain)
    peer.node_process = node = start_node(case, peer.strategy)
    try:
        peer.start()
        process = psutil.Process(node.pid)
        before, began = process.cpu_times(), time.monotonic()
        peer.run()
        after, calls = process.cpu_times(), peer.policy.calls
        spent = after.user + after.system - before.user - before.system
        cpu_pct = 100.0 * spent / (time.monotonic() - began)
        peer.end()
        trace = peer.recorder.trace(case.seconds, calls, cpu_pct)
        stats = {name: getattr(peer.stats[-1], name) for name in KEPT} if peer.stats else {}
        answers_s = list(peer.policy.answers_s)
        record.write(out, case, trace, answers_s, commands_lost=peer.lost, node=stats)
    finally:
        node.send_signal(signal.SIGTERM)
        try:
            node.wait(5.0)
        except subprocess.TimeoutExpired:
            node.kill()
            node.wait()
        peer.close()


def main() -> None:
    record.end_on_sigterm()
    record.prioritise()
    case = Case.read(Path(sys.argv[1]))
    with domain_coordinator.domain_id() as domain:
        os.environ.update(
            ROS_DOMAIN_ID=str(domain),
            ROS_AUTOMATIC_DISCOVERY_RANGE='LOCALHOST',
            OMP_NUM_THREADS='1',
        )
        measure(case, Path(sys.argv[2]), int(domain))
    # Threads of the policy may sleep through a long latency yet.
    sys.stdout.flush()
    os._exit(0)


if __name__ == '__main__':
    main()
