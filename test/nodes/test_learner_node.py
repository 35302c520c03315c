"""The learner as a process, fed over DDS: it makes versions that load, and survives kill -9."""

from dataclasses import dataclass
import os
from pathlib import Path
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

pytest.importorskip('rclpy')

from chunkpilot.msg import (
    EpisodeEvent,
    ExecutedRows,
    LearnerStatus,
    Observation,
    Outcome,
    PolicyVersion,
)
from chunkpilot_core import kinematics as kin
from chunkpilot_core import robot as robots
from chunkpilot_core import spaces, types
from chunkpilot_core.policies.mlp import MlpPolicy
from chunkpilot_core.policies.runtime import checkpoint
from chunkpilot_nodes import convert, qos
import domain_coordinator
import rclpy
from rclpy.executors import SingleThreadedExecutor

pytestmark = pytest.mark.ros

PANDA = robots.load('panda')
SPACE = spaces.ee_delta_space()
ROWS = 30
DT_S = 0.01  # short rows, so that an episode takes 0.3 s
DT_NS = types.nanoseconds(DT_S)


@pytest.fixture(name='peer')
def _peer():
    """Yield the rest of the graph, in a domain of its own."""
    with domain_coordinator.domain_id() as domain:
        peer = Peer(int(domain))
        try:
            yield peer
        finally:
            peer.close()


@pytest.fixture(name='base')
def _base(tmp_path) -> Path:
    spec = types.PolicySpec(
        'mlp', 'reacher', 1, SPACE, 4, DT_S, ('ee.x', 'ee.y'), max_row_age_s=0.6
    )
    checkpoint.save(MlpPolicy(MlpPolicy.Config(width=16, depth=2), spec), tmp_path / 'base')
    return tmp_path / 'base'


@dataclass
class Process:
    """A learner process."""

    popen: subprocess.Popen
    log: Path

    def kill(self, number: int = signal.SIGKILL) -> int:
        self.popen.send_signal(number)
        return self.popen.wait(timeout=20)


class Peer:
    """Publishes what the graph would, and listens to the learner."""

    def __init__(self, domain: int) -> None:
        self.domain = domain
        self.context = rclpy.context.Context()
        rclpy.init(context=self.context, domain_id=domain)
        self.node = rclpy.create_node('peer', context=self.context)
        self.executor = SingleThreadedExecutor(context=self.context)
        self.executor.add_node(self.node)
        self.versions: list[PolicyVersion] = []
        self.statuses: list[LearnerStatus] = []
        self.processes: list[Process] = []
        make = self.node.create_publisher
        self.observation = make(Observation, 'observation', qos.RELIABLE_10)
        self.rows = make(ExecutedRows, 'executed_rows', qos.ROWS)
        self.episode = make(EpisodeEvent, 'episode', qos.LATCHED)
        self.outcome = make(Outcome, 'outcome', qos.LATCHED)
        self.node.create_subscription(
            PolicyVersion, 'policy/version', self.versions.append, qos.LATCHED
        )
        self.node.create_subscription(
            LearnerStatus, 'learner/status', self.statuses.append, qos.RELIABLE_10
        )
        self.seq = 0

    def start(self, tmp_path: Path, base: Path, *extra: str) -> Process:
        values = (
            f'policy:={base}',
            f'versions:={tmp_path / "versions"}',
            'min_examples:=20',
            'episodes_per_version:=4',
            'behaviour_cloning.learning_rate:=0.001',
            *extra,
        )
        arguments = [word for value in values for word in ('-p', value)]
        log = tmp_path / f'learner{len(self.processes)}.log'
        environment = {**os.environ, 'ROS_DOMAIN_ID': str(self.domain), 'OMP_NUM_THREADS': '1'}
        with open(log, 'w') as output:
            popen = subprocess.Popen(
                [
                    sys.executable,
                    '-m',
                    'chunkpilot_nodes.learner_node',
                    '--ros-args',
                    *arguments,
                ],
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment,
            )
        self.processes.append(Process(popen, log))
        return self.processes[-1]

    def wait(self, condition, seconds: float = 45.0) -> None:
        end = time.monotonic() + seconds
        while not condition():
            logs = '\n'.join(process.log.read_text()[-1500:] for process in self.processes)
            assert time.monotonic() < end, f'not within {seconds} s; learner said:\n{logs}'
            self.executor.spin_once(timeout_sec=0.05)

    def play(self, name: str, outcome: int = Outcome.SUCCESS) -> None:
        """Send one episode: the tool moves along x at constant speed."""
        start_ns = self.node.get_clock().now().nanoseconds
        self._event(name, EpisodeEvent.START, start_ns)
        kinematics = kin.Kinematics(PANDA)
        joints = np.array(PANDA.home)
        at = kinematics.forward(joints).position
        for row in range(ROWS):
            place = at + np.array([0.0005 * row, 0.0, 0.0])
            joints = kinematics.inverse(place, kinematics.tool_rotation, joints).joints
            end_ns = start_ns + (row + 1) * DT_NS
            self._row(name, joints, end_ns)
            self._observe(place, end_ns)
            time.sleep(DT_S)
        self._event(name, EpisodeEvent.END, start_ns + (ROWS + 1) * DT_NS)
        self.outcome.publish(Outcome(episode_id=name, outcome=outcome, source='task'))
        self.executor.spin_once(timeout_sec=0.05)

    def _event(self, name: str, event: int, stamp_ns: int) -> None:
        msg = EpisodeEvent(event=event, episode_id=name, task_id='t')
        msg.header.stamp = convert.to_time(stamp_ns)
        self.episode.publish(msg)
        time.sleep(0.05)

    def _observe(self, place, stamp_ns: int) -> None:
        self.seq += 1
        values = place[:2].astype(np.float32)
        seen = types.Observation(
            types.Id(self.domain + 1, self.seq), stamp_ns, stamp_ns, ('ee.x', 'ee.y'), values
        )
        self.observation.publish(convert.observation_to_msg(seen))

    def _row(self, name: str, joints, end_ns: int, space_hash: str = SPACE.hash) -> None:
        self.seq += 1
        sent = types.ExecutedRows(
            types.Id(self.domain + 1, self.seq),
            end_ns - DT_NS,
            1,
            types.Id(1, 1),
            0,
            DT_S,
            np.zeros((1, 4), np.float32),
            (types.RowSource.POLICY,),
            (end_ns,),
            PANDA.joints,
            np.array([[*joints, 0.04, 0.04]]),
            space_hash,
            't',
            name,
        )
        self.rows.publish(convert.executed_rows_to_msg(sent))

    def close(self) -> None:
        for process in self.processes:
            if process.popen.poll() is None:
                process.kill()
        self.node.destroy_node()
        rclpy.shutdown(context=self.context)

    def ready(self, count: int) -> None:
        """Wait until the learner hears us and has announced ``count`` times in all."""
        publishers = (self.observation, self.rows, self.episode, self.outcome)
        self.wait(lambda: len(self.versions) >= count)
        self.wait(lambda: all(one.get_subscription_count() for one in publishers))
        heard = len(self.statuses)  # matched in the other direction, too, after two more of these
        self.wait(lambda: len(self.statuses) >= heard + 2)


