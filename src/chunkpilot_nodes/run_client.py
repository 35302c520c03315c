"""
Asks the graph for episodes and shows how they go; run as one more process of a graph, whose end is
the end of the run.
"""

import argparse
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
import json
from pathlib import Path
import signal
import sys
import time

from chunkpilot.action import RunTask
from chunkpilot.msg import Outcome
from chunkpilot_core.errors import BagError
from chunkpilot_core.files import write_json
from chunkpilot_core.runs.episodes import NO_RECORDER
from chunkpilot_core.types import EpisodeOutcome
from chunkpilot_nodes import convert, qos
import rclpy
from rclpy.action import ActionClient
from rclpy.node import Node
from rclpy.signals import SignalHandlerOptions

SERVER_TIMEOUT_S = 90.0
RECORDER_TRIES = 10
"""A second apart: the task node may discover the recorder later than this process does."""
LAST_BAG_S = 10.0
"""[s] So long the newest bag may take to be complete after the last episode."""


class RunClient(Node):
    """One goal of ``run_task``, and a line for every episode."""

    def __init__(self, episodes: int) -> None:
        super().__init__('run_client')
        self.client = ActionClient(self, RunTask, 'run_task')
        self.last = ''
        self._episodes, self._done, self._successes = episodes, 0, 0
        self._started: float | None = None
        self.create_subscription(Outcome, 'outcome', self._on_outcome, qos.LATCHED)

    def _on_outcome(self, msg: Outcome) -> None:
        if msg.episode_id == self.last:
            return
        self.last = msg.episode_id
        outcome = convert.member(EpisodeOutcome, msg.outcome)
        self._done += 1
        self._successes += outcome is EpisodeOutcome.SUCCESS
        now = time.monotonic()
        self._started = self._started or now
        left = ''
        if self._done > 1:
            pace_s = (now - self._started) / (self._done - 1)
            left = f', {pace_s * (self._episodes - self._done):.0f} s left'
        why = '' if outcome is EpisodeOutcome.SUCCESS else f' ({msg.reason})'
        print(
            f'{self._done}/{self._episodes} {outcome.name.lower()}{why} after '
            f'{msg.duration_s:.1f} s; {self._successes} successes{left}',
            flush=True,
        )


def await_server(node: Node, client: ActionClient, stopping: list[int]) -> str:
    """Wait for the task node; returns why it is not there, '' once it is."""
    deadline = time.monotonic() + SERVER_TIMEOUT_S
    while not client.server_is_ready():
        rclpy.spin_once(node, timeout_sec=0.1)
        if stopping or time.monotonic() > deadline:
            return f'no task node within {SERVER_TIMEOUT_S:g} s'
    return ''


def ask(
    node: Node,
    client: ActionClient,
    goal: RunTask.Goal,
    stopping: list[int],
    between: Callable[[], None] = lambda: None,
) -> tuple[str, str]:
    """
    Run one goal of ``run_task``.

    :param stopping: not empty as soon as somebody wants the end
    :param between: called again and again meanwhile
    :returns: why it failed, '' for not at all, and its summary as JSON, '' where there is none
    """
    sent = client.send_goal_async(goal)
    while not sent.done() and not stopping:
        rclpy.spin_once(node, timeout_sec=0.1)
    handle = sent.result() if sent.done() else None
    if handle is None or not handle.accepted:
        return 'the task node refused the goal; its log says why', ''
    finished = handle.get_result_async()
    while not finished.done() and not stopping:
        rclpy.spin_once(node, timeout_sec=0.1)
        between()
    if not finished.done():
        handle.cancel_goal_async()
        rclpy.spin_once(node, timeout_sec=0.5)
        return 'stopped', ''
    result = finished.result().result
    return ('' if result.success else result.message), result.summary_json


@contextmanager
def interruptible() -> Iterator[list[int]]:
    """Run rclpy without its signal handlers; gives the list that signals are put into."""
    stopping: list[int] = []
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda received, _frame: stopping.append(received))
    rclpy.init(args=[], signal_handler_options=SignalHandlerOptions.NO)
    try:
        yield stopping
    finally:
        rclpy.try_shutdown()


def run(node: RunClient, args: argparse.Namespace, stopping: list[int]) -> tuple[str, str]:
    """
    Run the episodes; see :func:`ask`.

    :raises BagError: the bag of the last one is not completed
    """
    missing = await_server(node, node.client, stopping)
    if missing:
        return missing, ''
    goal = RunTask.Goal(
        task_kind=args.task,
        episodes=args.episodes,
        seed=args.seed,
        timeout_s=float(args.timeout),
        record=bool(args.bags),
    )
    for attempt in range(RECORDER_TRIES):
        if attempt:
            time.sleep(1.0)
        error, summary = ask(node, node.client, goal, stopping)
        if not error.startswith(NO_RECORDER) or stopping:
            break
    if node.last:
        await_bag(args.bags, node.last, stopping)
    return error, summary


def await_bag(folder: Path | None, episode_id: str, stopping: list[int]) -> None:
    """
    Wait until the bag of the last episode is complete.

    :raises BagError: it does not come
    """
    deadline = time.monotonic() + LAST_BAG_S
    while folder is not None and not stopping:
        if any(folder.glob(f'{episode_id}*/metadata.yaml')):
            return
        if time.monotonic() > deadline:
            raise BagError(f'{folder}: no complete bag of {episode_id}; the recorder says why')
        time.sleep(0.1)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the client; exit code 0 when the run went through."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--task', required=True)
    parser.add_argument('--episodes', type=int, required=True)
    parser.add_argument('--seed', type=int, required=True)
    parser.add_argument('--timeout', type=float, default=0.0)
    parser.add_argument('--bags', type=Path, help='where the recorder writes to')
    parser.add_argument('--result', type=Path, required=True)
    args = parser.parse_args(argv)
    with interruptible() as stopping:
        node = RunClient(args.episodes)
        try:
            error, summary = run(node, args, stopping)
            if summary:
                write_json(args.result, json.loads(summary))
        except BagError as failure:
            error = str(failure)
        finally:
            node.destroy_node()
    if error:
        print(f'run: {error}', file=sys.stderr, flush=True)
    return 1 if error else 0


if __name__ == '__main__':
    sys.exit(main())
