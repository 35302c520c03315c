"""The task node as a process: the action over DDS, against a guard and a simulator in the test."""

import json
import os
import subprocess
import sys
import threading
import time

import pytest

pytest.importorskip('rclpy')

from action_msgs.msg import GoalStatus
from chunkpilot.action import RunTask
from chunkpilot.msg import (
    EpisodeEvent,
    ExecutionStats,
    GuardState,
    Observation,
    Outcome,
    PolicyInfo,
    SafetyVerdict,
    SimScene,
)
from chunkpilot.msg import Task as TaskMsg
from chunkpilot.srv import GuardCommand, MoveTo, SimReset
from chunkpilot_core import robot, types
from chunkpilot_core.errors import InvalidDataError
from chunkpilot_core.launching.isolation import own_domain
from chunkpilot_nodes import convert, qos
from chunkpilot_nodes.task_node import pairs
import numpy as np
import rclpy
from rclpy.action import ActionClient
from rclpy.executors import SingleThreadedExecutor

pytestmark = pytest.mark.ros

PANDA = robot.load('panda')


class Graph:
    """Everything but the task node."""

    def __init__(self, domain: int) -> None:
        self.context = rclpy.context.Context()
        rclpy.init(context=self.context, domain_id=domain)
        self.node = node = rclpy.create_node('graph', context=self.context)
        self.executor = SingleThreadedExecutor(context=self.context)
        self.executor.add_node(node)
        self.state, self.epoch = GuardState.DISARMED, 1
        self.refusal = ''
        self.solve_after_s = 0.3
        self.sessions = dict.fromkeys(('sim', 'guard', 'perception', 'execution'), 7)
        self.silent: set[str] = set()
        self.task, self.started = '', None
        self.goal, self.goals = [0.1], {}
        self.episode = ''
        self.log: list[str] = []
        self.commands = 0
        self.feedback: list[RunTask.Feedback] = []
        self.publish = {
            topic: node.create_publisher(kind, topic, profile)
            for kind, topic, profile in (
                (GuardState, 'guard/state', qos.LATCHED),
                (SafetyVerdict, 'verdict', qos.VERDICT),
                (SimScene, 'sim/scene', qos.RELIABLE_10),
                (PolicyInfo, 'policy/info', qos.LATCHED),
                (Observation, 'observation', qos.RELIABLE_10),
                (ExecutionStats, 'execution_stats', qos.RELIABLE_10),
            )
        }
        node.create_subscription(TaskMsg, 'task', self.on_task, qos.LATCHED)
        node.create_subscription(EpisodeEvent, 'episode', self.on_episode, qos.LATCHED)
        node.create_subscription(
            Outcome, 'outcome', lambda msg: self.log.append(f'outcome {msg.outcome}'), qos.LATCHED
        )
        for name in ('arm', 'disarm', 'reset'):
            node.create_service(
                GuardCommand,
                f'guard/{name}',
                lambda request, response, name=name: self.on_guard(name, response),
            )
        node.create_service(MoveTo, 'guard/move_to', lambda request, response: response)
        node.create_service(SimReset, 'sim/reset', self.on_reset)
        node.create_timer(0.02, self.tick)
        self.client = ActionClient(node, RunTask, 'run_task')
        self.announce('push')
        self.thread = threading.Thread(target=self.executor.spin, daemon=True)
        self.thread.start()

    def announce(self, task_kind: str) -> None:
        """Say which policy is served."""
        info = PolicyInfo(session=7, name='some_policy', ready=True, state='ready')
        info.task_kind = task_kind
        self.publish['policy/info'].publish(info)

    def on_task(self, msg: TaskMsg) -> None:
        self.task = msg.id
        self.goals.setdefault(msg.id, []).append(list(msg.goal))

    def on_episode(self, msg: EpisodeEvent) -> None:
        start = msg.event == EpisodeEvent.START
        self.log.append('START' if start else 'END')
        self.started = time.monotonic() if start else None
        self.episode = msg.episode_id
        if not start:
            self.send_stats()

    def on_guard(self, name: str, response: GuardCommand.Response) -> GuardCommand.Response:
        self.log.append(name)
        response.message = self.refusal if name == 'arm' else ''
        response.success = not response.message
        if response.success:
            self.epoch += 1
            self.state = GuardState.ARMED if name == 'arm' else GuardState.DISARMED
        return response

    def on_reset(self, request: SimReset.Request, response: SimReset.Response):
        self.log.append(f'reset {request.task_kind} {request.seed}')
        goal = np.array(self.goal, np.float32)
        task = types.Task(f'push-{request.seed}-0', 'push', '', ('goal.x',), goal)
        response.success, response.task = True, convert.task_to_msg(task, 0)
        return response

    def send_stats(self) -> None:
        self.publish['execution_stats'].publish(
            ExecutionStats(
                session=self.sessions['execution'],
                episode_id=self.episode,
                strategy='upcycling',
                ticks=100,
                policy_calls=2,
                executed_rows=24,
                base_horizon=8.0,
            )
        )

    def tick(self) -> None:
        """Let every node that is not silent speak."""
        if 'guard' not in self.silent:
            self.publish['guard/state'].publish(
                GuardState(session=self.sessions['guard'], state=self.state, arm_epoch=self.epoch)
            )
            self.publish['verdict'].publish(
                SafetyVerdict(session=self.sessions['guard'], counters=[self.commands] + [0] * 7)
            )
        if 'sim' not in self.silent:
            self.commands += 1
            ran_s = time.monotonic() - self.started if self.started else 0.0
            scene = SimScene(session=self.sessions['sim'], success=ran_s > self.solve_after_s)
            scene.joint_names = list(PANDA.arm_joints)
            scene.joint_positions = list(PANDA.home)
            scene.task_kind, scene.goal = 'push', self.goal
            scene.commands, scene.command_latency_s = self.commands, 0.002
            scene.header.stamp = self.node.get_clock().now().to_msg()
            self.publish['sim/scene'].publish(scene)
        if 'perception' not in self.silent:
            observation = Observation(task_id=self.task)
            observation.id.session = self.sessions['perception']
            self.publish['observation'].publish(observation)
        if 'execution' not in self.silent:
            self.send_stats()

    def send(self, **goal):
        """Send a goal and return its handle."""
        assert self.client.wait_for_server(20.0)
        goal = {'task_kind': 'push', 'episodes': 1, 'seed': 3, **goal}
        return self.ask(
            lambda: self.client.send_goal_async(
                RunTask.Goal(**goal), lambda msg: self.feedback.append(msg.feedback)
            )
        )

    def ask(self, call):
        """
        Start something asynchronous in the executor's thread, and wait for its result here.

        From another thread rclpy's action client may get the answer before it waits for it.
        """
        return wait(wait(self.executor.create_task(call)))

    def close(self) -> None:
        self.executor.shutdown()
        self.thread.join(5.0)
        rclpy.shutdown(context=self.context)


