"""kill -9 of each node in motion: the arm decelerates, the rest lives, the next episode works."""

from collections.abc import Callable, Iterator
import json
import os
from pathlib import Path
import signal
import subprocess
import sys
import threading
import time
from typing import Any

import numpy as np
import pytest

pytest.importorskip('rclpy')

from chunkpilot.action import RunTask
from chunkpilot.msg import EpisodeEvent, GuardState, Outcome, SafetyVerdict
from chunkpilot_core import robot
from chunkpilot_core.cli.demo import priority
from chunkpilot_core.launching.isolation import own_domain
from chunkpilot_core.types import EpisodeOutcome
from chunkpilot_nodes import convert, qos
import psutil
import rclpy
from rclpy.action import ActionClient
from rclpy.executors import SingleThreadedExecutor
from std_msgs.msg import Bool
import yaml

pytestmark = [pytest.mark.ros, pytest.mark.slow, pytest.mark.timeout(180)]

PANDA = robot.load('panda')
NODES = (
    'sim_node',
    'guard_node',
    'watchdog_node',
    'execution_node',
    'perception_node',
    'policy_node',
    'predict_node',
    'camera_node',
    'learner_node',
    'task_node',
)


class Graph:
    """The graph of the launch file, and somebody who watches it."""

    def __init__(self, domain: int, parameters: Path) -> None:
        words = ['up', 'demo', f'priority:={priority()}', f'params:={parameters}']
        self.process = subprocess.Popen(
            [sys.executable, '-m', 'chunkpilot_core.cli', *words],
            env={**os.environ, 'ROS_DOMAIN_ID': str(domain)},
            stdout=subprocess.PIPE,
            text=True,
        )
        self.lines: list[str] = []
        threading.Thread(target=self._read, daemon=True).start()
        self.context = rclpy.context.Context()
        rclpy.init(context=self.context, domain_id=domain)
        self.node = rclpy.create_node('watcher', context=self.context)
        self.executor = SingleThreadedExecutor(context=self.context)
        self.executor.add_node(self.node)
        self.outcomes: list[Outcome] = []
        self.states: list[GuardState] = []
        self.stopped: list[bool] = []
        self.verdicts: list[tuple[int, int, np.ndarray, np.ndarray]] = []  # stamp first [ns]
        self.started_s: float | None = None
        listen = self.node.create_subscription
        listen(Outcome, 'outcome', self.outcomes.append, qos.LATCHED)
        listen(GuardState, 'guard/state', self.states.append, qos.LATCHED)
        listen(Bool, 'driver/stopped', lambda msg: self.stopped.append(msg.data), qos.LATCHED)
        listen(EpisodeEvent, 'episode', self._on_episode, qos.LATCHED)
        listen(SafetyVerdict, 'verdict', self._on_verdict, qos.VERDICT)
        self.client = ActionClient(self.node, RunTask, 'run_task')
        self.goal: tuple[Any, Any] | None = None  # handle and result of the newest

    def _read(self) -> None:
        assert self.process.stdout is not None
        self.lines.extend(iter(self.process.stdout.readline, ''))

    def _on_episode(self, msg: EpisodeEvent) -> None:
        self.started_s = time.monotonic() if msg.event == EpisodeEvent.START else None

    def _on_verdict(self, msg: SafetyVerdict) -> None:
        sent, velocity = np.array(msg.sent), np.array(msg.sent_velocity)
        stamp_ns = convert.to_ns(msg.header.stamp)
        self.verdicts.append((stamp_ns, msg.state, sent, velocity))

    def spin_until(self, condition: Callable[[], bool], timeout_s: float) -> None:
        """Listen until a condition holds."""
        deadline = time.monotonic() + timeout_s
        while not condition():
            assert time.monotonic() < deadline, ''.join(self.lines[-40:])
            assert self.process.poll() is None, ''.join(self.lines[-40:])
            self.executor.spin_once(timeout_sec=0.02)

    def spin(self, duration_s: float) -> None:
        """Listen for a while."""
        end = time.monotonic() + duration_s
        while time.monotonic() < end:
            self.executor.spin_once(timeout_sec=0.02)

    def pids(self) -> dict[str, int]:
        """Return the process of each node."""
        found = {}
        for child in psutil.Process(self.process.pid).children():
            words = child.cmdline()
            found |= {
                name: child.pid for name in NODES if any(w.endswith(f'/{name}') for w in words)
            }
        return found

    def run(self, episodes: int, seed: int):
        """Ask for episodes; returns the future of the result."""
        self.spin_until(self.client.server_is_ready, 60.0)
        if self.goal is not None and not self.goal[1].done():  # a test that failed has left it
            self.goal[0].cancel_goal_async()
            self.spin_until(self.goal[1].done, 90.0)
        goal = RunTask.Goal(task_kind='pick_and_place', episodes=episodes, seed=seed)
        sent = self.client.send_goal_async(goal)
        self.spin_until(sent.done, 10.0)
        handle = sent.result()
        assert handle.accepted
        self.goal = handle, handle.get_result_async()
        return self.goal[1]

    def close(self) -> None:
        """End the graph as a user does."""
        self.process.send_signal(signal.SIGINT)
        try:
            assert self.process.wait(20.0) == 0
        finally:
            if self.process.poll() is None:
                self.process.kill()
            self.executor.shutdown()
            rclpy.shutdown(context=self.context)


