"""
Learns from what the robot really did and announces better weights; loads nothing anywhere.

Its updates run in one niced thread, so the control loop's processes never wait for it, and it
waits for nobody: whatever arrives is joined by stamps, whatever does not is missing.
"""

from collections.abc import Callable
from dataclasses import dataclass
import os
import queue
import threading
import time
from typing import Any

from chunkpilot.msg import (
    ActionChunk,
    EpisodeEvent,
    ExecutedRows,
    LearnerStatus,
    Observation,
    Outcome,
    PolicyVersion,
)
from chunkpilot_core import registry, types
from chunkpilot_core import robot as robots
from chunkpilot_core.config import option
from chunkpilot_core.errors import ChunkpilotError
from chunkpilot_core.learning.runtime.episodes import EpisodeAssembler
from chunkpilot_core.learning.runtime.trainer import Trainer, TrainerConfig
from chunkpilot_core.learning.runtime.versions import VersionStore
from chunkpilot_nodes import convert, params, qos, spin
from diagnostic_msgs.msg import DiagnosticStatus
import torch

NICENESS = 10


@dataclass(frozen=True)
class LearnerConfig:
    """What is learned, from which policy on, and where it is kept."""

    robot: str = option('panda', 'robot: file, or name in config/robots')
    policy: str = option(
        'mlp_pick_and_place', 'first version: checkpoint folder, or name in config/policies'
    )
    learner: str = option('behaviour_cloning', 'plug-in of the family learning')
    versions: str = option('runs/versions', 'folder of the versions, one sub-folder a policy')
    grace_s: float = option(
        0.5, 'time after an episode in which its rows may still arrive', unit='s', min=0, max=60
    )


