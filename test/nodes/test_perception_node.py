"""perception_node as a real process: what comes in as topics, what goes out."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
import os
import signal
import subprocess
import sys
import time

import pytest

rclpy = pytest.importorskip('rclpy')
from chunkpilot.msg import GuardState, Observation, ObservationImages, Task  # noqa: E402
from chunkpilot_core import robot as robots  # noqa: E402
from chunkpilot_core.types import Image, JointState  # noqa: E402
from chunkpilot_nodes import convert, images, qos  # noqa: E402
from diagnostic_msgs.msg import DiagnosticArray  # noqa: E402
import domain_coordinator  # noqa: E402
import numpy as np  # noqa: E402
from rclpy.executors import SingleThreadedExecutor  # noqa: E402
from sensor_msgs.msg import CompressedImage  # noqa: E402
from sensor_msgs.msg import JointState as JointStateMsg  # noqa: E402

pytestmark = pytest.mark.ros
ROBOT = robots.load('panda')


def start(domain: int, *arguments: str) -> subprocess.Popen[str]:
    words = [word for argument in arguments for word in ('-p', argument)]
    return subprocess.Popen(
        [sys.executable, '-m', 'chunkpilot_nodes.perception_node', '--ros-args', *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={
            **os.environ,
            'ROS_DOMAIN_ID': str(domain),
            'ROS_AUTOMATIC_DISCOVERY_RANGE': 'LOCALHOST',
        },
    )


class Driver:
    """Stands for robot, camera, task and guard, and collects what the node publishes."""

    def __init__(self, domain: int) -> None:
        self.context = rclpy.Context()
        rclpy.init(context=self.context, domain_id=domain)
        self.node = rclpy.create_node('driver', context=self.context)
        self.executor = SingleThreadedExecutor(context=self.context)
        self.executor.add_node(self.node)
        self.observations: list[Observation] = []
        self.images: list[ObservationImages] = []
        self.numbers: dict[str, str] = {}
        create = self.node.create_publisher
        self.joints = create(JointStateMsg, 'joint_states', qos.SENSOR)
        self.camera = create(CompressedImage, 'camera/front/image/compressed', qos.IMAGES)
        self.task = create(Task, 'task', qos.LATCHED)
        self.guard = create(GuardState, 'guard/state', qos.LATCHED)
        subscribe = self.node.create_subscription
        subscribe(Observation, 'observation', self.observations.append, qos.RELIABLE_10)
        subscribe(ObservationImages, 'observation_images', self.images.append, qos.IMAGES)
        subscribe(DiagnosticArray, '/diagnostics', self._on_diagnostics, qos.RELIABLE_10)

    def _on_diagnostics(self, msg: DiagnosticArray) -> None:
        for status in msg.status:
            self.numbers = {entry.key: entry.value for entry in status.values}
            self.numbers['message'] = status.message

    def now_ns(self) -> int:
        return self.node.get_clock().now().nanoseconds

    def joint_state(self, **changes: object) -> None:
        positions = np.array([*ROBOT.home, 0.04, 0.04])
        state = JointState(self.now_ns(), ROBOT.joints, positions, np.zeros(9))
        msg = convert.joint_state_to_msg(state)
        for name, value in changes.items():
            setattr(msg, name, value)
        self.joints.publish(msg)

    def picture(self, stamp_ns: int | None = None, **changes: object) -> CompressedImage:
        stamp_ns = self.now_ns() if stamp_ns is None else stamp_ns
        pixels = np.full((120, 160, 3), 200, np.uint8)
        pixels[60:66, 80:86] = (25, 230, 25)
        msg = images.to_compressed(Image('front', stamp_ns, pixels))
        msg.header.stamp = convert.to_time(stamp_ns)
        for name, value in changes.items():
            setattr(msg, name, value)
        self.camera.publish(msg)
        return msg

    def run(self, duration_s: float, until: Callable[[], bool] = lambda: False) -> bool:
        """Publish joint states at 100 Hz; return whether ``until`` came true."""
        end = due = time.monotonic()
        end += duration_s
        while time.monotonic() < end and not until():
            if time.monotonic() >= due:
                self.joint_state()
                due += 0.01
            self.executor.spin_once(timeout_sec=0.003)
        return until()

    def close(self) -> None:
        self.executor.shutdown()
        self.node.destroy_node()
        rclpy.shutdown(context=self.context)


@pytest.fixture(scope='module')
def graph() -> Iterator[tuple[Driver, subprocess.Popen[str]]]:
    with ExitStack() as stack:
        domain = stack.enter_context(domain_coordinator.domain_id())
        process = start(domain)
        driver = Driver(domain)
        try:
            assert driver.run(15.0, lambda: bool(driver.observations)), 'no observation came'
            yield driver, process
            process.send_signal(signal.SIGTERM)
            assert process.wait(10) == 0
        finally:
            process.kill()
            process.wait(10)
            driver.close()


def test_observations_at_50_hz_one_per_state(graph) -> None:
    driver, _ = graph
    driver.observations.clear()
    driver.run(2.0)
    stamps = [convert.to_ns(msg.header.stamp) for msg in driver.observations]
    # 50 Hz of 100 Hz states, by their own clock; a loaded machine may lose some
    assert len(stamps) >= 70
    assert (len(stamps) - 1) / ((stamps[-1] - stamps[0]) * 1e-9) <= 50.5
    assert np.all(np.diff(stamps) > 0)
    assert {msg.id.session for msg in driver.observations} == {driver.observations[0].id.session}
    assert driver.observations[0].header.frame_id == 'world'


def test_task_epoch_and_object_are_in_the_observation(graph) -> None:
    driver, _ = graph
    task = Task(id='t1', kind='pick_and_place', goal_names=['goal.x'], goal=[0.1])
    driver.task.publish(task)
    driver.guard.publish(GuardState(arm_epoch=1234567890123))
    assert driver.run(5.0, lambda: driver.observations[-1].task_id == 't1')
    driver.run(0.2)
    driver.images.clear()
    sent = driver.picture()
    assert driver.run(5.0, lambda: bool(driver.images))
    got = driver.images[0]
    of_images = next(msg for msg in driver.observations if msg.id == got.observation_id)
    assert list(got.names) == ['front']
    assert bytes(got.images[0].data) == bytes(sent.data)
    assert of_images.header.stamp == got.header.stamp
    assert of_images.arm_epoch == 1234567890123
    assert list(of_images.goal_names) == ['goal.x']
    observation = convert.observation_from_msg(of_images)
    assert observation.objects[0].name == 'object'
    assert np.isfinite(observation.vector(['object.x', 'object.y', 'object.z'])).all()
    assert observation.health == 0
    driver.run(0.3)
    assert len(driver.images) == 1  # without a new image nothing is published


def test_broken_input_is_refused_counted_and_survived(graph) -> None:
    driver, process = graph
    whole = bytes(images.to_compressed(Image('front', 0, np.zeros((120, 160, 3), np.uint8))).data)
    other = images.to_compressed(Image('front', 0, np.zeros((64, 64, 3), np.uint8)))
    driver.images.clear()
    for changes in (
        {'data': b''},
        {'data': whole[: len(whole) // 2]},
        {'data': b'\xff\xd8' + bytes(200) + b'\xff\xd9'},
        {'data': bytes(other.data)},
        {'format': 'h264'},
    ):
        driver.picture(**changes)
        driver.run(0.05)
    bad_joints = (
        {'name': [], 'position': [], 'velocity': []},
        {'position': [float('nan')] * 9},
        {'name': [f'joint{i}' for i in range(9)]},
        {'position': [0.0, 0.0]},
    )
    for changes in bad_joints:
        driver.joint_state(**changes)
        driver.run(0.05)
    refused = {'images_refused': 5, 'joint_states_refused': len(bad_joints)}
    assert driver.run(
        5.0,
        lambda: all(int(driver.numbers.get(key, 0)) >= n for key, n in refused.items()),
    ), driver.numbers
    assert driver.images == []
    assert process.poll() is None
    driver.picture()
    assert driver.run(5.0, lambda: bool(driver.images))
    assert float(driver.numbers['observation_hz']) > 35.0
    assert float(driver.numbers['cost_ms_p99']) < 20.0


def test_wrong_parameters_are_one_clear_line() -> None:
    with domain_coordinator.domain_id() as domain:
        for argument, reason in (
            ('stages:=["object"]', "Did you mean 'objects'?"),
            ('objects.min_saturation:=300', 'above the maximum 255'),
            ('cameras:=["frnt"]', "Did you mean 'front'?"),
            ('rate:=20.0', "Did you mean 'rate_hz'?"),
        ):
            process = start(domain, argument)
            out, _ = process.communicate(timeout=20)
            assert process.returncode == 1
            assert reason in out
            assert 'Traceback' not in out