@pytest.fixture(name='parameters', scope='module')
def _parameters(tmp_path_factory) -> Path:
    """
    Give those of the demo, with patience for a machine that many share.

    What is late for a moment is not what these tests kill; a dead node is silent for longer.
    """
    values = yaml.safe_load((robot.config_dir() / 'demo.yaml').read_text())
    joint_states = {'joint_state.hold_s': 0.4, 'joint_state.stop_s': 5.0, 'ladder_count': 100}
    values['guard_node'] = {'ros__parameters': joint_states}
    values['watchdog_node'] = {'ros__parameters': {'periods': 50}}
    file: Path = tmp_path_factory.mktemp('deaths') / 'parameters.yaml'
    file.write_text(json.dumps(values))
    return file


@pytest.fixture(name='graph', scope='module')
def _graph(parameters: Path) -> Iterator[Graph]:
    with own_domain() as domain:
        graph = Graph(domain, parameters)
        try:
            yield graph
        finally:
            graph.close()


def kill_in_motion(graph: Graph, name: str) -> tuple[dict[str, int], float]:
    """Kill a node half a second into an episode; returns the nodes of before, and when."""
    graph.spin_until(lambda: graph.started_s is not None, 90.0)
    graph.spin_until(lambda: moving(graph), 5.0)
    before = graph.pids()
    assert set(before) == set(NODES)
    os.kill(before[name], signal.SIGKILL)
    return before, time.monotonic()


def moving(graph: Graph) -> bool:
    """Whether the arm moves visibly."""
    return bool(graph.verdicts) and float(np.abs(graph.verdicts[-1][3][:7]).max()) > 0.2


def finish(graph: Graph, future, before: dict[str, int], name: str):
    """Wait for the end of the run; only the killed node may be another process."""
    graph.spin_until(future.done, 120.0)
    after = graph.pids()
    assert after.keys() == before.keys()
    assert {node for node in NODES if after[node] != before[node]} == {name}
    return future.result().result


def check_outcomes(graph: Graph, since: int) -> None:
    """Check a run's episodes: the first is aborted, then one succeeds."""
    told = [(EpisodeOutcome(msg.outcome).name, msg.reason) for msg in graph.outcomes[since:]]
    names = [name for name, _ in told]
    assert names[0] == 'ABORTED', told
    assert 'SUCCESS' in names[1:], told


