"""
Strategies over tasks, policies, disturbances and latencies: what is run, and what is kept of it.

A cell is one strategy in one situation; its episodes are kept in a file of its own, under a hash
of everything that decides them, so that a run goes on where it was, with more episodes or other
cells, and an edit elsewhere costs nothing.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from chunkpilot_core import config as configs
from chunkpilot_core import registry
from chunkpilot_core.errors import CheckpointError, ConfigError, UnknownNameError
from chunkpilot_core.eval.grid import checks
from chunkpilot_core.eval.latency import LatencyModel
from chunkpilot_core.eval.runner import Entry, Settings
from chunkpilot_core.policies.runtime import checkpoint
from chunkpilot_core.sim.disturbance import DisturbanceConfig
from chunkpilot_core.types import PolicySpec
import yaml

CHOICE_SEED = 30_000_000  # the reference's horizon is chosen on these
OVERLAP_SEED = 40_000_000
MARGIN = 0.01  # of success: so much a longer horizon may cost and still be the reference
REFERENCE = 'fixed'


@dataclass(frozen=True, slots=True)
class Plan:
    """What is compared; see config/benchmarks/strategies.yaml."""

    tasks: tuple[str, ...]
    policies: tuple[str, ...]
    disturbances: tuple[str, ...]
    latencies_s: tuple[float, ...]
    horizons: tuple[int, ...]
    episodes: int
    choice_episodes: int
    overlap_episodes: int
    entries: tuple[Entry, ...]
    seed: int = 0
    calibration_episodes: int = 12
    parts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    task_options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # by task
    checkpoint: str = '{policy}_{task}'
    curve: tuple[int, ...] | None = None  # fixed horizons that get rows; None = all

    def check(self) -> None:
        """
        Refuse what can't be run.

        :raises ConfigError: nothing left, too few episodes, or values of the wrong kind
        :raises UnknownNameError: no such task, strategy, disturbance, part or option
        """
        checks.values(self)
        for task in (*self.tasks, *self.task_options):
            config = registry.get('tasks', task).Config
            configs.build(config, self.task_options.get(task, {}), f'{task}.')
        for latency_s in self.latencies_s:
            LatencyModel(latency_s)
        Settings('', '', (), 1, parts=self.parts).built_parts()
        for entry in self.entries:
            entry.build()
            Settings('', '', (entry,), 1).built_parts(entry)
        for kind in self.disturbances:
            configs.build(DisturbanceConfig, {'kind': kind}, 'disturbance.')


P = TypeVar('P')


def parsed(file: Path, section: str, make: Callable[[Mapping[str, Any]], P]) -> P:
    """
    Return what ``make`` makes of a section of a YAML file.

    :raises ConfigError: unreadable, or not what ``make`` takes
    """
    try:
        return make(yaml.safe_load(file.read_text(encoding='utf-8'))[section])
    except RecursionError:
        raise ConfigError(f'{file}: nested too deeply') from None
    except (OSError, ValueError, TypeError, KeyError, yaml.YAMLError) as error:
        raise ConfigError(f'{file}, section {section!r}: {error}') from error


def read(file: Path, section: str) -> Plan:
    """
    Read a plan.

    :raises ConfigError: unreadable, or an entry that a plan does not have
    """

    def made(data: Mapping[str, Any]) -> Plan:
        entries = tuple(Entry(**entry) for entry in data['entries'])
        lists = {name: tuple(value) for name, value in data.items() if isinstance(value, list)}
        return Plan(**{**data, **lists, 'entries': entries})

    plan = parsed(file, section, made)
    for entry in plan.entries:
        checks.entry(entry)
    labels = [entry.label for entry in plan.entries]
    if len(set(labels)) != len(labels) or any(name.startswith(REFERENCE) for name in labels):
        raise ConfigError(f'{file}: labels {labels}: each once, none may begin with {REFERENCE!r}')
    return plan


@dataclass(frozen=True, slots=True, order=True)
class Group:
    """Where strategies meet on the same seeds."""

    latency_s: float
    disturbance: str
    task: str
    policy: str


def groups(plan: Plan) -> Iterator[Group]:
    """Return the groups of a plan, the most wanted first."""
    for latency_s in plan.latencies_s:
        for disturbance in plan.disturbances:
            for task in plan.tasks:
                for policy in plan.policies:
                    yield Group(latency_s, disturbance, task, policy)


@dataclass(frozen=True, slots=True)
class Cell:
    """Episodes of one row in one group; ``settings`` has that entry only."""

    group: Group
    settings: Settings

    @property
    def entry(self) -> Entry:
        """The row."""
        return self.settings.entries[0]

    @property
    def seeds(self) -> range:
        """Seeds of its episodes."""
        return range(self.settings.seed, self.settings.seed + self.settings.episodes)

    def key(self) -> str:
        """Return a hash of what decides an episode besides its seed."""
        entry = replace(self.entry, label='')
        return replace(self.settings, entries=(entry,), episodes=1, seed=0).key()

    def prepared_by(self) -> str:
        """Return a hash of what decides the strategy with which episodes begin."""
        parts = {name: part for name, part in self.settings.parts.items() if name != 'disturbance'}
        return replace(self, settings=replace(self.settings, parts=parts)).key()


def cell(plan: Plan, group: Group, entry: Entry) -> Cell:
    """
    Return a cell.

    :raises CheckpointError: there is no such policy for the task
    """
    policy = checkpoint_of(plan, group)
    checkpoint.find(policy)
    disturbance = {**plan.parts.get('disturbance', {}), 'kind': group.disturbance}
    settings = Settings(
        group.task,
        policy,
        (entry,),
        plan.episodes,
        plan.seed,
        group.latency_s,
        calibration_episodes=plan.calibration_episodes,
        parts={**plan.parts, 'disturbance': disturbance},
        task_options=plan.task_options.get(group.task, {}),
    )
    return Cell(group, settings)


def fixed(horizon: int, label: str = '') -> Entry:
    """Return the entry of a fixed horizon."""
    return Entry(label or f'{REFERENCE}@{horizon}', 'fixed', {'horizon': horizon})


def choice_cells(plan: Plan, group: Group) -> dict[int, Cell]:
    """Return by horizon the cells among which the reference is chosen: undisturbed, own seeds."""
    calm = replace(group, disturbance='none')
    wanted = replace(plan, episodes=plan.choice_episodes, seed=CHOICE_SEED)
    return {horizon: cell(wanted, calm, fixed(horizon)) for horizon in plan.horizons}


def choose(success: Mapping[int, float]) -> int:
    """Return the longest horizon that is within a point of the best one."""
    best = max(success.values())
    return max(rows for rows, share in success.items() if share >= best - MARGIN - 1e-9)


def cells(plan: Plan, group: Group, base: int) -> list[Cell]:
    """
    Return the rows of a group, the reference first.

    :param base: horizon of the reference, and of entries that name none
    """
    curve = plan.horizons if plan.curve is None else plan.curve
    rows = [fixed(base, REFERENCE), *(fixed(horizon) for horizon in curve if horizon != base)]
    for entry in plan.entries:
        config = registry.get('execution', entry.plugin).Config
        known = {info.name for info in configs.options(config)}
        given = {'horizon': base} if 'horizon' in known else {}
        rows.append(replace(entry, options={**given, **entry.options}))
    return [cell(plan, group, entry) for entry in rows]


def refusal(one: Cell) -> str:
    """Return why a row can't be run with its policy and horizon, '' if it can."""
    try:
        one.entry.build().configure(_spec(one.settings.policy))
        one.settings.built_parts(one.entry)
    except ConfigError as error:
        return str(error)
    return ''