def wait(future, timeout_s: float = 30.0):
    """Wait for a future that another thread completes."""
    done = threading.Event()
    future.add_done_callback(lambda _: done.set())
    assert done.wait(timeout_s)
    return future.result()


def until(condition, timeout_s: float = 10.0) -> None:
    """Wait for a condition."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def command(*values: str) -> list[str]:
    """Return the command of a task node with some parameters."""
    words = [word for value in values for word in ('-p', value)]
    return [sys.executable, '-m', 'chunkpilot_nodes.task_node', '--ros-args', *words]


@pytest.fixture(name='graph', scope='module')
def _graph(tmp_path_factory):
    """Run the task node once for all tests; they leave it waiting for a goal."""
    summary = tmp_path_factory.mktemp('task') / 'summary.json'
    with own_domain() as domain:
        process = subprocess.Popen(
            command(
                f'summary:={summary}',
                'ready_timeout_s:=2.0',
                'arm_timeout_s:=0.5',
                'max_failed_starts:=1',
            ),
            env={**os.environ, 'ROS_DOMAIN_ID': str(domain)},
        )
        graph = Graph(domain)
        graph.summary = summary
        try:
            yield graph
        finally:
            graph.close()
            process.terminate()
            assert process.wait(10.0) == 0


@pytest.fixture(autouse=True)
def _fresh(graph):
    graph.log.clear()
    graph.goals.clear()
    graph.feedback.clear()
    graph.silent.clear()
    graph.refusal, graph.solve_after_s = '', 0.3


def test_two_episodes(graph):
    handle = graph.send(episodes=2)
    done = graph.ask(handle.get_result_async)
    assert done.status == GoalStatus.STATUS_SUCCEEDED
    result = done.result
    assert (result.success, result.episodes, result.successes, result.aborted) == (True, 2, 2, 0)
    until(lambda: len(graph.log) == 12)
    calls = [line for line in graph.log if not line.startswith('outcome')]
    one = ['arm', 'START', 'END', 'disarm']
    assert calls == ['reset push 3', *one, 'reset push 4', *one]
    assert graph.log.count(f'outcome {Outcome.SUCCESS}') == 2
    summary = json.loads(result.summary_json)
    assert summary == json.loads(graph.summary.read_text())
    assert summary['success'] == 1.0
    assert summary['policy'] == 'some_policy'
    assert summary['seeds'] == [3, 4]
    assert summary['policy_calls_per_episode'] == 2.0
    assert summary['calls_saved_ratio'] == 1.5
    assert summary['command_latency_ms']['p50'] == pytest.approx(2.0)
    assert summary['guard']['pass'] > 10
    assert summary['cpu_cores']['foreign'] is not None
    assert summary['versions']['numpy']
    phases = {msg.phase for msg in graph.feedback}
    assert {'running', 'done'} <= phases


def test_a_goal_that_moves_is_announced_under_the_same_id(graph):
    graph.solve_after_s = 0.6
    handle = graph.send(episodes=1)
    until(lambda: 'START' in graph.log)
    graph.goal = [0.25]
    assert graph.ask(handle.get_result_async).result.success
    assert list(graph.goals.values()) == [[[pytest.approx(0.1)], [0.25]]]
    graph.goal = [0.1]  # after the end nothing is announced
    time.sleep(0.2)
    assert len(graph.goals[graph.task]) == 2


def test_refusal_of_the_guard_reaches_the_caller(graph):
    graph.refusal = 'joint_states are 3.0 s old'
    done = graph.ask(graph.send().get_result_async)
    assert done.status == GoalStatus.STATUS_ABORTED
    assert 'guard/arm: joint_states are 3.0 s old' in done.result.message
    assert 'START' not in graph.log


def test_cancel_ends_the_episode_and_disarms(graph):
    graph.solve_after_s = 99.0
    handle = graph.send(episodes=5)
    until(lambda: 'START' in graph.log)
    graph.ask(handle.cancel_goal_async)
    done = graph.ask(handle.get_result_async)
    assert done.status == GoalStatus.STATUS_CANCELED
    until(lambda: f'outcome {Outcome.ABORTED}' in graph.log)
    assert graph.log[-1] == 'disarm'
    assert done.result.aborted == 1


def test_dead_simulator_aborts_and_says_so(graph):
    graph.solve_after_s = 99.0
    handle = graph.send()
    until(lambda: 'START' in graph.log)
    graph.silent.add('sim')
    done = graph.ask(handle.get_result_async)
    (episode,) = json.loads(done.result.summary_json)['per_episode']
    assert episode['outcome'] == 'aborted'
    assert episode['reason'].startswith('sim is dead')


def test_only_one_run_at_a_time(graph):
    graph.solve_after_s = 1.0
    first = graph.send()
    assert not graph.send().accepted
    assert graph.ask(first.get_result_async).result.success


@pytest.mark.parametrize(
    ('kind', 'message'),
    [('pusch', "Did you mean 'push'?"), ('reach', "trained for 'push', not for 'reach'")],
)
def test_wrong_task_is_refused_with_the_reason(graph, kind, message):
    result = graph.ask(graph.send(task_kind=kind).get_result_async).result
    assert not result.success
    assert message in result.message
    assert graph.log == []


@pytest.mark.parametrize(
    ('goal', 'message'),
    [
        ({'episodes': 0}, 'episodes is 0'),
        ({'timeout_s': -5.0}, 'timeout is -5 s'),
        ({'timeout_s': float('nan')}, 'timeout is nan s'),
        ({'episodes': 2, 'seed': 2**64 - 1}, 'seed is 18446744073709551615'),
    ],
)
def test_numbers_that_are_not_allowed_are_refused_in_words(graph, goal, message):
    result = graph.ask(graph.send(**goal).get_result_async).result
    assert not result.success
    assert message in result.message
    assert graph.log == []


def test_arrays_of_different_lengths_are_invalid_data():
    with pytest.raises(InvalidDataError, match='joints: 2 names, but 1 values'):
        pairs(['a', 'b'], [1.0], 'sim/scene: joints')


def test_record_needs_a_recorder(graph):
    result = graph.ask(graph.send(record=True).get_result_async).result
    assert not result.success
    assert 'record:=true' in result.message


def test_misspelt_parameter_ends_the_node():
    done = subprocess.run(
        command('ready_timeout:=2.0'),
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert done.returncode == 1
    assert "Did you mean 'ready_timeout_s'?" in done.stderr
