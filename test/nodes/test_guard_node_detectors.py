"""Tracking and the freeze detector in the real guard: a stopped robot, a policy that idles."""

from pathlib import Path
from typing import Any

import pytest

rclpy = pytest.importorskip('rclpy')
from chunkpilot.msg import ActionChunk, EpisodeEvent, PolicyInfo  # noqa: E402
from chunkpilot_core import spaces, types  # noqa: E402
from chunkpilot_core.safety.runtime import calibration as calibrations  # noqa: E402
from chunkpilot_core.safety.runtime.calibration import GuardCalibration  # noqa: E402
from chunkpilot_core.safety.runtime.detector import Part  # noqa: E402
from chunkpilot_nodes import convert, qos  # noqa: E402
from helpers.edge import Edge, own_edge, PATIENT, ROBOT  # noqa: E402
import numpy as np  # noqa: E402

pytestmark = [pytest.mark.ros, pytest.mark.timeout(120)]
SPACE = spaces.ee_delta_space()
SPEC = types.PolicySpec('test', 'idler', 1, SPACE, 16, 0.04)


def test_a_stopped_robot_holds_and_is_not_caught_up_with(edge: Edge) -> None:
    edge.start('guard_node', *PATIENT, 'joint_state.frozen_s:=9.0')
    edge.ready()
    edge.armed()
    sender = edge.sender(speed=0.4)
    assert edge.run(20.0, edge.moving)
    edge.run(0.5)
    edge.stopped = True  # as by its own protective stop: its joints stay where they are
    assert edge.run(5.0, lambda: edge.state is types.ArmState.HOLD)
    sender.kill()
    cause = edge.states[-1].causes[0]
    assert cause.startswith('tracking: panda_joint1'), cause
    edge.run(1.5)
    assert edge.state is types.ArmState.HOLD, 'as long as the robot is not where it is sent'
    edge.arm.clear()
    edge.stopped = False
    assert edge.run(5.0, lambda: edge.state is types.ArmState.ARMED)
    edge.run(0.5)
    sent = np.array([msg.data for _, msg in edge.arm])
    assert np.abs(np.diff(sent[:, 0])).max() == 0.0, 'the setpoint waits'


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Return a calibration for the policy that these tests play."""
    parts = {'freeze': Part(statistics={'way': 3.0, 'pause_s': 0.0})}
    made = GuardCalibration(
        ROBOT.name, ROBOT.limits_hash, SPEC.name, 1, '', SPACE.hash, 'reach', SPEC.horizon,
        SPEC.dt_s, 40, 0.02, 'a test', '', parts,
    )  # fmt: skip
    calibrations.save(made, tmp_path / 'guard.yaml')
    return tmp_path / 'guard.yaml'


class Idler:
    """A policy that answers, and does nothing."""

    def __init__(self, edge: Edge) -> None:
        self.edge = edge
        self.chunks = edge.node.create_publisher(ActionChunk, 'chunk', qos.RELIABLE_10)
        self.info = edge.node.create_publisher(PolicyInfo, 'policy/info', qos.LATCHED)
        self.episode = edge.node.create_publisher(EpisodeEvent, 'episode', qos.LATCHED)
        self.seq = 0

    def introduce(self) -> None:
        now_ns = self.edge.node.get_clock().now().nanoseconds
        said = convert.policy_info_to_msg(
            SPEC, session=4, stamp_ns=now_ns, state='ready', warm_inference_s=0.01
        )
        self.info.publish(said)

    def answer(self) -> None:
        self.seq += 1
        now_ns = self.edge.node.get_clock().now().nanoseconds
        epoch = int(self.edge.states[-1].arm_epoch)
        chunk = types.ActionChunk(
            types.Id(4, self.seq), types.Id(5, self.seq), epoch, 't', types.Id(3, self.seq),
            now_ns, now_ns, SPEC.dt_s, np.zeros((16, 4), np.float32), SPACE.hash, 'test', 1,
            now_ns, parts=(types.ChunkPart(0, 16, types.Id(3, self.seq), now_ns,
                                           executable_rows=16),),
        )  # fmt: skip
        self.chunks.publish(convert.chunk_to_msg(chunk))

    def go_on(self, longest_s: float, until: Any) -> bool:
        """Answer four times a second until something is so."""
        for _ in range(round(longest_s / 0.25)):
            self.answer()
            if self.edge.run(0.25, until):
                return True
        return False


def test_a_policy_that_idles_is_asked_again_and_then_held(file: Path) -> None:
    with own_edge() as edge:
        times = ('freeze.replan_s:=1.0', 'freeze.hold_s:=3.0')
        edge.start('guard_node', *PATIENT, *times, f'calibration:={file}')
        edge.ready()
        idler = Idler(edge)
        idler.introduce()
        start = EpisodeEvent(event=EpisodeEvent.START, episode_id='e', task_id='t')
        idler.episode.publish(start)
        heard = lambda: all(  # noqa: E731
            publisher.get_subscription_count() for publisher in (idler.info, idler.chunks)
        )
        assert edge.run(10.0, heard)
        edge.armed()
        asked = lambda: [event for event in edge.guard_events if event.kind == 'replan']  # noqa: E731
        assert idler.go_on(15.0, asked)
        assert asked()[0].check == 'freeze'
        assert asked()[0].escalate
        assert edge.state is types.ArmState.ARMED
        assert idler.go_on(15.0, lambda: edge.state is types.ArmState.HOLD)
        assert edge.states[-1].causes[0].startswith('freeze: nothing has been done for 3.0 s')
        assert not any(state.state == types.ArmState.STOPPED for state in edge.states)


def test_a_calibration_for_another_policy_is_said_when_arming(file: Path) -> None:
    with own_edge() as own:
        own.start('guard_node', *PATIENT, f'calibration:={file}')
        own.ready()
        other = Idler(own)
        said = convert.policy_info_to_msg(
            types.PolicySpec('test', 'another', 1, SPACE, 16, 0.04),
            session=4,
            stamp_ns=own.node.get_clock().now().nanoseconds,
            state='ready',
            warm_inference_s=0.01,
        )
        other.info.publish(said)
        assert own.run(10.0, lambda: "in force is 'another'" in own.states[-1].why_not)
        assert not own.guard('arm').success