@pytest.mark.timeout(240)
def test_learns_over_dds_and_goes_on_after_a_kill(peer, tmp_path, base) -> None:
    process = peer.start(tmp_path, base)
    peer.ready(1)
    assert (peer.versions[0].version, peer.versions[0].accepted) == (1, True)

    peer.play('failed', Outcome.FAILURE)
    _play_until(peer, 'first', lambda: len(peer.versions) == 2)
    announced = peer.versions[1]
    assert (announced.version, announced.parent, announced.accepted) == (2, 1, True)
    loaded = checkpoint.load(announced.path, sha256=announced.sha256)
    assert (loaded.spec.version, loaded.spec.name) == (2, 'reacher')
    assert loaded.normalizer.sha256 == announced.normalizer_sha256
    metrics = dict(zip(announced.metric_names, announced.metric_values, strict=True))
    assert metrics['held_out_loss'] < metrics['parent_held_out_loss']

    heard = len(peer.statuses)
    peer.wait(lambda: len(peer.statuses) >= heard + 2)
    status = peer.statuses[-1]
    assert (status.version, status.learner) == (2, 'behaviour_cloning')
    assert status.episodes >= 4
    assert status.success_low < status.success_estimate <= status.success_high
    assert 0 < status.updates <= status.buffer_rows <= status.rows
    assert _niceness(process.popen.pid, 'updates') >= 10

    # somebody else's rows, and no such outcome: refused, not a reason to stop
    peer._row('x', PANDA.home, 0, space_hash='foreign')
    process.kill()
    peer.start(tmp_path, base)
    peer.ready(3)
    assert (peer.versions[2].version, peer.versions[2].sha256) == (2, announced.sha256)
    _play_until(peer, 'again', lambda: len(peer.versions) == 4)
    assert peer.versions[3].version == 3
    assert peer.versions[3].parent == 2
    assert peer.processes[-1].kill(signal.SIGINT) == 0


@pytest.mark.parametrize(
    ('extra', 'said'),
    [
        ('behaviour_cloning.lerning_rate:=0.1', "Did you mean 'behaviour_cloning.learning_rate'"),
        ('policy:=/nowhere', 'no such checkpoint'),
    ],
)
def test_wrong_parameters_stop_it_with_one_clear_line(peer, tmp_path, base, extra, said) -> None:
    process = peer.start(tmp_path, base, extra)
    assert process.popen.wait(timeout=60) == 1
    assert said in process.log.read_text()
    assert 'Traceback' not in process.log.read_text()


def _play_until(peer: Peer, name: str, condition) -> None:
    """Go on with episodes: a process that has just started does not hear the first ones."""
    for number in range(40):
        if condition():
            return
        peer.play(f'{name}{number}')
    peer.wait(condition)


def _niceness(pid: int, thread: str) -> int:
    for entry in Path(f'/proc/{pid}/task').iterdir():
        if (entry / 'comm').read_text().strip() == thread:
            return os.getpriority(os.PRIO_PROCESS, int(entry.name))
    # Python before 3.14 does not name its threads for the kernel: take the nicest one
    tasks = [int(entry.name) for entry in Path(f'/proc/{pid}/task').iterdir()]
    return max(os.getpriority(os.PRIO_PROCESS, task) for task in tasks)
