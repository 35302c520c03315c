"""Numbers of a YAML file: read once, checked, with errors that name the place."""

from collections.abc import Mapping, Sequence
import math
from typing import Any

from chunkpilot_core.errors import ConfigError, UnknownNameError

MAX_POSITION = 100.0  # [rad, m], above any arm or table; more is a mistake

Triple = tuple[float, float, float]


def number(name: str, value: Any, low: float, high: float) -> float:
    """
    Return a number of a YAML file.

    :raises ConfigError: no finite number (a bool is none), or outside of ``low`` to ``high``
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) < math.inf:
        raise ConfigError(f'{name}: {value!r} is no finite number')
    if not low <= value <= high:
        raise ConfigError(f'{name}: {value!r}: allowed {low:g} to {high:g}')
    return float(value)


def position(name: str, value: Any) -> float:
    """Return a coordinate [rad, m]."""
    return number(name, value, -MAX_POSITION, MAX_POSITION)


def positive(name: str, value: Any, high: float) -> float:
    """Return a number above 0, at most ``high``."""
    if number(name, value, -math.inf, high) <= 0.0:
        raise ConfigError(f'{name}: {value} must be above 0, at most {high:g}')
    return float(value)


def positions(name: str, values: Any, size: int) -> tuple[float, ...]:
    """Return a list of ``size`` coordinates."""
    if not isinstance(values, list) or len(values) != size:
        raise ConfigError(f'{name}: {values!r} must be a list of {size} numbers')
    return tuple(position(f'{name}[{i}]', value) for i, value in enumerate(values))


def triple(data: Mapping[str, Any], name: str) -> Triple:
    """Return the three coordinates under a key."""
    x, y, z = positions(name, data[name], 3)
    return (x, y, z)


def known_keys(what: str, data: Any, keys: Sequence[str]) -> Mapping[str, Any]:
    """
    Return a mapping that has no other keys.

    :raises ConfigError: no mapping
    :raises UnknownNameError: a key that is not known
    """
    if not isinstance(data, Mapping):
        raise ConfigError(f'{what}: {data!r} must be a mapping of {list(keys)}')
    for key in data:
        if key not in keys:
            raise UnknownNameError(f'key of {what}', str(key), keys)
    return data
