"""What is known of the other nodes of the graph: newest state, when it came, which session."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from chunkpilot_core.types import ArmState, ExecutionStats, F64, GuardStatus, seconds


@dataclass(slots=True)
class Heard:
    """When something was last heard from a node (steady clock), and in which session."""

    steady_ns: int
    session: int


@dataclass(slots=True)
class World:
    """Everything that decides how an episode goes on; filled by whoever hears it."""

    guard: GuardStatus | None = None
    success: bool = False
    scene_ns: int = 0
    joints: Mapping[str, float] = field(default_factory=dict)
    policy_ready: bool = False
    policy_state: str = 'not heard of'
    policy_task: str = ''
    doubted_ns: int = 0
    unanswered: int = 0
    driver_stopped: bool = False
    observed_task: str = ''
    observation_bad: str = 'no observation yet'
    heard: dict[str, Heard] = field(default_factory=dict)
    _stats: ExecutionStats | None = None

    def count_stats(self, stats: ExecutionStats) -> None:
        """
        Note statistics of the execution, which come once a second.

        A policy has no heartbeat: that it is dead shows in rows that run out with no new chunk.
        """
        last, self._stats = self._stats, stats
        if last is None or last.episode_id != stats.episode_id:
            self.unanswered = 0
        elif stats.starved_ticks > last.starved_ticks and (
            stats.chunks_accepted == last.chunks_accepted
        ):
            self.unanswered += 1
        elif stats.chunks_accepted != last.chunks_accepted:
            self.unanswered = 0

    def stats_of(self, episode_id: str) -> ExecutionStats | None:
        """Return the newest statistics of an episode, None where the newest are of another."""
        stats = self._stats
        return stats if stats is not None and stats.episode_id == episode_id else None

    def doubt_policy(self, steady_ns: int) -> None:
        """Take the policy for dead until it announces itself anew."""
        self.policy_ready, self.policy_state = False, 'does not answer'
        self.doubted_ns, self.unanswered = steady_ns, 0

    def hear(self, node: str, session: int, steady_ns: int) -> None:
        """Note a sign of life."""
        self.heard[node] = Heard(steady_ns, session)

    def sessions(self) -> dict[str, int]:
        """Return the session of every node heard of."""
        return {node: entry.session for node, entry in self.heard.items()}

    def silent_s(self, node: str, steady_ns: int) -> float:
        """Return for how long a node has been silent [s]; infinite where it was never heard."""
        entry = self.heard.get(node)
        return seconds(steady_ns - entry.steady_ns) if entry else float('inf')

    @property
    def state(self) -> ArmState | None:
        """The guard's state, None before it is known."""
        return self.guard.state if self.guard else None

    def away_from(self, names: tuple[str, ...], positions: F64 | tuple[float, ...]) -> float:
        """Return the largest distance of a joint from a position [rad]; infinite if unknown."""
        if not all(name in self.joints for name in names):
            return float('inf')
        pairs = zip(names, positions, strict=True)
        return max(abs(self.joints[name] - float(position)) for name, position in pairs)
