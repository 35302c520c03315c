"""
Asks the graph for episodes, tells how they go, and keeps one of them for pictures.

Run by ``chunkpilot demo`` as one more process of the graph; its end is the end of the demo.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
import json
from pathlib import Path
import sys
import time
from typing import Any

from chunkpilot.action import RunTask
from chunkpilot.msg import (
    Command,
    EpisodeEvent,
    ExecutionStats,
    HorizonDecision,
    LearnerStatus,
    Outcome,
    SimScene,
)
from chunkpilot_core.files import write_json
from chunkpilot_core.runs.report import extended
from chunkpilot_core.runs.trace import EpisodeTrace
from chunkpilot_core.types import EpisodeOutcome, NS_PER_S
from chunkpilot_nodes import convert, qos, run_client
import rclpy
from rclpy.action import ActionClient
from rclpy.node import Node

LEARNER_TIMEOUT_S = 30.0
PATIENCE_S = 1.0
SCENE_NS = NS_PER_S // 25
TELLING = 0.3
"""Part of an episode run beyond the base horizon that makes it one to show."""


@dataclass
class Episode:
    """What is known so far of an episode that has no line yet; topics keep no common order."""

    seed: int
    start_ns: int
    trace: EpisodeTrace | None = None
    outcome: Outcome | None = None
    stats: ExecutionStats | None = None
    complete: bool = False
    ended_s: float | None = None


class DemoClient(Node):
    """One goal of ``run_task``."""

    def __init__(self) -> None:
        super().__init__('demo_client')
        self.client = ActionClient(self, RunTask, 'run_task')
        self.kept: EpisodeTrace | None = None
        self.learner_is_up = False
        self._telling = False
        self._running: Episode | None = None
        self._open: dict[str, Episode] = {}
        self._count = 0
        for kind, topic, callback, profile in (
            (EpisodeEvent, 'episode', self._on_episode, qos.LATCHED),
            (Outcome, 'outcome', self._on_outcome, qos.LATCHED),
            (ExecutionStats, 'execution_stats', self._on_stats, qos.RELIABLE_10),
            (LearnerStatus, 'learner/status', self._on_learner, qos.RELIABLE_10),
        ):
            self.create_subscription(kind, topic, callback, profile)
        # Only until one episode is kept: two messages per control tick are not free.
        self._costly = [
            self.create_subscription(kind, topic, callback, profile)
            for kind, topic, callback, profile in (
                (Command, 'command', self._on_command, qos.VERDICT),  # each one is drawn
                (SimScene, 'sim/scene', self._on_scene, qos.SENSOR),
                (HorizonDecision, 'horizon', self._on_horizon, qos.RELIABLE_10),
            )
        ]

    def _on_learner(self, msg: LearnerStatus) -> None:
        self.learner_is_up = True

    def _on_episode(self, msg: EpisodeEvent) -> None:
        if msg.event == EpisodeEvent.START:
            episode = Episode(int(msg.seed), convert.to_ns(msg.header.stamp))
            if not self._telling:
                episode.trace = EpisodeTrace(msg.episode_id, episode.seed)
            self._running = self._open[msg.episode_id] = episode
        elif msg.episode_id in self._open:
            self._open[msg.episode_id].ended_s = time.monotonic()
            self._running = None
            self.settle()

    def _on_outcome(self, msg: Outcome) -> None:
        if msg.episode_id in self._open:
            self._open[msg.episode_id].outcome = msg
            self.settle()

    def _on_stats(self, msg: ExecutionStats) -> None:
        episode = self._open.get(msg.episode_id)
        if episode is not None:
            episode.stats = msg
            episode.complete = episode.ended_s is not None  # the final ones come after the end
            self.settle()

    @property
    def busy(self) -> bool:
        """Whether an episode has no line yet."""
        return bool(self._open)

    def settle(self) -> None:
        """Print the lines of episodes of which all is known, or will not be known any more."""
        for name, episode in list(self._open.items()):
            if episode.ended_s is None or episode.outcome is None:
                continue
            if episode.complete or time.monotonic() - episode.ended_s > PATIENCE_S:
                del self._open[name]
                self._print(episode, episode.outcome)
                if episode.outcome.outcome == Outcome.SUCCESS:
                    self._keep(episode.trace)

    def _keep(self, trace: EpisodeTrace | None) -> None:
        """Keep a solved episode; one with many rows beyond the base horizon ends the search."""
        if self._telling or trace is None or not trace.scenes or not trace.times_s:
            return
        self.kept = trace
        beyond_s = sum(stop - start for start, stop in extended(trace))
        self._telling = beyond_s > TELLING * trace.times_s[-1]

    def keep_up(self) -> None:
        """Tell what is known, and stop listening to pictures once there are enough."""
        self.settle()
        if self._telling and self._costly:
            for subscription in self._costly:
                self.destroy_subscription(subscription)
            self._costly = []

    @property
    def _trace(self) -> EpisodeTrace | None:
        """Where the episode in progress is kept, if it is."""
        return self._running.trace if self._running else None

    def _on_command(self, msg: Command) -> None:
        trace, episode = self._trace, self._running
        if trace is None or episode is None:
            return
        values = tuple(value for group in msg.groups for value in group.values)
        trace.times_s.append((convert.to_ns(msg.header.stamp) - episode.start_ns) / NS_PER_S)
        trace.targets.append(values)
        trace.chunks.append(int(msg.chunk_id.seq))
        trace.rows.append(int(msg.row))
        trace.starved.append(bool(msg.starved))

    def _on_horizon(self, msg: HorizonDecision) -> None:
        if self._trace is not None:
            self._trace.bases[int(msg.chunk_id.seq)] = int(msg.base)

    def _on_scene(self, msg: SimScene) -> None:
        trace = self._trace
        if trace is None:
            return
        stamp_ns = convert.to_ns(msg.header.stamp)
        if not trace.scenes or stamp_ns - trace.scenes[-1].stamp_ns >= SCENE_NS:
            trace.scenes.append(convert.scene_from_msg(msg))

    def _print(self, episode: Episode, outcome: Outcome) -> None:
        self._count += 1
        name = EpisodeOutcome(outcome.outcome).name.lower()
        line = f'{self._count:3d}  seed {episode.seed:<6d} {name:8s} {outcome.duration_s:5.1f} s '
        if (stats := episode.stats) is not None:
            line += (
                f'{stats.policy_calls:4d} calls {stats.executed_rows:4d} rows  '
                f'mean horizon {stats.mean_horizon:4.1f}'
            )
        if outcome.outcome != Outcome.SUCCESS:
            line += f'  {outcome.reason}'
        print(line, flush=True)


def run(
    node: DemoClient, args: argparse.Namespace, stopping: list[int]
) -> tuple[str, dict[str, Any]]:
    """Run the episodes; returns what went wrong, and the summary."""
    missing = run_client.await_server(node, node.client, stopping)
    if missing:
        return missing, {}
    # Nobody needs the learner, but its start takes seconds of CPU from everybody.
    deadline = time.monotonic() + LEARNER_TIMEOUT_S
    while not (node.learner_is_up or stopping) and time.monotonic() < deadline:
        rclpy.spin_once(node, timeout_sec=0.1)
    goal = RunTask.Goal(
        task_kind=args.task,
        episodes=args.episodes,
        seed=args.seed,
        timeout_s=float(args.timeout),
    )
    error, summary = run_client.ask(node, node.client, goal, stopping, node.keep_up)
    deadline = time.monotonic() + 2.0
    while node.busy and not stopping and time.monotonic() < deadline:
        rclpy.spin_once(node, timeout_sec=0.1)
        node.settle()
    return error, json.loads(summary) if summary else {}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the client; exit code 0 when the run went through."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--task', default='pick_and_place')
    parser.add_argument('--episodes', type=int, default=20)
    parser.add_argument('--seed', type=int, default=1000)
    parser.add_argument('--timeout', type=float, default=0.0)
    parser.add_argument('--out', type=Path, required=True)
    args = parser.parse_args(argv)
    with run_client.interruptible() as stopping:
        node = DemoClient()
        try:
            error, summary = run(node, args, stopping)
            if summary:
                write_json(args.out / 'run.json', summary)
            if node.kept is not None:
                node.kept.save(args.out / 'episode.npz')
        finally:
            node.destroy_node()
    if error:
        print(f'demo: {error}', file=sys.stderr, flush=True)
    return 1 if error else 0


if __name__ == '__main__':
    sys.exit(main())