@pytest.mark.matrix(18, 19)
@pytest.mark.parametrize('name', ['perception_node', 'policy_node', 'execution_node'])
def test_arm_decelerates_and_holds_and_the_next_episode_succeeds(graph, name):
    since = len(graph.outcomes)
    graph.started_s = None
    future = graph.run(3, seed=1000)
    before, _ = kill_in_motion(graph, name)
    graph.verdicts.clear()
    graph.spin(1.2)
    ticks = [entry for entry in graph.verdicts if entry[1] in (GuardState.ARMED, GuardState.HOLD)]
    sent = np.array([entry[2] for entry in ticks])
    assert len(sent) > 5, 'the guard fell silent'
    # No jump: from one tick to the next no joint is sent further than its speed allows.
    limits = PANDA.limit_array('max_velocity')
    assert np.all(np.abs(np.diff(sent, axis=0)) <= limits * 0.03 + 1e-6)
    graph.spin_until(lambda: len(graph.outcomes) > since, 20.0)
    # Between death and end the arm came to rest; after it, it is moved to the next start.
    ended_ns = convert.to_ns(graph.outcomes[since].header.stamp)
    held = (GuardState.ARMED, GuardState.HOLD)
    last = [entry for entry in graph.verdicts if entry[1] in held and entry[0] <= ended_ns][-1]
    assert np.abs(last[3][:7]).max() < 0.02
    finish(graph, future, before, name)
    check_outcomes(graph, since)


def test_learner_is_missed_by_nobody(graph):
    graph.started_s = None
    future = graph.run(3, seed=1000)
    before, _ = kill_in_motion(graph, 'learner_node')
    result = finish(graph, future, before, 'learner_node')
    assert (result.aborted, result.successes) in ((0, 3), (0, 2))


@pytest.mark.matrix(32)
def test_without_predict_node_the_arm_waits_before_the_next_unknown_row_and_then_goes_on(graph):
    since = len(graph.outcomes)
    graph.started_s = None
    future = graph.run(3, seed=1000)
    before, _ = kill_in_motion(graph, 'predict_node')
    graph.verdicts.clear()
    graph.spin(1.2)
    sent = np.array([entry[2] for entry in graph.verdicts])
    limits = PANDA.limit_array('max_velocity')
    assert np.all(np.abs(np.diff(sent, axis=0)) <= limits * 0.03 + 1e-6)
    result = finish(graph, future, before, 'predict_node')
    told = [(EpisodeOutcome(msg.outcome).name, msg.reason) for msg in graph.outcomes[since:]]
    assert (result.aborted, result.successes) in ((0, 3), (0, 2)), told


def test_watchdog_stops_the_driver_of_a_dead_guard_which_comes_back_disarmed(graph):
    since = len(graph.outcomes)
    graph.started_s = None
    future = graph.run(3, seed=1000)
    before, killed_s = kill_in_motion(graph, 'guard_node')
    graph.stopped.clear()
    graph.spin_until(lambda: True in graph.stopped, 2.0)
    assert time.monotonic() - killed_s < 1.0
    finish(graph, future, before, 'guard_node')
    check_outcomes(graph, since)
    # By what it printed: of a latched topic a watcher gets the newest state only.
    again = next(i for i, line in enumerate(graph.lines) if 'guard_node is started again' in line)
    said = [line.strip() for line in graph.lines[again:] if line.startswith('[guard_node]')]
    assert said[0].endswith('DISARMED')
    assert 'arm by task_node' in said[1]


def test_death_of_the_simulator_is_said(graph):
    since = len(graph.outcomes)
    graph.started_s = None
    future = graph.run(3, seed=1000)
    before, _ = kill_in_motion(graph, 'sim_node')
    finish(graph, future, before, 'sim_node')
    check_outcomes(graph, since)
    assert 'sim' in graph.outcomes[since].reason


def test_everything_ends_when_the_watchdog_does(parameters):
    with own_domain() as domain:
        graph = Graph(domain, parameters)
        graph.spin_until(lambda: set(graph.pids()) == set(NODES), 30.0)
        graph.spin_until(graph.client.server_is_ready, 60.0)
        pids = graph.pids()
        os.kill(pids['watchdog_node'], signal.SIGKILL)
        assert graph.process.wait(20.0) == 1
        assert not any(psutil.pid_exists(pid) for pid in pids.values())
        graph.executor.shutdown()
        rclpy.shutdown(context=graph.context)
