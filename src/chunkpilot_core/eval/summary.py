"""From episodes to the figures that are compared: one row a strategy, paired with the first."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
import math
import re
from typing import Any

from chunkpilot_core.eval.loop import EpisodeResult
from chunkpilot_core.eval.statistics import paired_difference, paired_ratio, wilson


def summarise(results: Mapping[str, Sequence[EpisodeResult]], seed: int) -> list[dict[str, Any]]:
    """
    Return one dictionary of plain numbers per strategy; shares are fractions, intervals 95 %.

    :param results: by label, the same seeds in the same order; the first is the reference
    :param seed: of the bootstrap
    """
    labels = list(results)
    reference = results[labels[0]]
    return [_row(label, results[label], reference, seed) for label in labels]


def _row(
    label: str, episodes: Sequence[EpisodeResult], reference: Sequence[EpisodeResult], seed: int
) -> dict[str, Any]:
    wins = [episode.success for episode in episodes]
    calls = [episode.policy_calls for episode in episodes]
    row: dict[str, Any] = {
        'strategy': label,
        'episodes': len(episodes),
        'success': wilson(sum(wins), len(wins)).as_dict(),
        'calls_per_episode': mean(calls),
        **_motion(episodes),
        **_counts(episodes),
    }
    if episodes is not reference:
        row['success_difference'] = paired_difference(
            [episode.success for episode in reference], wins
        ).as_dict()
        if sum(calls):
            row['calls_ratio'] = paired_ratio(
                [episode.policy_calls for episode in reference], calls, seed
            ).as_dict()
    return row


def _motion(episodes: Sequence[EpisodeResult]) -> dict[str, float]:
    ticks = sum(episode.ticks for episode in episodes)
    starved = sum(episode.starved_ticks for episode in episodes)
    calls = sum(episode.policy_calls for episode in episodes)
    executed = sum(episode.executed_rows for episode in episodes)
    chunks = sum(episode.chunks_accepted for episode in episodes)
    base = mean([episode.base_horizon for episode in episodes])
    return {
        'mean_horizon': mean([episode.mean_horizon for episode in episodes]),
        'calls_saved_ratio': executed / (base * calls) if base and calls else math.nan,
        'cut_pct': 100 * sum(episode.cuts for episode in episodes) / chunks
        if chunks
        else math.nan,
        'starved_pct': 100 * starved / ticks if ticks else math.nan,
        'peak_jerk': mean([episode.peak_jerk for episode in episodes]),
        'rms_jerk': mean([episode.rms_jerk for episode in episodes]),
        'largest_merge_step': max(episode.largest_merge_step for episode in episodes),
        'duration_s': mean([episode.duration_s for episode in episodes]),
        'observation_age_p50_s': mean([episode.observation_age_p50_s for episode in episodes]),
        'observation_age_p99_s': mean([episode.observation_age_p99_s for episode in episodes]),
        'first_action_s': mean([episode.first_action_s for episode in episodes]),
    }


def _counts(episodes: Sequence[EpisodeResult]) -> dict[str, Any]:
    reactions: Counter[str] = Counter()
    interrupts = Counter(
        re.sub(r' [-.0-9]+( cm| rad)?', '', reason)
        for episode in episodes
        for reason in episode.interrupts
    )
    for episode in episodes:
        reactions.update(episode.reactions)
    ticks = sum(reactions.values())
    counted = (
        'executed_rows',
        'discarded_rows',
        'late_rows',
        'starved_ticks',
        'chunks_rejected',
        'unanswered',
        'cuts',
        'merges',
    )
    return {
        **{name: sum(getattr(episode, name) for episode in episodes) for name in counted},
        'interrupts': dict(sorted(interrupts.items())),
        'guard': dict(sorted(reactions.items())),
        'guard_pass_pct': 100 * reactions['PASS'] / ticks if ticks else math.nan,
    }


def mean(values: Sequence[float]) -> float:
    """Return the mean of the values that are numbers; NaN for none."""
    known = [value for value in values if not math.isnan(value)]
    return sum(known) / len(known) if known else math.nan


def plain(value: Any) -> Any:
    """Return a value for JSON: NaN and infinity, which JSON lacks, become null."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, EpisodeResult):
        return plain(asdict(value))
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value
