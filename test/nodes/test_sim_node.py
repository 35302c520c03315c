"""sim_node and camera_node as processes, over DDS: they behave as a robot and a camera would."""

import math
import os
from pathlib import Path
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

pytest.importorskip('rclpy')

from chunkpilot.msg import GuardState, SimScene
from chunkpilot.srv import SimReset
from chunkpilot_core import camera as cameras
from chunkpilot_core import robot as robots
from chunkpilot_core.sim.world import World
from chunkpilot_nodes import convert, images, qos
from diagnostic_msgs.msg import DiagnosticArray
import domain_coordinator
import rclpy
from rclpy.executors import SingleThreadedExecutor
from rosgraph_msgs.msg import Clock
from sensor_msgs.msg import CameraInfo, CompressedImage, JointState
from std_msgs.msg import Bool, Float64MultiArray
from std_srvs.srv import Trigger

pytestmark = pytest.mark.ros

PANDA = robots.load('panda')
HOME = np.array(PANDA.home)


class Graph:
    """What stands around the sim, in a domain of its own."""

    def __init__(self, domain: int, folder: Path) -> None:
        self.domain, self.folder = domain, folder
        self.context = rclpy.context.Context()
        rclpy.init(context=self.context, domain_id=domain)
        self.node = rclpy.create_node('peer', context=self.context)
        self.executor = SingleThreadedExecutor(context=self.context)
        self.executor.add_node(self.node)
        self.processes: list[subprocess.Popen] = []
        self.seen: dict[str, list] = {}
        self.listen(JointState, 'joint_states', qos.SENSOR)
        self.listen(SimScene, 'sim/scene', qos.RELIABLE_10)
        self.listen(Clock, '/clock', qos.CLOCK)
        self.listen(Bool, 'driver/stopped', qos.LATCHED)
        self.listen(DiagnosticArray, '/diagnostics', qos.RELIABLE_10)
        make = self.node.create_publisher
        self.arm = make(Float64MultiArray, 'arm_controller/commands', qos.COMMAND)
        self.gripper = make(Float64MultiArray, 'gripper_controller/commands', qos.COMMAND)
        self.guard = make(GuardState, 'guard/state', qos.LATCHED)

    def listen(self, kind: type, topic: str, profile) -> None:
        self.seen[topic] = []
        self.node.create_subscription(kind, topic, self.seen[topic].append, profile)

    def start(self, module: str, *values: str) -> subprocess.Popen:
        arguments = [word for value in values for word in ('-p', value)]
        environment = {
            **os.environ,
            'ROS_DOMAIN_ID': str(self.domain),
            'OMP_NUM_THREADS': '1',
            'ROS_PYTHON_CHECK_FIELDS': '1',
        }
        log = open(self.folder / f'{module}{len(self.processes)}.log', 'w')  # noqa: SIM115
        process = subprocess.Popen(
            [sys.executable, '-m', f'chunkpilot_nodes.{module}', '--ros-args', *arguments],
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environment,
        )
        log.close()
        self.processes.append(process)
        return process

    def logs(self) -> str:
        return '\n'.join(file.read_text() for file in sorted(self.folder.glob('*.log')))

    def spin(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.executor.spin_once(timeout_sec=0.05)

    def wait(self, condition, timeout: float = 15.0):
        end = time.monotonic() + timeout
        while not (result := condition()):
            assert time.monotonic() < end, self.logs()
            self.executor.spin_once(timeout_sec=0.05)
        return result

    def fresh(self, topic: str, timeout: float = 15.0):
        """Return the next message."""
        self.seen[topic].clear()
        self.wait(lambda: self.seen[topic], timeout)
        return self.seen[topic][-1]

    def joints(self) -> np.ndarray:
        return np.array(self.fresh('joint_states').position)

    def call(self, kind: type, name: str, **fields):
        client = self.node.create_client(kind, name)
        self.wait(client.service_is_ready)
        future = client.call_async(kind.Request(**fields))
        self.wait(future.done)
        self.node.destroy_client(client)
        return future.result()

    def command(self, arm: np.ndarray, seconds: float = 0.5) -> None:
        """Stream arm targets at about 50 Hz."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.arm.publish(convert.positions_to_msg(arm, time.monotonic_ns()))
            self.spin(0.02)

    def diagnostics(self, node: str) -> dict[str, str]:
        def newest():
            for array in reversed(self.seen['/diagnostics']):
                if array.status[0].name == f'/{node}':
                    return array.status[0]
            return None

        self.seen['/diagnostics'].clear()
        status = self.wait(newest)
        return {'message': status.message, **{v.key: v.value for v in status.values}}

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()
        self.node.destroy_node()
        rclpy.try_shutdown(context=self.context)


@pytest.fixture(name='graph')
def _graph(tmp_path):
    with domain_coordinator.domain_id() as domain:
        graph = Graph(int(domain), tmp_path)
        try:
            yield graph
        finally:
            graph.close()


@pytest.fixture(name='sim')
def _sim(graph):
    graph.start('sim_node')
    graph.wait(lambda: graph.seen['sim/scene'])
    graph.wait(
        lambda: graph.arm.get_subscription_count() and graph.gripper.get_subscription_count()
    )
    return graph


def test_it_runs_in_real_time_and_moves_as_commanded(sim):
    sim.spin(1.0)
    sim.seen['joint_states'].clear()
    sim.spin(2.0)
    states = sim.seen['joint_states']
    assert 190 <= len(states) <= 210
    stamps = np.array([convert.to_ns(state.header.stamp) for state in states])
    assert np.median(np.diff(stamps)) * 1e-9 == pytest.approx(0.01, abs=5e-4)
    assert abs(time.time_ns() - stamps[-1]) < 0.5e9  # system time
    assert list(states[0].name) == list(PANDA.joints)

    goal = HOME + np.array([0.3, 0, 0, 0.1, 0, 0, 0])
    sim.command(goal)
    sim.gripper.publish(Float64MultiArray(data=[0.03, 0.03]))
    sim.spin(0.5)
    assert np.allclose(sim.joints(), [*goal, 0.03, 0.03], atol=3e-3)
    scene = sim.seen['sim/scene'][-1]
    assert scene.commands >= 10
    assert 0.0 < scene.command_latency_s < 0.2
    assert scene.real_time_factor == pytest.approx(1.0, abs=0.05)
    assert np.allclose(scene.joint_positions, sim.seen['joint_states'][-1].position, atol=2e-3)


def test_bad_commands_are_refused_and_the_arm_stays(sim):
    goal = HOME + np.array([0.2, 0, 0, 0, 0, 0, 0])
    sim.command(goal)
    bad = goal.copy()
    bad[2] = math.nan
    for data in (bad.tolist(), [0.0] * 6, [], [1e300] * 7, [math.inf] * 7):
        sim.arm.publish(Float64MultiArray(data=data))
        sim.spin(0.1)
    sim.gripper.publish(Float64MultiArray(data=[0.0] * 3))
    sim.spin(0.3)
    assert np.allclose(sim.joints()[:7], goal, atol=3e-3)
    numbers = sim.diagnostics('sim_node')
    assert int(numbers['refused']) == 6
    assert 'must be 2' in numbers['last_refusal']
    sim.command(HOME)
    assert np.allclose(sim.joints()[:7], HOME, atol=3e-3)
    assert 'panda_joint3 is nan' in sim.logs()


def test_a_reset_gives_the_seeds_goal_and_is_refused_while_armed(sim):
    answer = sim.call(SimReset, 'sim/reset', task_kind='push', seed=7, reset_robot=True)
    assert answer.success, answer.message
    world = World('push')
    expected = world.reset(7)
    assert np.allclose(answer.task.goal, expected.goal)
    assert answer.task.text == expected.text
    scene = sim.fresh('sim/scene')
    assert (scene.task_kind, scene.seed) == ('push', 7)
    placed = scene.poses[scene.bodies.index('object')].position
    assert np.allclose([placed.x, placed.y], world.scene().position('object')[:2], atol=1e-3)
    world.close()

    unknown = sim.call(SimReset, 'sim/reset', task_kind='pick_and_plaice', seed=7)
    assert not unknown.success
    assert "Did you mean 'pick_and_place'" in unknown.message
    assert 'stack' in unknown.message

    sim.guard.publish(GuardState(state=GuardState.ARMED))
    sim.spin(0.3)
    armed = sim.call(SimReset, 'sim/reset', seed=8)
    assert not armed.success
    assert 'ARMED' in armed.message
    assert 'guard/disarm' in armed.message
    assert sim.fresh('sim/scene').seed == 7
    sim.guard.publish(GuardState(state=GuardState.DISARMED))
    sim.spin(0.3)
    again = sim.call(SimReset, 'sim/reset', seed=8)
    assert again.success
    assert again.task.kind == 'push'  # '' keeps the task
    assert again.task.id != answer.task.id


def test_clocks_never_go_back(sim):
    for seed in range(4):
        assert sim.call(SimReset, 'sim/reset', seed=seed, reset_robot=True).success
        sim.spin(0.2)
    for stamps in (
        [convert.to_ns(msg.clock) for msg in sim.seen['/clock']],
        [convert.to_ns(msg.header.stamp) for msg in sim.seen['joint_states']],
        [convert.to_ns(msg.header.stamp) for msg in sim.seen['sim/scene']],
    ):
        assert len(stamps) > 50
        assert np.all(np.diff(stamps) > 0)


def test_success_is_published(sim):
    answer = sim.call(SimReset, 'sim/reset', task_kind='reach', seed=2, reset_robot=True)
    world = World('reach')
    world.reset(2)
    from chunkpilot_core.sim.drive import RowDriver

    driver, expert = RowDriver(world), world.definition.expert(PANDA)
    while not driver.run(expert(world.scene(), driver.commanded)):
        pass
    for _ in range(3):
        driver.run(expert(world.scene(), driver.commanded))
    assert not sim.fresh('sim/scene').success
    sim.command(world.joint_state().positions[:7], 0.8)
    world.close()
    assert sim.fresh('sim/scene').success
    assert np.allclose(sim.seen['sim/scene'][-1].goal, answer.task.goal)


def test_a_stopped_driver_freezes_the_arm_until_it_is_cleared(sim):
    for turn in np.arange(0.0, 0.3, 0.02):  # about 1 rad/s, still moving at the end
        sim.command(HOME + np.array([turn, 0, 0, 0, 0, 0, 0]), 0.02)
    assert sim.call(Trigger, 'driver/stop').success
    sim.wait(lambda: sim.seen['driver/stopped'][-1].data)
    sim.spin(0.3)
    frozen = sim.joints()
    assert 0.05 < frozen[0] < 0.4
    sim.command(HOME, 0.3)
    assert np.allclose(sim.joints(), frozen, atol=2e-3)
    assert sim.call(Trigger, 'driver/clear').success
    sim.spin(0.3)
    assert np.allclose(sim.joints(), frozen, atol=2e-3)  # no jump at the release
    sim.command(HOME, 0.8)
    assert np.allclose(sim.joints()[:7], HOME, atol=3e-3)


def test_it_comes_up_usable_after_kill_9(sim):
    before = sim.fresh('sim/scene')
    sim.processes[0].send_signal(signal.SIGKILL)
    sim.processes[0].wait()
    sim.start('sim_node')
    after = sim.wait(
        lambda: next((m for m in sim.seen['sim/scene'] if m.session != before.session), None)
    )
    assert convert.to_ns(after.header.stamp) > convert.to_ns(before.header.stamp)
    assert sim.call(SimReset, 'sim/reset', seed=5, reset_robot=True).success
    sim.wait(lambda: sim.arm.get_subscription_count())
    goal = HOME + np.array([0.2, 0, 0, 0, 0, 0, 0])
    sim.command(goal, 0.8)
    assert np.allclose(sim.joints()[:7], goal, atol=3e-3)
    clocks = np.array([convert.to_ns(msg.clock) for msg in sim.seen['/clock']])
    assert np.all(np.diff(clocks) > 0)


def test_faster_than_real_time_stamps_carry_the_simulated_clock(graph):
    graph.start('sim_node', 'real_time_factor:=3.0', 'use_sim_time:=true')
    graph.wait(lambda: len(graph.seen['joint_states']) > 50)
    started, first = time.monotonic(), convert.to_ns(graph.fresh('joint_states').header.stamp)
    graph.spin(1.0)
    passed = convert.to_ns(graph.fresh('joint_states').header.stamp) - first
    assert passed * 1e-9 / (time.monotonic() - started) == pytest.approx(3.0, rel=0.1)
    scene = graph.seen['sim/scene'][-1]
    assert scene.real_time_factor == pytest.approx(3.0, rel=0.1)
    clock = convert.to_ns(graph.seen['/clock'][-1].clock)
    assert abs(clock - convert.to_ns(graph.seen['joint_states'][-1].header.stamp)) < 1e8


@pytest.mark.parametrize(
    ('value', 'message'),
    [
        ('task:=pick_and_plaice', "Did you mean 'pick_and_place'"),
        ('real_time_facto:=1.0', "Did you mean 'real_time_factor'"),
        ('push.timeout:=1.0', "Did you mean 'push.timeout_s'"),
        ('action_gain:=7.0', 'above the maximum'),
        ('action_bias:=[0.1]', 'must have 3 values'),
    ],
)
def test_wrong_parameters_stop_it(graph, value, message):
    process = graph.start('sim_node', value)
    assert process.wait(timeout=20) == 1
    assert message in graph.logs()
    assert 'Traceback' not in graph.logs()


def test_the_camera_sends_what_the_sim_shows(graph):
    graph.listen(CompressedImage, 'camera/front/image/compressed', qos.IMAGES)
    graph.listen(CameraInfo, 'camera/front/camera_info', qos.LATCHED)
    graph.start('sim_node')
    graph.start('camera_node', 'rate_hz:=10.0', 'latency_s:=0.1')
    topic = 'camera/front/image/compressed'
    graph.wait(lambda: len(graph.seen[topic]) > 3 and len(graph.seen['sim/scene']) > 50)
    graph.seen[topic].clear()
    graph.spin(2.0)
    frames = graph.seen[topic]
    assert 17 <= len(frames) <= 22
    stamps = [convert.to_ns(frame.header.stamp) for frame in frames]
    assert np.median(np.diff(stamps)) * 1e-9 == pytest.approx(0.1, abs=0.005)
    scenes = {convert.to_ns(scene.header.stamp) for scene in graph.seen['sim/scene']}
    assert set(stamps[:-1]) <= scenes  # the stamp is that of the state that is shown
    assert (time.time_ns() - stamps[-1]) * 1e-9 > 0.1

    image = images.from_compressed('front', frames[-1])
    camera = cameras.load('front')
    assert image.pixels.shape == (camera.height, camera.width, 3)
    green = (image.pixels[:, :, 1] > 100) & (image.pixels[:, :, 0] < 60)
    rows, columns = np.nonzero(green)
    pose = graph.seen['sim/scene'][-1].poses[0].position
    expected = camera.project(np.array([[pose.x, pose.y, pose.z]]))[0]
    assert np.allclose([columns.mean(), rows.mean()], expected, atol=2.0)
    info = graph.seen['camera/front/camera_info'][-1]
    assert (info.width, info.height) == (camera.width, camera.height)
    assert np.allclose(
        np.array(info.k)[[0, 2, 4, 5]], [camera.fx, camera.cx, camera.fy, camera.cy]
    )