@cache
def _spec(policy: str) -> PolicySpec:
    return checkpoint.load(policy).spec


def measures_overlaps(plan: Plan, group: Group) -> bool:
    """Return whether overlaps are measured in a group: once for each task and policy."""
    first = group.disturbance == plan.disturbances[0]
    return first and group.latency_s == plan.latencies_s[0]


def overlap_cell(plan: Plan, group: Group, base: int) -> Cell:
    """
    Return the cell on whose episodes discarded rows are compared with replanned ones.

    At the reference's horizon, or at half of it where nothing would be left of the chunks.
    """
    calm = replace(group, disturbance='none')
    wanted = replace(plan, episodes=plan.overlap_episodes, seed=OVERLAP_SEED)
    one = cell(wanted, calm, fixed(base))
    longest = 0.75 * _spec(one.settings.policy).horizon
    return one if base <= longest else cell(wanted, calm, fixed(max(base // 2, 1)))


def only(plan: Plan, wanted: Mapping[str, Sequence[str]]) -> Plan:
    """
    Return a plan with less in it.

    :param wanted: names that are kept, by ``task``, ``policy``, ``disturbance``, ``latency``,
        ``strategy``; the reference always stays
    :raises UnknownNameError: another word, or a name that the plan does not have
    """
    fields = {
        'task': ('tasks', plan.tasks),
        'policy': ('policies', plan.policies),
        'disturbance': ('disturbances', plan.disturbances),
        'latency': ('latencies_s', plan.latencies_s),
    }
    changes: dict[str, Any] = {}
    for word, names in wanted.items():
        if word == 'strategy':
            changes |= _only_strategies(plan, names)
            continue
        if word not in fields:
            raise UnknownNameError('filter', word, [*fields, 'strategy'])
        name, has = fields[word]
        known = {str(value): value for value in has}
        changes[name] = tuple(known[_known(word, text, known)] for text in names)
    return replace(plan, **changes)


def _only_strategies(plan: Plan, names: Sequence[str]) -> dict[str, Any]:
    entries = {entry.label: entry for entry in plan.entries}
    horizons = sorted({*plan.horizons, *(plan.curve or ())})
    curve = {f'{REFERENCE}@{rows}': rows for rows in horizons}
    for name in names:
        _known('strategy', name, [REFERENCE, *curve, *entries])
    return {
        'entries': tuple(entry for label, entry in entries.items() if label in names),
        'curve': tuple(rows for label, rows in curve.items() if label in names),
    }


def _known(what: str, name: str, known: Iterable[str]) -> str:
    if name not in known:
        raise UnknownNameError(what, name, known)
    return name


def checkpoints(plan: Plan) -> list[str]:
    """Return the names of the checkpoints that a plan needs."""
    return list(dict.fromkeys(checkpoint_of(plan, group) for group in groups(plan)))


def checkpoint_of(plan: Plan, group: Group) -> str:
    """Return the name of a group's checkpoint."""
    return plan.checkpoint.format(policy=group.policy, task=group.task)


def found(name: str) -> bool:
    """Return whether there is a checkpoint of that name."""
    try:
        checkpoint.find(name)
    except CheckpointError:
        return False
    return True
