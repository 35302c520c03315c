"""
The mapping file of ``chunkpilot import``: which column or topic is what, in which unit.

YAML; docs/bags.md shows one. A key that is not known is an error that names the nearest one.
"""

from collections.abc import Mapping as AnyMapping
from dataclasses import dataclass, fields
from dataclasses import field as dataclass_field
import hashlib
from pathlib import Path
from typing import Any

from chunkpilot_core import config, files
from chunkpilot_core.config import option
from chunkpilot_core.errors import ConfigError, UnknownNameError
from chunkpilot_core.types import EpisodeOutcome, Kind, Reference, Rotation, RowSource
import yaml

MAX_VALUES = 4096  # numbers of one signal
KINDS = tuple(kind.value for kind in Kind)
OUTCOMES = tuple(outcome.name.lower() for outcome in EpisodeOutcome)
SOURCES = tuple(source.name.lower() for source in RowSource)
COMBINE = ('', 'last', 'mean', 'sum')


@dataclass(frozen=True)
class Signal:
    """Numbers of one column (lerobot) or topic (mcap, rosbag1)."""

    source: str = option('', 'column, or topic; written as "from" in the file')
    field: str = option('', 'of the message, e.g. position, pose.position, points.0.positions')
    index: tuple[int, ...] = option((), 'which of the numbers; none = all', min=0, max=MAX_VALUES)
    joints: tuple[str, ...] = option((), 'numbers of these, by the names in the message')
    names: tuple[str, ...] = option((), 'names of the numbers in observations')
    scale: float = option(1.0, 'number * scale + offset is in SI units')
    offset: float = option(0.0, 'see scale')


@dataclass(frozen=True)
class Action:
    """A group of action columns, and the numbers that were sent."""

    source: str = option('', 'column, or topic; written as "from" in the file')
    field: str = option('', 'of the message')
    index: tuple[int, ...] = option((), 'which of the numbers; none = all', min=0, max=MAX_VALUES)
    joints: tuple[str, ...] = option((), 'numbers of these, by the names in the message')
    group: str = option('', 'name of the group, e.g. arm, gripper')
    kind: str = option('', 'what the numbers move', choices=('', *KINDS))
    frame: str = option('', 'tf frame of Cartesian kinds')
    reference: str = option(
        '', 'what deltas are relative to', choices=tuple(r.value for r in Reference)
    )
    rotation: str = option(
        'none', 'how orientation is written', choices=tuple(r.value for r in Rotation)
    )
    names: tuple[str, ...] = option((), 'names of the joints')
    unit: str = option('', 'of a number times scale; default m, or rad for joints')
    scale: tuple[float, ...] = option(
        (1.0,), 'number * scale + offset is in SI units; one, or one per column'
    )
    offset: tuple[float, ...] = option((0.0,), 'see scale')
    lower: tuple[float, ...] = option((), 'smallest numbers; default: those in the data')
    upper: tuple[float, ...] = option((), 'largest numbers; default: those in the data')
    combine: str = option(
        '',
        'messages within one row: last, mean, sum; default: sum of deltas, mean of rates, else '
        'last',
        choices=COMBINE,
    )


@dataclass(frozen=True)
class TaskMap:
    """What was to be done."""

    kind: str = option('', 'name of the task')
    text: str = option('', "instruction in words; '' = the dataset's own")


@dataclass(frozen=True)
class Split:
    """How a recording of topics becomes episodes."""

    gap_s: float = option(
        0.0, 'so long without an action ends an episode; 0 = one per file', unit='s', min=0.0
    )
    min_rows: int = option(2, 'shorter episodes are left out', min=1, max=10**6)


@dataclass(frozen=True)
class Mapping:
    """A whole mapping file."""

    state: tuple[Signal, ...]
    action: tuple[Action, ...]
    features: tuple[Signal, ...] = ()
    goal: tuple[Signal, ...] = ()
    images: AnyMapping[str, str] = dataclass_field(default_factory=dict)
    task: TaskMap = TaskMap()
    split: Split = Split()
    rate: float = 0.0
    space: str = ''
    source: str = 'human'
    outcome: str = 'unknown'
    outcome_from: str = ''
    reward_from: str = ''
    stamps: str = 'header'
    max_age_s: float = 0.5
    sha256: str = ''

    @property
    def signals(self) -> tuple[Signal, ...]:
        """All that make up an observation."""
        return self.state + self.features + self.goal

    @property
    def columns(self) -> list[str]:
        """All columns or topics that numbers come from, each once."""
        names = [entry.source for entry in self.signals]
        names += [entry.source for entry in self.action]
        names += [name for name in (self.outcome_from, self.reward_from) if name]
        return list(dict.fromkeys(names))


