"""
Policies against each other: checkpoints with options of their own, over tasks and strategies.

Episodes are cells as in :mod:`plan`, kept and continued like those; times are measured anew in
each run, those of one network in turns.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
import math
from pathlib import Path
from typing import Any

from chunkpilot_core import config as configs
from chunkpilot_core import registry
from chunkpilot_core.errors import ConfigError, UnknownNameError
from chunkpilot_core.eval.grid import checks
from chunkpilot_core.eval.grid.plan import Cell, Group, parsed
from chunkpilot_core.eval.grid.store import Store
from chunkpilot_core.eval.latency import LatencyModel
from chunkpilot_core.eval.loop import EpisodeResult
from chunkpilot_core.eval.runner import Entry, Settings
from chunkpilot_core.eval.speed import Speed
from chunkpilot_core.eval.statistics import paired_difference, wilson
from chunkpilot_core.eval.summary import mean
from chunkpilot_core.policies.runtime import checkpoint

STEPS = ('flow_steps', 'sampling_steps')  # options that say how often the network is asked
Row = dict[str, Any]
Speeds = Mapping[tuple[str, str], Speed]  # by checkpoint and label


@dataclass(frozen=True, slots=True)
class Variant:
    """
    A checkpoint with options instead of its own.

    ``checkpoint``: in which ``{task}`` may stand. The first variant of a checkpoint is what its
    others are compared with.
    """

    label: str
    checkpoint: str
    options: Mapping[str, Any] = field(default_factory=dict)

    def policy(self, task: str) -> str:
        """Return the name of the checkpoint for a task."""
        return self.checkpoint.format(task=task)


@dataclass(frozen=True, slots=True)
class PolicyPlan:
    """What is compared; see config/benchmarks/policies.yaml."""

    tasks: tuple[str, ...]
    variants: tuple[Variant, ...]
    entries: tuple[Entry, ...]
    episodes: int
    seed: int = 0
    latency_s: float = 0.05
    calls: int = 200
    calibration_episodes: int = 12

    def check(self) -> None:
        """
        Refuse what can't be run.

        :raises ConfigError: nothing left, or values of the wrong kind
        :raises UnknownNameError: no such task or strategy
        :raises CheckpointError: no such checkpoint, or a damaged one
        """
        for name in ('tasks', 'variants', 'entries'):
            if not getattr(self, name):
                raise ConfigError(f'{name}: at least one is needed')
        for name in ('episodes', 'calls', 'calibration_episodes'):
            checks.whole(name, getattr(self, name), 1, checks.MAX_EPISODES)
        checks.whole('seed', self.seed, 0, checks.MAX_SEED)
        LatencyModel(self.latency_s)
        for one in cells(self):
            one.settings.check()


def read(file: Path, section: str) -> PolicyPlan:
    """
    Read a plan.

    :raises ConfigError: unreadable, or an entry that a plan does not have
    """

    def made(data: Mapping[str, Any]) -> PolicyPlan:
        variants = tuple(Variant(**variant) for variant in data['variants'])
        entries = tuple(Entry(**entry) for entry in data['entries'])
        tasks = tuple(data['tasks'])
        return PolicyPlan(**{**data, 'tasks': tasks, 'variants': variants, 'entries': entries})

    plan = parsed(file, section, made)
    variants, entries = plan.variants, plan.entries
    for entry in entries:
        checks.entry(entry)
    for what, labels in (
        ('variants', [variant.label for variant in variants]),
        ('entries', [entry.label for entry in entries]),
    ):
        if len(set(labels)) != len(labels):
            raise ConfigError(f'{file}: {what}: {labels}, each label once')
    for variant in variants:
        checks.variant(variant)
    return plan


def only(plan: PolicyPlan, wanted: Mapping[str, Sequence[str]]) -> PolicyPlan:
    """
    Return a plan with less in it.

    :param wanted: names that are kept, by ``task``, ``policy`` (labels of variants), ``strategy``
    :raises UnknownNameError: another word, or a name that the plan does not have
    """
    fields: dict[str, tuple[str, dict[str, Any]]] = {
        'task': ('tasks', {task: task for task in plan.tasks}),
        'policy': ('variants', {variant.label: variant for variant in plan.variants}),
        'strategy': ('entries', {entry.label: entry for entry in plan.entries}),
    }
    changes: dict[str, Any] = {}
    for word, names in wanted.items():
        if word not in fields:
            raise UnknownNameError('filter', word, list(fields))
        name, known = fields[word]
        for one in names:
            if one not in known:
                raise UnknownNameError(word, one, known)
        changes[name] = tuple(value for label, value in known.items() if label in names)
    return replace(plan, **changes)


def cells(plan: PolicyPlan) -> list[Cell]:
    """Return the cells of a plan: by task, then by policy, then by strategy."""
    return [
        _cell(plan, task, variant, entry)
        for task in plan.tasks
        for variant in plan.variants
        for entry in plan.entries
    ]


def _cell(plan: PolicyPlan, task: str, variant: Variant, entry: Entry) -> Cell:
    settings = Settings(
        task,
        variant.policy(task),
        (entry,),
        plan.episodes,
        plan.seed,
        plan.latency_s,
        calibration_episodes=plan.calibration_episodes,
        policy_options=variant.options,
    )
    return Cell(Group(plan.latency_s, 'none', task, variant.label), settings)


def networks(plan: PolicyPlan) -> dict[str, list[Variant]]:
    """Return the variants by checkpoint, the conventional one first."""
    found: dict[str, list[Variant]] = {}
    for task in plan.tasks:
        for variant in plan.variants:
            found.setdefault(variant.policy(task), []).append(variant)
    return found


def summary(plan: PolicyPlan, store: Store, speeds: Speeds) -> dict[str, Any]:
    """
    Return a row for each task, policy and strategy whose episodes are there.

    Ratios of times, and differences of success (on the same seeds), are against the first variant
    of the same checkpoint; times are null where they were not measured in this run.
    """
    rows = []
    for one in cells(plan):
        episodes = store.results(one)
        if episodes is not None:
            rows.append(_row(plan, one, episodes, store, speeds))
    return {'plan': asdict(plan), 'rows': rows}


def _row(
    plan: PolicyPlan, one: Cell, episodes: Sequence[EpisodeResult], store: Store, speeds: Speeds
) -> Row:
    settings, label = one.settings, one.group.policy
    first = networks(plan)[settings.policy][0]
    reference = store.results(_cell(plan, settings.task, first, one.entry))
    wins = [episode.success for episode in episodes]
    success = wilson(sum(wins), len(wins))
    difference = None
    if reference is not None and first.label != label:
        found = paired_difference([episode.success for episode in reference], wins)
        difference = [found.low, found.high]
    return {
        'policy': label,
        'task': settings.task,
        'strategy': one.entry.label,
        'steps': steps(settings),
        'streaming': 'none',
        **_times(speeds.get((settings.policy, label)), speeds.get((settings.policy, first.label))),
        'episodes': len(episodes),
        'success': success.value,
        'success_ci': [success.low, success.high],
        'success_difference_ci': difference,
        'calls_per_episode': mean([episode.policy_calls for episode in episodes]),
        'strong_call_ratio': None,
        'duration_s': mean([episode.duration_s for episode in episodes]),
        'checkpoint': settings.policy,
        'options': dict(settings.policy_options),
    }


def _times(speed: Speed | None, reference: Speed | None) -> Row:
    nothing = Speed(*[math.nan] * 5)
    own, other = speed or nothing, reference or nothing
    return {
        'latency_ms_p50': 1e3 * own.whole_p50_s,
        'latency_ms_p99': 1e3 * own.whole_p99_s,
        'first_row_ms_p50': 1e3 * own.first_p50_s,
        'rows_per_s': own.rows_per_s,
        'first_row_ratio': own.first_p50_s / other.first_p50_s,
        'throughput_ratio': own.rows_per_s / other.rows_per_s,
        'peak_memory_mb': own.peak_memory_mb,
    }


def steps(settings: Settings) -> int:
    """Return how often a decision asks the network."""
    manifest = checkpoint.read_manifest(settings.policy)
    plugin = registry.get('policies', manifest['spec']['policy'])
    values = {**manifest['config'], **settings.policy_options}
    config = configs.build(plugin.Config, values, f'{settings.policy}: ')
    return int(next((getattr(config, name) for name in STEPS if hasattr(config, name)), 1))


HEAD = (
    '| policy | steps | strategy | ms p50 / p99 | rows/s | against first | success [%] '
    '| calls | MB |',
    '|---|---|---|---|---|---|---|---|---|',
)


def markdown(found: Mapping[str, Any], command: str) -> str:
    """Return a summary as a page: a table a task."""
    parts = ['# Policies', f'`{command}`; intervals 95 %, times on one thread.']
    for task in dict.fromkeys(row['task'] for row in found['rows']):
        rows = [row for row in found['rows'] if row['task'] == task]
        parts.append(f'## {task}\n\n{rows[0]["episodes"]} episodes.')
        parts.append('\n'.join([*HEAD, *(_line(row) for row in rows)]))
    return '\n\n'.join(parts) + '\n'


def _line(row: Row) -> str:
    low, high = (100 * value for value in row['success_ci'])
    return (
        f'| {row["policy"]} | {row["steps"]} | {row["strategy"]} '
        f'| {_figure(row["latency_ms_p50"], ".2f")} / {_figure(row["latency_ms_p99"], ".2f")} '
        f'| {_figure(row["rows_per_s"], ".0f")} | {_figure(row["throughput_ratio"], ".2f")}x '
        f'| {100 * row["success"]:.1f} ({low:.1f} to {high:.1f}) '
        f'| {row["calls_per_episode"]:.2f} | {_figure(row["peak_memory_mb"], ".0f")} |'
    )


def _figure(value: float, form: str) -> str:
    return '-' if math.isnan(value) else format(value, form)
