"""A file of faults: what goes wrong where and when; see docs/faults.md."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
import math
from pathlib import Path
from typing import Any, TypeVar

from chunkpilot_core import config
from chunkpilot_core.errors import ConfigError, UnknownNameError
from chunkpilot_core.faults.base import Fault
from chunkpilot_core.faults.processes import Kill, ProcessFault, Sleep
from chunkpilot_core.faults.timing import Burst, Delay, Drop, Duplicate, Reorder
from chunkpilot_core.faults.values import (
    ClockJump,
    Freeze,
    Inf,
    Jump,
    Nan,
    Noise,
    Permute,
    Scale,
)
import yaml

T = TypeVar('T')

KINDS: dict[str, type[Fault]] = {
    cls.kind: cls
    for cls in (
        Delay, Drop, Duplicate, Reorder, Burst,
        Freeze, Nan, Inf, Jump, Scale, Noise, Permute, ClockJump,
    )
}  # fmt: skip
PROCESS_KINDS: dict[str, type[ProcessFault]] = {cls.kind: cls for cls in (Kill, Sleep)}
BEGINS = ('start', 'armed')
KEYS = ('seed', 'begin', 'topics', 'processes')


@dataclass(frozen=True, slots=True)
class Plan:
    """
    Faults by topic, and of processes.

    ``begin`` says when their time begins: when the injector starts, or when the guard is armed
    for the first time.
    """

    topics: Mapping[str, tuple[Fault, ...]]
    processes: tuple[ProcessFault, ...] = ()
    seed: int = 0
    begin: str = 'armed'


def described(plan: Plan) -> list[str]:
    """Return words for each fault: those of topics in the order of the file, then of processes."""
    lines = [
        f'{topic}: {fault.kind}{_when(fault)}'
        for topic, faults in plan.topics.items()
        for fault in faults
    ]
    return lines + [f'{fault.node}: {fault.kind} at {fault.at_s:g} s' for fault in plan.processes]


def _when(fault: Fault) -> str:
    start = f' from {fault.start_s:g} s' if fault.start_s else ''
    return start + (f' to {fault.end_s:g} s' if math.isfinite(fault.end_s) else '')


def load(path: str | Path) -> Plan:
    """
    Read a file of faults.

    :raises ConfigError: with the file, the entry and what is wrong
    """
    try:
        data = yaml.safe_load(Path(path).read_text(encoding='utf-8'))
    except (OSError, UnicodeError, yaml.YAMLError) as error:
        raise ConfigError(f'{path}: {error}') from error
    try:
        return parse(data)
    except ConfigError as error:
        raise ConfigError(f'{path}: {error}') from error


def parse(data: Any) -> Plan:
    """
    Return the plan of plain data.

    :raises ConfigError: with the entry and what is wrong
    """
    data = _mapping('the file', data)
    for key in data:
        if key not in KEYS:
            raise UnknownNameError('key', str(key), KEYS)
    seed, begin = data.get('seed', 0), data.get('begin', 'armed')
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise ConfigError(f'seed: {seed!r} is no whole number from 0 on')
    if begin not in BEGINS:
        raise UnknownNameError('value of begin', str(begin), BEGINS)
    topics = {
        str(topic).lstrip('/'): _faults(str(topic), entries, KINDS)
        for topic, entries in _mapping('topics', data.get('topics') or {}).items()
    }
    processes = _faults('processes', data.get('processes') or [], PROCESS_KINDS)
    if not any(topics.values()) and not processes:
        raise ConfigError('there is no fault in it')
    return Plan(topics, processes, seed, begin)


def _mapping(what: str, data: Any) -> Mapping[Any, Any]:
    if not isinstance(data, Mapping):
        raise ConfigError(f'{what}: {data!r} is no mapping')
    return data


def _faults(where: str, entries: Any, kinds: Mapping[str, type[T]]) -> tuple[T, ...]:
    if not isinstance(entries, Sequence) or isinstance(entries, str):
        raise ConfigError(f'{where}: {entries!r} is no list of faults')
    return tuple(_fault(f'{where}[{i}]', entry, kinds) for i, entry in enumerate(entries))


def _fault(where: str, entry: Any, kinds: Mapping[str, type[T]]) -> T:
    values = dict(_mapping(where, entry))
    kind = values.pop('kind', None)
    if not isinstance(kind, str) or kind not in kinds:
        raise ConfigError(f'{where}: {UnknownNameError("kind of fault", str(kind), kinds)}')
    cls = kinds[kind]
    several = {info.name for info in config.options(cls) if info.sequence}
    for name in several & set(values):
        if not isinstance(values[name], list):
            values[name] = [values[name]]
    try:
        return config.build(cls, values)
    except ConfigError as error:
        raise ConfigError(f'{where}: {kind}: {error}') from error