@dataclass(frozen=True)
class _Top:
    rate: float = option(0.0, 'rows per second; 0 = that of the dataset', min=0.0, max=1e4)
    space: str = option(
        '', 'ee_delta = the action space of the shipped policies', choices=('', 'ee_delta')
    )
    source: str = option('human', 'whose actions these are', choices=SOURCES)
    outcome: str = option('unknown', 'how episodes ended', choices=OUTCOMES)
    outcome_from: str = option('', 'column or topic that is true once the task is done')
    reward_from: str = option('', 'column or topic whose sum is the reward')
    stamps: str = option('header', 'when messages count from', choices=('header', 'received'))
    max_age_s: float = option(0.5, 'an older message is none', unit='s', min=0.0, max=3600.0)


_PARTS = ('state', 'features', 'goal', 'action', 'images', 'task', 'split')


def load(path: str | Path) -> Mapping:
    """
    Read a mapping file.

    :raises ConfigError: it can't be read, an unknown key, or a value that is not allowed
    """
    try:
        content = files.read(path)
        data = yaml.safe_load(content)
    except (OSError, ValueError, yaml.YAMLError, RecursionError) as error:
        raise ConfigError(f'{path}: {error}') from error
    try:
        return _parse(data, hashlib.sha256(content).hexdigest())
    except ConfigError as error:
        raise ConfigError(f'{path}: {error}') from error


def _parse(data: Any, sha256: str) -> Mapping:
    _check_map(data, 'the file')
    known = [*_PARTS, *(entry.name for entry in fields(_Top))]
    for name in data:
        if name not in known:
            raise UnknownNameError('key', str(name), known)
    top = config.build(_Top, {k: v for k, v in data.items() if k not in _PARTS})
    actions = tuple(
        _signal(Action, entry, f'action[{i}]') for i, entry in _entries(data, 'action')
    )
    state, features, goal = (_signals(data, name) for name in ('state', 'features', 'goal'))
    if not state or not actions:
        raise ConfigError('state and action need an entry each')
    images = data.get('images') or {}
    _check_map(images, 'images')
    if not all(isinstance(text, str) for text in [*images, *images.values()]):
        raise ConfigError('images: must be names of cameras with a column or topic each')
    task = config.build(TaskMap, _check_map(data.get('task') or {}, 'task'), 'task.')
    split = config.build(Split, _check_map(data.get('split') or {}, 'split'), 'split.')
    values = {entry.name: getattr(top, entry.name) for entry in fields(_Top)}
    return Mapping(state, actions, features, goal, images, task, split, **values, sha256=sha256)


def _signals(data: AnyMapping[str, Any], name: str) -> tuple[Signal, ...]:
    return tuple(_signal(Signal, entry, f'{name}[{i}]') for i, entry in _entries(data, name))


def _entries(data: AnyMapping[str, Any], name: str) -> Any:
    entries = data.get(name)
    if entries is None:
        entries = []
    if not isinstance(entries, list):
        raise ConfigError(f'{name}: must be a list of entries with "from" each')
    return enumerate(entries)


def _signal(kind: type[Any], entry: Any, where: str) -> Any:
    _check_map(entry, where)
    if 'source' in entry:
        raise UnknownNameError('parameter', f'{where}.source', [f'{where}.from'])
    values = {('source' if name == 'from' else name): value for name, value in entry.items()}
    for name in ('scale', 'offset', 'lower', 'upper'):
        if kind is Action and isinstance(values.get(name), int | float):
            values[name] = [values[name]]
    found = config.build(kind, values, f'{where}.')
    if not found.source:
        raise ConfigError(f'{where}: needs "from", the column or topic')
    return found


def _check_map(data: Any, where: str) -> Any:
    if not isinstance(data, dict) or not all(isinstance(name, str) for name in data):
        raise ConfigError(f'{where}: must be a map of names to values')
    return data