class LearnerNode(spin.SupervisedNode):
    """Collects episodes, updates a copy of the policy, announces versions."""

    def __init__(self) -> None:
        super().__init__('learner_node')
        self.declare_parameter('nice', NICENESS)  # the default of this node; spin.py applies it
        torch.set_num_threads(1)
        config = params.declare(self, LearnerConfig)
        self._trainer, self._assembler = self._build(config)
        self._name = config.learner
        self._refused = 0
        self._error = ''
        self._seen_version = 0
        self._swap_ns = self.now_ns()
        self._rate = _Rate()
        self._released: queue.SimpleQueue[types.PolicyVersion] = queue.SimpleQueue()
        self._stop = threading.Event()
        self._connect()
        newest = self._trainer.store.newest
        self._announce(newest)
        self._thread = threading.Thread(target=self._train, name='updates', daemon=True)
        self._thread.start()
        self.get_logger().info(
            f'{config.learner} on {newest.policy} version {newest.version} from {newest.path}'
        )

    def _build(self, config: LearnerConfig) -> tuple[Trainer, EpisodeAssembler]:
        plugin = registry.get('learning', config.learner)
        options = params.declare(self, plugin.Config, f'{config.learner}.')
        store = VersionStore(config.versions, config.policy)
        for name, reason in store.damaged.items():
            self.get_logger().warning(f'version {name} is not used: {reason}')
        trainer = Trainer(
            plugin(options, store.policy), store, params.declare(self, TrainerConfig)
        )
        robot = robots.load(config.robot)
        grace_ns = types.nanoseconds(config.grace_s)
        return trainer, EpisodeAssembler(robot, store.base.spec, grace_ns)

    def _connect(self) -> None:
        for kind, topic, callback, profile in (
            (Observation, 'observation', self._on_observation, qos.RELIABLE_10),
            (ActionChunk, 'chunk', self._on_chunk, qos.RELIABLE_10),
            (ExecutedRows, 'executed_rows', self._on_rows, qos.ROWS),
            (EpisodeEvent, 'episode', self._on_episode, qos.LATCHED),
            (Outcome, 'outcome', self._on_outcome, qos.LATCHED),
        ):
            self.create_subscription(kind, topic, self._checked(callback), profile)
        self._version_publisher = self.create_publisher(
            PolicyVersion, 'policy/version', qos.LATCHED
        )
        self._status_publisher = self.create_publisher(
            LearnerStatus, 'learner/status', qos.RELIABLE_10
        )
        self.create_timer(0.2, self._collect)
        self.create_timer(1.0, self._report)

    def _checked(self, callback: Callable[[Any], None]) -> Callable[[Any], None]:
        """Drop messages that do not fit, and count them: a foreign sender is no fault of ours."""

        def handle(msg: Any) -> None:
            try:
                callback(msg)
            except ChunkpilotError as error:
                self._refused += 1
                self.get_logger().warning(f'refused: {error}', throttle_duration_sec=5.0)

        return handle

    def _on_observation(self, msg: Observation) -> None:
        if self._assembler.running:
            self._assembler.observation(convert.observation_from_msg(msg))

    def _on_chunk(self, msg: ActionChunk) -> None:
        if msg.policy_version != self._seen_version:
            self._seen_version, self._swap_ns = int(msg.policy_version), self.now_ns()
        self._assembler.chunk(convert.chunk_from_msg(msg))

    def _on_rows(self, msg: ExecutedRows) -> None:
        self._assembler.executed(convert.executed_rows_from_msg(msg))

    def _on_episode(self, msg: EpisodeEvent) -> None:
        stamp_ns = convert.to_ns(msg.header.stamp)
        if msg.event == EpisodeEvent.START:
            self._assembler.start(msg.episode_id, msg.task_id, stamp_ns)
        else:
            self._assembler.end(msg.episode_id, stamp_ns)

    def _on_outcome(self, msg: Outcome) -> None:
        self._assembler.outcome(msg.episode_id, convert.member(types.EpisodeOutcome, msg.outcome))

    def _collect(self) -> None:
        for episode in self._assembler.finished(self.now_ns()):
            self._trainer.add(episode)
            self.get_logger().info(
                f'episode {episode.id}: {episode.outcome.name}, {len(episode.ends_ns)} rows, '
                f'{len(episode.input_ns)} observations, {episode.policy_calls} chunks'
            )
        while not self._released.empty():
            version = self._released.get_nowait()
            word = 'accepted' if version.accepted else 'not accepted'
            self.get_logger().info(f'version {version.version} {word}: {version.reason}')
            self._announce(version)

    def _announce(self, version: types.PolicyVersion) -> None:
        self._version_publisher.publish(convert.policy_version_to_msg(version, self.now_ns()))

    def _train(self) -> None:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), self._niceness())
        while not self._stop.is_set():
            if self._trainer.idle:
                self._stop.wait(0.05)
                continue
            try:
                version = self._trainer.work()
                self._error = ''
            except Exception as error:  # a full disk, say: told in the status, tried again
                self._error = f'{type(error).__name__}: {error}'
                self.get_logger().error(self._error, throttle_duration_sec=5.0)
                self._stop.wait(1.0)
            else:
                if version is not None:
                    self._released.put(version)

    def _niceness(self) -> int:
        wanted = int(self.get_parameter('nice').value)
        return max(wanted, os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))

    def _report(self) -> None:
        trainer = self._trainer
        success = trainer.success
        newest = trainer.store.newest
        state = 'collecting' if trainer.idle else 'updating'
        status = types.LearnerStatus(
            learner=self._name,
            state=f'error: {self._error}' if self._error else state,
            version=newest.version,
            parent=newest.parent,
            updates=trainer.updates,
            updates_per_s=self._rate(trainer.updates),
            episodes=trainer.episodes,
            rows=trainer.rows,
            buffer_rows=trainer.examples,
            success_estimate=success.value,
            success_low=success.low,
            success_high=success.high,
            since_swap_s=types.seconds(self.now_ns() - self._swap_ns),
            losses=trainer.losses,
        )
        self._status_publisher.publish(convert.learner_status_to_msg(status, self.now_ns()))

    def diagnose(self) -> tuple[bytes, str, dict[str, object]]:
        """Return counters; an error of the update thread is a warning, the robot goes on."""
        numbers: dict[str, object] = {
            'episodes': self._trainer.episodes,
            'updates': self._trainer.updates,
            'buffer_rows': self._trainer.examples,
            'version': self._trainer.store.newest.version,
            'refused': self._refused,
        }
        level = DiagnosticStatus.WARN if self._error else DiagnosticStatus.OK
        return level, self._error or 'running', numbers

    def shutdown(self) -> None:
        """End the update thread; a version that is being written is finished first."""
        self._stop.set()
        self._thread.join(timeout=5.0)


class _Rate:
    """Counts per second between two calls."""

    def __init__(self) -> None:
        self._last, self._at = 0, time.monotonic()

    def __call__(self, count: int) -> float:
        now = time.monotonic()
        rate = (count - self._last) / max(now - self._at, 1e-3)
        self._last, self._at = count, now
        return rate


def main() -> None:
    """Run the node."""
    spin.main(LearnerNode)


if __name__ == '__main__':
    main()
