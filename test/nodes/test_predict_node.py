"""The predict node as a process over DDS: verdicts, dry runs, and what a dead one costs."""

from dataclasses import replace
import signal
from typing import Any

import numpy as np
import pytest

pytest.importorskip('rclpy')

from chunkpilot.msg import (
    ActionChunk,
    ChunkRequest,
    ChunkVerdict,
    Command,
    EpisodeEvent,
    Obstacle,
    ObstacleList,
    PolicyInfo,
)
from chunkpilot.srv import DryRunChunk
from chunkpilot_core import spaces, types
from chunkpilot_core.kinematics import Kinematics
from chunkpilot_nodes import convert, qos
from helpers.edge import Edge, PATIENT, ROBOT

pytestmark = pytest.mark.ros

KINEMATICS = Kinematics(ROBOT)
SPACE = spaces.ee_delta_space()
SPEC = types.PolicySpec('fake', 'fake', 1, SPACE, 16, 0.04, max_row_age_s=1.4)


class Policy:
    """Plays a policy at the robot's side of a graph, and hears what is made of its chunks."""

    def __init__(self, edge: Edge) -> None:
        self.edge, self.seq = edge, 0
        self.verdicts: list[types.ChunkVerdict] = []
        self.commands: list[types.Command] = []
        self.row = (0.0, 0.02, 0.0)  # of each row, policy units: 1 mm
        self.alive = False
        make, listen = edge.node.create_publisher, edge.node.create_subscription
        self.info = make(PolicyInfo, 'policy/info', qos.LATCHED)
        self.chunks = make(ActionChunk, 'chunk', qos.RELIABLE_10)
        self.episodes = make(EpisodeEvent, 'episode', qos.LATCHED)
        self.obstacles = make(ObstacleList, 'obstacles', qos.RELIABLE_10)
        listen(ChunkVerdict, 'chunk_verdict', self._on_verdict, qos.RELIABLE_10)
        listen(ChunkRequest, 'chunk_request', self._on_request, qos.RELIABLE_10)
        listen(Command, 'command', self._on_command, qos.COMMAND)

    def now(self) -> int:
        return int(self.edge.node.get_clock().now().nanoseconds)

    def _on_verdict(self, msg: ChunkVerdict) -> None:
        self.verdicts.append(convert.chunk_verdict_from_msg(msg))

    def _on_command(self, msg: Command) -> None:
        self.commands.append(convert.command_from_msg(msg))

    def _on_request(self, msg: ChunkRequest) -> None:
        if self.alive:
            request = convert.request_from_msg(msg)
            self.send(request_id=request.id, arm_epoch=request.arm_epoch, task_id=request.task_id)

    def chunk(self, **changes: Any) -> types.ActionChunk:
        self.seq += 1
        now, rows = self.now(), np.tile(np.float32([*self.row, 1.0]), (16, 1))
        made = types.ActionChunk(
            types.Id(9, self.seq), types.Id(7, self.seq), 1, 't', types.Id(8, self.seq), now, now,
            0.04, rows, SPACE.hash, 'fake', 1, max_row_age_s=1.4,
        )  # fmt: skip
        return replace(made, **changes)

    def send(self, **changes: Any) -> types.Id:
        chunk = self.chunk(**changes)
        self.chunks.publish(convert.chunk_to_msg(chunk))
        return chunk.id

    def announce(self) -> None:
        info = convert.policy_info_to_msg(
            SPEC, session=9, stamp_ns=self.now(), state='ready', warm_inference_s=0.01
        )
        self.info.publish(info)

    def verdict(self, chunk_id: types.Id) -> types.ChunkVerdict:
        """Wait for the verdict of a chunk and return it."""
        found = lambda: [v for v in self.verdicts if v.chunk_id == chunk_id]  # noqa: E731
        assert self.edge.run(20.0, found), f'no verdict of {chunk_id}'
        return found()[-1]

    def judged(self) -> None:
        """Wait until chunks are judged: the node knows the space and where the arm is."""
        count = len(self.verdicts)
        for _ in range(200):
            self.send()
            if self.edge.run(0.1, lambda: len(self.verdicts) > count):
                return
        raise AssertionError('no chunk is judged')


@pytest.fixture(scope='module')
def policy(edge: Edge) -> Policy:
    return Policy(edge)


@pytest.fixture(scope='module', autouse=True, name='node')
def _node(policy: Policy) -> Any:
    process = policy.edge.start('predict_node', 'detours:=true')
    assert policy.edge.run(30.0, lambda: policy.chunks.get_subscription_count())
    return process


@pytest.fixture
def judging(policy: Policy) -> None:
    """Have the node know the action space and where the arm is, whichever test is the first."""
    policy.announce()
    policy.judged()


def test_what_nobody_can_judge_gets_no_verdict_and_says_so(policy: Policy) -> None:
    policy.send()
    policy.edge.run(1.0)
    assert not policy.verdicts  # no space is known
    answer = policy.edge.call(
        'guard/dry_run_chunk', DryRunChunk, chunk=convert.chunk_to_msg(policy.chunk())
    )
    assert not answer.success
    assert 'policy/info' in answer.message


@pytest.mark.usefixtures('judging')
def test_every_chunk_gets_a_verdict(policy: Policy) -> None:
    ids = [policy.send() for _ in range(5)]
    for chunk_id in ids:
        verdict = policy.verdict(chunk_id)
        assert verdict.ok, verdict.reason
        assert verdict.executable_rows == 16
        assert 0.0 < verdict.duration_s < 5.0
        assert verdict.min_clearance > 0.0


