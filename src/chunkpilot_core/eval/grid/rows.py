"""From the episodes of a grid to its figures: rows, choices, rank correlations."""

from collections.abc import Sequence
from dataclasses import asdict
from functools import lru_cache
from itertools import pairwise
import math
from typing import Any

from chunkpilot_core.eval.grid import plan as plans
from chunkpilot_core.eval.grid.plan import Cell, Group, Plan
from chunkpilot_core.eval.grid.store import Store
from chunkpilot_core.eval.loop import EpisodeResult
from chunkpilot_core.eval.overlaps import rank_correlation
from chunkpilot_core.eval.statistics import Estimate, paired_difference, paired_ratio, wilson
from chunkpilot_core.eval.summary import mean
from chunkpilot_core.policies.runtime import checkpoint

Row = dict[str, Any]


def summary(plan: Plan, store: Store) -> dict[str, Any]:
    """
    Return everything that is known of a plan; cells that lack episodes are left out.

    ``rows`` compare with ``fixed`` of the same task, policy, disturbance and latency on the same
    seeds: differences are theirs minus its, ratios its calls over theirs; ``base_h`` is its
    horizon. ``details`` holds more of the same rows in the same order.
    """
    rows: list[Row] = []
    details: list[Row] = []
    for group in plans.groups(plan):
        base = chosen(plan, store, group)
        if base is not None:
            found = _of_group(plan, store, group, base)
            rows += [row for row, _ in found]
            details += [detail for _, detail in found]
    return {
        'plan': asdict(plan),
        'weights_sha256': _weights(plan),
        'choices': _choices(plan, store),
        'overlaps': _overlaps(plan, store),
        'rows': rows,
        'details': details,
    }


def chosen(plan: Plan, store: Store, group: Group) -> int | None:
    """Return the reference's horizon, None where it is not known yet."""
    found = _choice(plan, store, group)
    return plans.choose(found) if found else None


def _choice(plan: Plan, store: Store, group: Group) -> dict[int, float]:
    """Return success by horizon on the seeds of the choice, empty where episodes are missing."""
    if not plans.found(plans.checkpoint_of(plan, group)):
        return {}
    results = {rows: store.results(one) for rows, one in plans.choice_cells(plan, group).items()}
    success = {}
    for rows, episodes in results.items():
        if episodes is None:
            return {}
        success[rows] = sum(episode.success for episode in episodes) / len(episodes)
    return success


def _choices(plan: Plan, store: Store) -> list[Row]:
    rows = []
    for group in plans.groups(plan):
        success = _choice(plan, store, group)
        if success and group.disturbance == plan.disturbances[0]:
            rows.append(
                {
                    'task': group.task,
                    'policy': group.policy,
                    'latency_s': group.latency_s,
                    'base_h': plans.choose(success),
                    'success': {str(horizon): share for horizon, share in success.items()},
                    'episodes': plan.choice_episodes,
                    'first_seed': plans.CHOICE_SEED,
                }
            )
    return rows


def _overlaps(plan: Plan, store: Store) -> list[Row]:
    rows = []
    for group in plans.groups(plan):
        base = chosen(plan, store, group)
        if base is None or not plans.measures_overlaps(plan, group):
            continue
        one = plans.overlap_cell(plan, group, base)
        pairs = store.pairs(one)
        if pairs:
            rows.append(
                {
                    'task': group.task,
                    'policy': group.policy,
                    'horizon': one.entry.options['horizon'],
                    'rows': len(pairs),
                    'rank_correlation': rank_correlation(*zip(*pairs, strict=True)),
                }
            )
    return rows


def _of_group(plan: Plan, store: Store, group: Group, base: int) -> list[tuple[Row, Row]]:
    cells = plans.cells(plan, group, base)
    found = {one.entry.label: store.results(one) for one in cells}
    known = {label: episodes for label, episodes in found.items() if episodes is not None}
    reference = known.get(plans.REFERENCE)
    if reference is None:
        return []
    curve = [reference, *(known[key] for key in known if key.startswith(f'{plans.REFERENCE}@'))]
    most = known.get(f'{plans.REFERENCE}@1', reference if base == 1 else None)
    return [
        (
            _row(one, known[one.entry.label], reference, base),
            _detail(one, known[one.entry.label], reference, curve, most),
        )
        for one in cells
        if one.entry.label in known
    ]


