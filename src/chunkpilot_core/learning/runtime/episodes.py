"""
From the topics of a running robot to whole episodes: what was seen, what was really sent.

Messages are joined by id and stamp, never by the order of arrival; duplicates are dropped.
"""

from collections.abc import Hashable
from dataclasses import dataclass, field

from chunkpilot_core import spaces
from chunkpilot_core.errors import InvalidDataError
from chunkpilot_core.kinematics import Kinematics
from chunkpilot_core.robot import Robot
from chunkpilot_core.types import (
    ActionChunk,
    EpisodeOutcome,
    ExecutedRows,
    F32,
    F64,
    JointState,
    nanoseconds,
    Observation,
    PolicySpec,
    RowSource,
)
import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Episode:
    """
    N observations and M rows of one episode, each in order of time.

    ``inputs`` (N, I) are the policy's inputs at ``input_ns`` (N,), NaN where unknown. Row i was
    sent during (``starts_ns``[i], ``ends_ns``[i]] and had reached ``targets`` (M, T) at its end;
    ``sources`` (M,) tells whose it was.
    """

    id: str
    task_id: str
    outcome: EpisodeOutcome
    inputs: F32
    input_ns: NDArray[np.int64]
    targets: F64
    starts_ns: NDArray[np.int64]
    ends_ns: NDArray[np.int64]
    sources: NDArray[np.uint8]
    policy_versions: tuple[int, ...] = ()
    policy_calls: int = 0
    duplicates: int = 0

    @property
    def success(self) -> bool:
        """Whether the task was done."""
        return self.outcome is EpisodeOutcome.SUCCESS


@dataclass(slots=True)
class _Open:
    """An episode that is still being collected."""

    id: str
    start_ns: int
    end_ns: int | None = None
    ended_at_ns: int | None = None
    task_id: str = ''
    outcome: EpisodeOutcome | None = None
    observations: dict[int, F32] = field(default_factory=dict)
    rows: dict[int, tuple[int, F64, RowSource]] = field(default_factory=dict)
    versions: set[int] = field(default_factory=set)
    calls: int = 0
    duplicates: int = 0
    seen: set[Hashable] = field(default_factory=set)


class EpisodeAssembler:
    """
    Joins observations, chunks, executed rows and outcomes into episodes.

    An episode is complete when its end and outcome are known and ``grace_ns`` have passed, so
    that rows which were still on their way are in it. One that never gets an outcome is UNKNOWN.
    """

    def __init__(
        self,
        robot: Robot,
        spec: PolicySpec,
        grace_ns: int = 500_000_000,
        max_messages: int = 100_000,
    ) -> None:
        self._spec = spec
        self._kinematics = Kinematics(robot)
        self._grace_ns = grace_ns
        self._max_messages = max_messages
        self._open: dict[str, _Open] = {}
        self._done: set[str] = set()

    @property
    def running(self) -> str:
        """Id of the episode in progress, '' for none."""
        return next((item.id for item in self._open.values() if item.end_ns is None), '')

    def start(self, episode_id: str, task_id: str, stamp_ns: int) -> None:
        """Begin an episode; one that is still running ends, its END was lost."""
        if episode_id in self._open or episode_id in self._done:
            return
        for item in self._open.values():
            if item.end_ns is None:
                item.end_ns = item.ended_at_ns = stamp_ns
        self._open[episode_id] = _Open(episode_id, stamp_ns, task_id=task_id)

    def end(self, episode_id: str, stamp_ns: int) -> None:
        """End an episode; unknown ids (from before this process) are ignored."""
        item = self._open.get(episode_id)
        if item is not None and item.end_ns is None:
            item.end_ns = item.ended_at_ns = stamp_ns

    def outcome(self, episode_id: str, outcome: EpisodeOutcome) -> None:
        """Note how an episode ended; may come before or after its end."""
        item = self._open.get(episode_id)
        if item is not None:
            item.outcome = outcome

    def observation(self, observation: Observation) -> None:
        """
        Keep the policy's inputs of an observation.

        :raises UnknownNameError: the observation lacks an input of the policy
        """
        values = observation.vector(self._spec.input_names)
        for item in self._at(observation.stamp_ns):
            if self._new(item, ('observation', observation.id)):
                item.observations[observation.stamp_ns] = values

    def chunk(self, chunk: ActionChunk) -> None:
        """Count a prediction and note the version behind it."""
        for item in self._at(chunk.stamp_ns or chunk.observation_stamp_ns):
            if self._new(item, ('chunk', chunk.id)):
                item.versions.add(chunk.policy_version)
                item.calls += 1

    def executed(self, rows: ExecutedRows) -> None:
        """
        Keep rows as they were sent.

        :raises InvalidDataError: rows of another action space, or joints that are missing
        """
        if rows.space_hash and rows.space_hash != self._spec.space.hash:
            raise InvalidDataError(
                f'executed rows of action space {rows.space_hash!r}, '
                f'the learner has {self._spec.space.hash!r}'
            )
        dt_ns = nanoseconds(rows.dt_s)
        for i, end_ns in enumerate(rows.stamps_ns):
            for item in self._at(end_ns - dt_ns):
                if rows.episode_id in ('', item.id) and self._new(item, ('row', rows.id, i)):
                    target = self._target(rows.joint_names, rows.joints[i], end_ns)
                    item.rows[end_ns] = (end_ns - dt_ns, target, rows.sources[i])

    def finished(self, now_ns: int) -> list[Episode]:
        """Return the episodes that are complete by ``now_ns``, once each."""
        ready = [item for item in self._open.values() if self._complete(item, now_ns)]
        for item in ready:
            del self._open[item.id]
            self._done.add(item.id)
        return [self._freeze(item) for item in ready]

    def _complete(self, item: _Open, now_ns: int) -> bool:
        if item.ended_at_ns is None:
            return False
        waited = now_ns - item.ended_at_ns
        patience = self._grace_ns if item.outcome is not None else 10 * self._grace_ns
        return waited >= patience

    def _at(self, stamp_ns: int) -> list[_Open]:
        return [
            item
            for item in self._open.values()
            if item.start_ns <= stamp_ns and (item.end_ns is None or stamp_ns <= item.end_ns)
        ]

    def _new(self, item: _Open, key: Hashable) -> bool:
        if key in item.seen:
            item.duplicates += 1
            return False
        if len(item.seen) >= self._max_messages:  # an episode that nobody ends
            return False
        item.seen.add(key)
        return True

    def _target(self, names: tuple[str, ...], joints: F64, stamp_ns: int) -> F64:
        state = JointState(stamp_ns, names, joints, np.zeros_like(joints))
        return spaces.from_joints(self._spec.space, self._kinematics, state)

    def _freeze(self, item: _Open) -> Episode:
        spec = self._spec
        seen = sorted(item.observations)
        ends = sorted(item.rows)
        inputs = [item.observations[stamp] for stamp in seen]
        targets = [item.rows[end][1] for end in ends]
        return Episode(
            item.id,
            item.task_id,
            item.outcome or EpisodeOutcome.UNKNOWN,
            np.array(inputs, np.float32).reshape(len(seen), len(spec.input_names)),
            np.array(seen, np.int64),
            np.array(targets, np.float64).reshape(len(ends), spec.space.target_size),
            np.array([item.rows[end][0] for end in ends], np.int64),
            np.array(ends, np.int64),
            np.array([item.rows[end][2] for end in ends], np.uint8),
            tuple(sorted(item.versions)),
            item.calls,
            item.duplicates,
        )
