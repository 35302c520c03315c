"""What came of a run, as the numbers of ``summary.json``."""

from collections.abc import Mapping
from dataclasses import dataclass, field
import math
import os
from typing import Any

from chunkpilot_core.runs.episodes import Finish
from chunkpilot_core.types import EpisodeOutcome, ExecutionStats, HorizonDecision, Reaction
import numpy as np

LINE = (  # statistics that are kept of every episode
    'policy_calls',
    'executed_rows',
    'discarded_rows',
    'late_rows',
    'mean_horizon',
    'calls_saved_ratio',
    'ticks',
    'starved_ticks',
    'late_ticks',
    'chunks_accepted',
    'chunks_rejected',
    'timeouts',
    'cuts',
    'merges',
    'largest_merge_step',
    'delay_p50_s',
    'delay_p95_s',
    'first_action_s',
    'observation_age_p50_s',
    'observation_age_p99_s',
)


@dataclass
class Tally:
    """Collects numbers while a run goes on; :meth:`summary` adds them up."""

    stats: dict[str, ExecutionStats] = field(default_factory=dict)
    latencies_s: list[float] = field(default_factory=list)
    finished: list[Finish] = field(default_factory=list)
    cpu: list[tuple[float, float]] = field(default_factory=list)
    interrupts: dict[str, list[str]] = field(default_factory=dict)
    _counters: dict[int, tuple[tuple[int, ...], tuple[int, ...]]] = field(default_factory=dict)
    _commands: int = -1

    def add_stats(self, stats: ExecutionStats) -> None:
        """Take the newest counters of an episode."""
        if stats.episode_id:
            self.stats[stats.episode_id] = stats

    def add_decision(self, episode_id: str, decision: HorizonDecision) -> None:
        """Take a decision of an episode that runs; the reason of a cut is kept."""
        if decision.cut:
            self.interrupts.setdefault(episode_id, []).append(decision.reason)

    def add_latency(self, commands: int, latency_s: float) -> None:
        """Take the latency of the newest command, once per command."""
        if commands != self._commands and math.isfinite(latency_s):
            self.latencies_s.append(latency_s)
        self._commands = commands

    def add_counters(self, session: int, counters: tuple[int, ...]) -> None:
        """Take the guard's ticks by reaction, which count from its start."""
        first = self._counters.get(session, (counters, counters))[0]
        self._counters[session] = (first, counters)

    def add_cpu(self, ours: float, foreign: float) -> None:
        """Take a sample of the load in cores."""
        self.cpu.append((ours, foreign))

    def summary(self, **known: Any) -> dict[str, Any]:
        """
        Return the summary.

        :param known: entries that the caller knows, such as versions
        """
        stats = [
            self.stats[end.episode_id] for end in self.finished if end.episode_id in self.stats
        ]
        calls = sum(entry.policy_calls for entry in stats)
        rows = sum(entry.executed_rows for entry in stats)
        ticks = sum(entry.ticks for entry in stats)
        planned = sum(entry.base_horizon * entry.policy_calls for entry in stats)
        wins = self._count(EpisodeOutcome.SUCCESS)
        return {
            'episodes': len(self.finished),
            'success': _ratio(wins, len(self.finished)),
            'successes': wins,
            'aborted': self._count(EpisodeOutcome.ABORTED),
            'policy_calls_per_episode': _ratio(calls, len(stats)),
            'calls_saved_ratio': _ratio(rows, planned),
            'executed_rows': rows,
            'discarded_rows': sum(entry.discarded_rows for entry in stats),
            'late_rows': sum(entry.late_rows for entry in stats),
            'cuts': sum(entry.cuts for entry in stats),
            'chunks_rejected': sum(entry.chunks_rejected for entry in stats),
            'starved_pct': _percent(sum(entry.starved_ticks for entry in stats), ticks),
            'ticks': ticks,
            'deadline_miss_pct': _percent(sum(entry.late_ticks for entry in stats), ticks),
            'worst_lateness_ms': 1e3
            * max((entry.worst_lateness_s for entry in stats), default=0.0),
            'command_latency_ms': _quantiles(self.latencies_s),
            'observation_age_ms': {
                'p50': _mean([1e3 * entry.observation_age_p50_s for entry in stats]),
                'p99': _mean([1e3 * entry.observation_age_p99_s for entry in stats]),
            },
            'inference_delay_ms': {
                'p50': _mean([1e3 * entry.delay_p50_s for entry in stats]),
                'p95': _mean([1e3 * entry.delay_p95_s for entry in stats]),
            },
            'guard': self._reactions(),
            'cpu_cores': {
                'ours': _mean([ours for ours, _ in self.cpu]),
                'foreign': _mean([foreign for _, foreign in self.cpu]),
                'available': os.cpu_count(),
            },
            'seeds': [end.seed for end in self.finished],
            'per_episode': [self._line(end) for end in self.finished],
            **known,
        }

    def _count(self, outcome: EpisodeOutcome) -> int:
        return sum(end.outcome is outcome for end in self.finished)

    def _reactions(self) -> dict[str, int]:
        """Return the guard's ticks within the run by reaction."""
        total = np.zeros(len(Reaction), int)
        for first, last in self._counters.values():
            total += np.subtract(last, first)
        return {reaction.name.lower(): int(total[reaction]) for reaction in Reaction}

    def _line(self, end: Finish) -> dict[str, Any]:
        stats = self.stats.get(end.episode_id)
        numbers: Mapping[str, Any] = {}
        if stats:
            numbers = {
                name: _finite(value) if isinstance(value := getattr(stats, name), float) else value
                for name in LINE
            }
            numbers = {**numbers, 'interrupts': self.interrupts.get(end.episode_id, [])}
        return {
            'episode_id': end.episode_id,
            'seed': end.seed,
            'outcome': end.outcome.name.lower(),
            'reason': end.reason,
            'duration_s': round(end.duration_s, 3),
            **numbers,
        }


def _quantiles(values_s: list[float]) -> dict[str, float | None]:
    if not values_s:
        return {'p50': None, 'p99': None, 'max': None}
    p50, p99, top = np.quantile(np.array(values_s) * 1e3, (0.5, 0.99, 1.0))
    return {'p50': round(float(p50), 3), 'p99': round(float(p99), 3), 'max': round(float(top), 3)}


def _mean(values: list[float]) -> float | None:
    finite = [value for value in values if math.isfinite(value)]
    return round(sum(finite) / len(finite), 3) if finite else None


def _ratio(part: float, whole: float) -> float | None:
    return round(part / whole, 4) if whole else None


def _percent(part: float, whole: float) -> float | None:
    return round(100.0 * part / whole, 4) if whole else None


def _finite(value: float) -> float | None:
    return round(value, 3) if math.isfinite(value) else None
