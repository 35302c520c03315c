"""
How a guard is configured, as plain values by parameter name, and a guard of such values.

The values are published, so that a bag holds what the decisions in it rest on.
"""

from collections.abc import Mapping, Sequence
import json
from pathlib import Path
from typing import Any

from chunkpilot_core import registry
from chunkpilot_core import robot as robots
from chunkpilot_core.config import build, options
from chunkpilot_core.errors import ConfigError
from chunkpilot_core.safety.runtime import calibration
from chunkpilot_core.safety.runtime.arbiter import Arbiter
from chunkpilot_core.safety.runtime.checks import MANDATORY
from chunkpilot_core.safety.runtime.gate_config import GateConfig
from chunkpilot_core.safety.runtime.guard import Guard
from chunkpilot_core.safety.runtime.machine import Machine
from chunkpilot_core.safety.runtime.tightening import Tightening
import yaml

SECTIONS: Mapping[str, tuple[type, str]] = {
    'config': (Guard.Config, ''),
    'machine': (Machine.Config, ''),
    'arbiter': (Arbiter.Config, ''),
    'gate': (GateConfig, 'gate.'),
    'tightening': (Tightening, 'limits.'),
}
"""Arguments of :class:`Guard` that are configurations: their class and prefix of parameters."""
EXTRA = 'extra_checks'
CALIBRATION = 'calibration'
MAX_FILE = 4_000_000


def values_of(parts: Mapping[str, Any]) -> dict[str, Any]:
    """
    Return every value by the name of its parameter.

    :param parts: keyword arguments of :class:`Guard`: configurations, ``checks``, ``extra_checks``
    """
    values: dict[str, Any] = {EXTRA: list(parts.get(EXTRA, ()))}
    for name, (_, prefix) in SECTIONS.items():
        values |= _values(parts[name], prefix)
    for name, config in parts['checks'].items():
        values |= _values(config, f'{name}.')
    return values


def parts_of(values: Mapping[str, Any]) -> dict[str, Any]:
    """
    Return the keyword arguments of :class:`Guard` that such values stand for.

    :raises ConfigError: a value that is not allowed, or a check that is not known
    """
    extra = tuple(values.get(EXTRA, ()))
    parts: dict[str, Any] = {EXTRA: extra}
    left = {name: value for name, value in values.items() if name != EXTRA}
    for name, (cls, prefix) in SECTIONS.items():
        parts[name] = _taken(cls, prefix, left)
    parts['checks'] = {
        name: _taken(registry.get('safety', name).Config, f'{name}.', left)
        for name in (*MANDATORY, *extra)
    }
    if left:
        raise ConfigError(f'parameters that no part of the guard has: {", ".join(sorted(left))}')
    return parts


def files_of(values: Mapping[str, Any]) -> dict[str, str]:
    """Return what is in the files that parameters name, by parameter."""
    found = {}
    for name, value in values.items():
        file = Path(value) if isinstance(value, str) and Path(value).suffix else None
        if name == CALIBRATION and value:  # may be a bare name, or begin with ~
            file = calibration.find(value)
        if file is not None and file.is_file() and file.stat().st_size <= MAX_FILE:
            found[name] = file.read_text(encoding='utf-8', errors='replace')
    return found


def to_json(values: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Return names, and values as JSON, which keeps every bit of a float."""
    return list(values), [json.dumps(value) for value in values.values()]


def from_json(names: Sequence[str], values: Sequence[str]) -> dict[str, Any]:
    """
    Return values by name.

    :raises ConfigError: no JSON
    """
    try:
        return {name: json.loads(value) for name, value in zip(names, values, strict=True)}
    except ValueError as error:
        raise ConfigError(f'parameters of the guard: {error}') from error


def robot_of(text: str) -> robots.Robot:
    """
    Return the robot of a file's text.

    :raises ConfigError: it is not one
    """
    try:
        return robots.parse(yaml.safe_load(text)['robot'])
    except (yaml.YAMLError, KeyError, TypeError, ValueError) as error:
        raise ConfigError(f'robot of the guard: {error}') from error


def _values(config: Any, prefix: str) -> dict[str, Any]:
    return {
        prefix + info.name: list(value) if info.sequence else value
        for info in options(config)
        for value in (getattr(config, info.name),)
    }


def _taken(cls: type, prefix: str, left: dict[str, Any]) -> Any:
    """Build a configuration of what is ``left`` of the values, and take that away."""
    names = [info.name for info in options(cls)]
    given = {name: left.pop(prefix + name) for name in names if prefix + name in left}
    return build(cls, given, prefix)
