"""Obstacles by topic reach the guard of a real process, and keep the arm off them."""

from dataclasses import replace
import time
from typing import Any

import pytest

rclpy = pytest.importorskip('rclpy')
from chunkpilot.msg import ObstacleList  # noqa: E402
from chunkpilot.srv import MoveTo  # noqa: E402
from chunkpilot_core import robot as robots  # noqa: E402
from chunkpilot_core import types  # noqa: E402
from chunkpilot_core.clearance.runtime import bodies  # noqa: E402
from chunkpilot_core.kinematics import Kinematics  # noqa: E402
from chunkpilot_nodes import convert, lasting, qos, spin  # noqa: E402
import numpy as np  # noqa: E402

pytestmark = [pytest.mark.ros, pytest.mark.timeout(120)]
ROBOT = robots.load('panda')
HOME = np.array(ROBOT.home)
TOOL = Kinematics(ROBOT).forward(HOME).position
WALL = bodies.Obstacle(
    'wall',
    bodies.Shape.BOX,
    (0.4, 0.1, 0.4),
    TOOL + np.array([0.0, 0.25, 0.0]),
    np.array([0.0, 0.0, 0.0, 1.0]),
)


@pytest.fixture(scope='module')
def graph(edge: Any) -> Any:
    """Give the edge with a guard on it, and somebody who sees obstacles."""
    edge.obstacles = edge.node.create_publisher(ObstacleList, 'obstacles', qos.RELIABLE_10)
    edge.guard_process = edge.start_guard()
    edge.ready()
    assert edge.run(10.0, lambda: edge.obstacles.get_subscription_count())
    return edge


def tell(edge: Any, *obstacles: bodies.Obstacle, frame: str = 'world') -> None:
    now_ns = edge.node.get_clock().now().nanoseconds
    told = bodies.ObstacleList(now_ns, obstacles, lasting=True)
    edge.obstacles.publish(convert.obstacles_to_msg(told, frame))


def towards_the_wall(edge: Any) -> None:
    goal = HOME + np.array([0.6, 0, 0, 0, 0, 0, 0])
    answer = edge.call(
        'guard/move_to',
        MoveTo,
        joint_names=list(ROBOT.arm_joints),
        positions=goal.tolist(),
        speed_fraction=0.5,
    )
    assert answer.success, answer.message


@pytest.mark.matrix(29)
def test_the_arm_holds_in_front_of_what_was_told_on_the_topic(graph: Any) -> None:
    graph.armed()
    tell(graph, WALL)
    towards_the_wall(graph)
    assert graph.run(20.0, lambda: graph.state is types.ArmState.HOLD)
    held = [verdict for verdict in graph.verdicts if verdict.check == 'clearance']
    assert any('-wall' in verdict.reason for verdict in held)
    assert any(name.endswith('-wall') for name in held[-1].clearance_names)
    assert graph.positions[0] < 0.45
    assert graph.run(5.0, lambda: graph.state is types.ArmState.ARMED)  # by itself
    assert graph.call('guard/move_to', MoveTo).success  # back is free
    assert graph.run(10.0, lambda: np.allclose(graph.positions[:7], HOME))


@pytest.mark.matrix(31)
@pytest.mark.parametrize(
    ('broken', 'frame', 'words'),
    [
        (replace(WALL, position=np.array([np.nan, 0.0, 0.0])), 'world', 'position'),
        (WALL, 'camera', "frame 'camera'"),
    ],
)
def test_a_list_that_says_nothing_is_refused_by_an_event_and_the_old_one_stays(
    graph: Any, broken: bodies.Obstacle, frame: str, words: str
) -> None:
    graph.armed()
    tell(graph, WALL)
    graph.guard_events.clear()
    tell(graph, broken, frame=frame)
    assert graph.run(5.0, lambda: any(e.check == 'obstacles' for e in graph.guard_events))
    event = next(event for event in graph.guard_events if event.check == 'obstacles')
    assert words in event.reason
    graph.verdicts.clear()
    assert graph.run(2.0, lambda: graph.verdicts)
    towards_the_wall(graph)
    assert graph.run(20.0, lambda: graph.state is types.ArmState.HOLD)
    graph.armed()
    assert graph.call('guard/move_to', MoveTo).success
    assert graph.run(10.0, lambda: np.allclose(graph.positions[:7], HOME))


def test_messages_say_the_same_both_ways() -> None:
    held = replace(WALL, name='tube', shape=bodies.Shape.CAPSULE, size=(0.01, 0.1), frame='tool')
    told = bodies.ObstacleList(123456789, (replace(WALL, graspable=True), held), lasting=True)
    again = convert.obstacles_from_msg(convert.obstacles_to_msg(told, 'world'), 'world')
    assert (again.stamp_ns, again.lasting) == (told.stamp_ns, True)
    for one, other in zip(again.obstacles, told.obstacles, strict=True):
        assert np.array_equal(one.position, other.position)
        assert replace(one, position=0, orientation=0) == replace(other, position=0, orientation=0)


@pytest.mark.parametrize('profile', [qos.LATCHED, qos.RELIABLE_10], ids=['kept', 'volatile'])
def test_each_list_is_heard_once_and_a_kept_one_also_later(profile: Any) -> None:
    """By whoever hears obstacles: guard_node and predict_node do it in this way."""
    context = rclpy.Context()
    rclpy.init(context=context)
    node = spin.SupervisedNode('obstacles_once', context=context)
    heard: list[Any] = []
    executor = rclpy.executors.SingleThreadedExecutor(context=context)
    executor.add_node(node)

    def run(until: Any) -> bool:
        end = time.monotonic() + 10.0
        while not until() and time.monotonic() < end:
            executor.spin_once(timeout_sec=0.05)
        return bool(until())

    try:
        publisher = node.create_publisher(ObstacleList, 'obstacles_once', profile)
        publisher.publish(ObstacleList(lasting=True))
        lasting.subscribe(node, ObstacleList, 'obstacles_once', heard.append)
        kept = profile is qos.LATCHED
        assert run(lambda: publisher.get_subscription_count() == (2 if kept else 1))
        assert run(lambda: len(heard) == 1) or not kept
        for number in range(3):
            told = ObstacleList()
            told.header.stamp.nanosec = number + 1
            publisher.publish(told)
        assert run(lambda: len(heard) >= 3 + kept)
        for _ in range(10):
            executor.spin_once(timeout_sec=0.02)
        assert [told.lasting for told in heard] == [True] * kept + [False] * 3
    finally:
        executor.shutdown()
        node.destroy_node()
        rclpy.shutdown(context=context)


def test_a_guard_that_was_restarted_knows_a_lasting_list(graph: Any) -> None:
    seer = graph.node.create_publisher(ObstacleList, 'obstacles', qos.LATCHED)
    now_ns = graph.node.get_clock().now().nanoseconds
    told = bodies.ObstacleList(now_ns, (WALL,), lasting=True)
    seer.publish(convert.obstacles_to_msg(told, 'world'))
    graph.guard_process.kill()
    graph.guard_process.wait()
    # DDS forgets who has died after 20 s.
    assert graph.run(40.0, lambda: seer.get_subscription_count() == 0)
    graph.states.clear()  # of the dead one
    graph.guard_process = graph.start_guard()
    graph.ready()
    assert graph.run(10.0, seer.get_subscription_count)
    graph.run(1.0)  # until the list has come
    graph.armed()
    towards_the_wall(graph)
    assert graph.run(20.0, lambda: graph.state is types.ArmState.HOLD)
    assert any('-wall' in verdict.reason for verdict in graph.verdicts)
    graph.node.destroy_publisher(seer)