def _row(
    one: Cell, episodes: Sequence[EpisodeResult], reference: Sequence[EpisodeResult], base: int
) -> Row:
    group, wins = one.group, _wins(episodes)
    success = wilson(sum(wins), len(wins))
    return {
        'task': group.task,
        'policy': group.policy,
        'strategy': one.entry.label,
        'disturbance': group.disturbance,
        'base_h': base,
        'latency_s': group.latency_s,
        'episodes': len(episodes),
        'success': success.value,
        'success_ci': [success.low, success.high],
        'success_difference_ci': _interval(_difference(episodes, reference)),
        'calls_per_episode': mean(_calls(episodes)),
        'calls_ratio': _ratio(episodes, reference).value,
        'mean_horizon': mean([episode.mean_horizon for episode in episodes]),
        'peak_jerk': mean([episode.peak_jerk for episode in episodes]),
    }


def _detail(
    one: Cell,
    episodes: Sequence[EpisodeResult],
    reference: Sequence[EpisodeResult],
    curve: Sequence[Sequence[EpisodeResult]],
    most: Sequence[EpisodeResult] | None,
) -> Row:
    """
    Return more of a row.

    :param curve: episodes of the fixed horizons
    :param most: those of horizon 1
    """
    ticks = sum(episode.ticks for episode in episodes)
    chunks = sum(episode.chunks_accepted for episode in episodes)
    detail: Row = {
        'strategy': one.entry.label,
        'plugin': one.entry.plugin,
        'options': dict(one.entry.options),
        'parts': {name: dict(part) for name, part in one.entry.parts.items()},
        'success_difference': _difference(episodes, reference).value,
        'calls_ratio_ci': _interval(_ratio(episodes, reference)),
        'curve_success_at_equal_calls': _at_equal_calls(curve, mean(_calls(episodes))),
        'cuts_per_chunk': sum(episode.cuts for episode in episodes) / chunks if chunks else 0.0,
        'starved': sum(episode.starved_ticks for episode in episodes) / ticks if ticks else 0.0,
        'disturbances': mean([episode.disturbances for episode in episodes]),
        'duration_s': mean([episode.duration_s for episode in episodes]),
        'rms_jerk': mean([episode.rms_jerk for episode in episodes]),
    }
    if most is not None:
        difference = _difference(episodes, most)
        detail['against_horizon_1'] = {
            'success_difference': difference.value,
            'success_difference_ci': _interval(difference),
            'calls_share': mean(_calls(episodes)) / max(mean(_calls(most)), 1e-9),
        }
    return detail


def _at_equal_calls(curve: Sequence[Sequence[EpisodeResult]], calls: float) -> float:
    """Return the success of fixed horizons at so many calls, between those that were run."""
    points = sorted((mean(_calls(episodes)), mean(_wins(episodes))) for episodes in curve)
    for (low, below), (high, above) in pairwise(points):
        if low <= calls <= high:
            share = (calls - low) / (high - low) if high > low else 0.0
            return below + share * (above - below)
    return points[0][1] if calls < points[0][0] else points[-1][1]


def _difference(episodes: Sequence[EpisodeResult], reference: Sequence[EpisodeResult]) -> Estimate:
    if episodes is reference:
        return Estimate(0.0, 0.0, 0.0)
    return paired_difference(_wins(reference), _wins(episodes))


def _ratio(episodes: Sequence[EpisodeResult], reference: Sequence[EpisodeResult]) -> Estimate:
    if not sum(_calls(episodes)):
        return Estimate(math.nan, math.nan, math.nan)
    return _bootstrap(tuple(_calls(reference)), tuple(_calls(episodes)))


@lru_cache(maxsize=4096)  # a summary is written after each group, and most of it stays
def _bootstrap(calls: tuple[float, ...], others: tuple[float, ...]) -> Estimate:
    return paired_ratio(calls, others, seed=0)


def _wins(episodes: Sequence[EpisodeResult]) -> list[bool]:
    return [episode.success for episode in episodes]


def _calls(episodes: Sequence[EpisodeResult]) -> list[float]:
    return [float(episode.policy_calls) for episode in episodes]


def _interval(estimate: Estimate) -> list[float]:
    return [estimate.low, estimate.high]


def _weights(plan: Plan) -> dict[str, str]:
    return {
        name: str(checkpoint.read_manifest(name)['weights_sha256'])
        for name in plans.checkpoints(plan)
        if plans.found(name)
    }