@pytest.mark.usefixtures('judging')
def test_down_through_the_table_is_bad_from_some_row_on(policy: Policy) -> None:
    policy.row = (0.0, 0.0, -0.4)  # 2 cm a row
    verdict = policy.verdict(policy.send())
    policy.row = (0.0, 0.02, 0.0)
    assert (verdict.ok, verdict.check) == (False, 'workspace')
    assert 'z would be' in verdict.reason
    assert 0 < verdict.executable_rows < verdict.first_bad_row < 16


@pytest.mark.usefixtures('judging')
def test_rows_that_are_no_numbers_are_bad_as_a_whole(policy: Policy) -> None:
    rows = np.full((16, 4), np.nan, np.float32)
    verdict = policy.verdict(policy.send(actions=rows))
    assert (verdict.ok, verdict.first_bad_row, verdict.executable_rows) == (False, 0, 0)


@pytest.mark.usefixtures('judging')
def test_an_unreadable_chunk_is_survived(policy: Policy) -> None:
    msg = convert.chunk_to_msg(policy.chunk())
    msg.actions = msg.actions[:-1]
    policy.chunks.publish(msg)
    assert policy.verdict(policy.send()).ok


@pytest.mark.usefixtures('judging')
def test_obstacles_count_when_they_are_told(policy: Policy) -> None:
    x, y, z = (-0.6 + 0.64, 0.12, 0.2)
    wall = Obstacle(name='wall', shape=Obstacle.BOX, size=[0.4, 0.02, 0.4])
    wall.pose.position.x, wall.pose.position.y, wall.pose.position.z = x, y, z
    wall.pose.orientation.w = 1.0
    told = ObstacleList(obstacles=[wall], lasting=True)
    told.header.stamp = convert.to_time(policy.now())
    assert policy.edge.run(10.0, lambda: policy.obstacles.get_subscription_count())
    policy.obstacles.publish(told)
    policy.row = (0.0, 0.2, 0.0)  # 1 cm a row, towards it
    hit = lambda: not policy.verdict(policy.send()).ok  # noqa: E731
    assert policy.edge.run(10.0, hit)
    assert 'wall' in policy.verdicts[-1].reason
    assert policy.verdicts[-1].best_sample >= 0  # there is a way around
    policy.obstacles.publish(ObstacleList(lasting=True))
    assert policy.edge.run(10.0, lambda: policy.verdict(policy.send()).ok)
    policy.row = (0.0, 0.02, 0.0)


@pytest.mark.usefixtures('judging')
def test_a_dry_run_judges_from_where_it_is_told_and_moves_nothing(policy: Policy) -> None:
    call = lambda **fields: policy.edge.call('guard/dry_run_chunk', DryRunChunk, **fields)  # noqa: E731
    down = policy.chunk(actions=np.tile(np.float32([0, 0, -0.2, 1]), (16, 1)), start_ns=5)
    good = call(chunk=convert.chunk_to_msg(down))
    assert good.success, good.message
    low = np.array([*ROBOT.home, 0.04, 0.04])
    place = KINEMATICS.forward(low[:7]).position - [0.0, 0.0, 0.12]
    low[:7] = KINEMATICS.inverse(place, KINEMATICS.tool_rotation, low[:7]).joints
    bad = call(chunk=convert.chunk_to_msg(down), joints=low.tolist())
    assert not bad.success
    assert bad.message.startswith('row ')
    assert bad.verdict.first_bad_row >= 0
    wrong = call(chunk=convert.chunk_to_msg(down), joints=[0.0] * 3)
    assert 'need 9 finite numbers' in wrong.message
    for absurd in (np.nan, 1e308):
        wrong = call(chunk=convert.chunk_to_msg(down), joints=[absurd] * 9)
        assert 'allowed up to 100' in wrong.message
        assert not wrong.success
    assert not policy.edge.arm


@pytest.mark.matrix(32)
def test_a_stopped_predict_node_slows_the_arm_to_rest_and_no_more(policy: Policy, node) -> None:
    edge = policy.edge
    edge.start('guard_node', *PATIENT, 'chunk_verdict.require:=true')
    edge.start('execution_node', 'strategy:=fixed', 'fixed.horizon:=12', 'margin:=10.0')
    edge.ready()
    policy.announce()
    edge.armed()
    policy.alive = True
    policy.row = (0.0, 0.1, 0.0)  # 0.125 m/s
    start = EpisodeEvent(event=EpisodeEvent.START, episode_id='e', task_id='t')
    start.header.stamp = convert.to_time(policy.now())
    policy.episodes.publish(start)
    moving = lambda: np.abs(edge.verdicts[-1].sent_velocity).max() > 0.05  # noqa: E731
    assert edge.run(30.0, lambda: edge.scales[-1] == 1.0 and moving())
    node.send_signal(signal.SIGSTOP)
    began = len(edge.verdicts)
    assert edge.run(10.0, lambda: edge.scales[-1] == 0.0)
    scales = np.array([verdict.speed_scale for verdict in edge.verdicts[began:]])
    times = np.array([convert.to_ns(verdict.header.stamp) for verdict in edge.verdicts[began:]])
    fall = -np.diff(scales) - np.diff(times) / 1e9 / 0.2
    assert fall.max(initial=0.0) <= 0.06  # a ramp; a tick more or less
    assert edge.run(5.0, lambda: not np.any(edge.verdicts[-1].sent_velocity))
    assert edge.verdicts[-1].check == 'chunk_verdict'
    assert edge.state is types.ArmState.ARMED
    policy.row = (0.0, -0.1, 0.0)
    node.send_signal(signal.SIGCONT)
    assert edge.run(20.0, lambda: edge.scales[-1] == 1.0 and moving())
    assert edge.state is types.ArmState.ARMED
