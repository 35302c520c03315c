"""
One dataclass feeds the Python API, the ROS parameters and the parameter reference.

A configuration is a frozen dataclass whose fields are made by :func:`option`; nothing else has to
be written.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, Field, field, fields, MISSING
import math
import typing
from typing import Any, get_type_hints, TypeVar

from chunkpilot_core.errors import ConfigError, UnknownNameError

C = TypeVar('C')


def option(
    default: Any,
    doc: str,
    *,
    unit: str = '',
    min: float | None = None,  # noqa: A002 - the words that users know
    max: float | None = None,  # noqa: A002
    choices: Sequence[str] = (),
) -> Any:
    """
    Return a dataclass field with everything a user has to know about it.

    :param default: value, or a list or tuple (copied as tuple)
    :param doc: one sentence
    :param unit: SI unit, '' for none
    :param min: smallest allowed value, of each element for sequences
    :param max: largest allowed value
    :param choices: allowed strings; empty = any
    """
    if isinstance(default, list):
        default = tuple(default)
    metadata = {'doc': doc, 'unit': unit, 'min': min, 'max': max, 'choices': tuple(choices)}
    return field(default=default, metadata=metadata)


@dataclass(frozen=True, slots=True)
class OptionInfo:
    """Description of one field of a configuration."""

    name: str
    type: Any
    default: Any
    doc: str
    unit: str
    min: float | None
    max: float | None
    choices: tuple[str, ...]

    @property
    def sequence(self) -> bool:
        """Whether the value is a tuple of elements of one type."""
        return typing.get_origin(self.type) is tuple

    @property
    def element(self) -> type:
        """Type of the value, or of its elements."""
        if not self.sequence:
            return typing.cast('type', self.type)
        return typing.cast('type', typing.get_args(self.type)[0])


def options(config: type | Any) -> Iterator[OptionInfo]:
    """Iterate over the fields of a configuration class or instance."""
    cls = config if isinstance(config, type) else type(config)
    hints = get_type_hints(cls)
    for entry in fields(cls):
        meta = entry.metadata
        yield OptionInfo(
            entry.name,
            hints[entry.name],
            _default(entry),
            meta.get('doc', ''),
            meta.get('unit', ''),
            meta.get('min'),
            meta.get('max'),
            meta.get('choices', ()),
        )


def _default(entry: 'Field[Any]') -> Any:
    if entry.default is MISSING:
        raise TypeError(f'configuration field {entry.name!r} needs a default')
    return entry.default


def build(cls: type[C], values: Mapping[str, Any], where: str = '') -> C:
    """
    Build a configuration from plain values, and check it.

    :param cls: configuration class
    :param values: by field name; missing ones keep their default; an int is taken for a float, a
        list for a tuple
    :param where: prefix of names in errors, e.g. ``'upcycling.'``
    :raises UnknownNameError: a name that the configuration does not have, with the nearest one
    :raises ConfigError: a value of the wrong type or out of range
    """
    known = {info.name: info for info in options(cls)}
    for name in values:
        if name not in known:
            raise UnknownNameError('parameter', where + name, (where + other for other in known))
    checked = {name: _coerce(known[name], value, where) for name, value in values.items()}
    return cls(**checked)


def _coerce(info: OptionInfo, value: Any, where: str) -> Any:
    name = where + info.name
    if info.sequence:
        if isinstance(value, str) or not isinstance(value, Sequence):
            raise ConfigError(f'{name}: {value!r} is not a list of {info.element.__name__}')
        return tuple(_coerce_one(info, item, f'{name}[{i}]') for i, item in enumerate(value))
    return _coerce_one(info, value, name)


def _coerce_one(info: OptionInfo, value: Any, name: str) -> Any:
    kind = info.element
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise ConfigError(
            f'{name}: {value!r} is of type {type(value).__name__}, must be {kind.__name__}'
        )
    unit = f' {info.unit}' if info.unit else ''
    if isinstance(value, float) and math.isnan(value):
        raise ConfigError(f'{name}: NaN is not allowed')
    if info.min is not None and value < info.min:
        raise ConfigError(f'{name}: {value}{unit} is below the minimum {info.min}{unit}')
    if info.max is not None and value > info.max:
        raise ConfigError(f'{name}: {value}{unit} is above the maximum {info.max}{unit}')
    if info.choices and value not in info.choices:
        raise UnknownNameError(f'value of {name}', str(value), info.choices)
    return value


def reference(cls: type, prefix: str = '') -> str:
    """Return a Markdown table of a configuration's options."""
    lines = ['| parameter | default | range | meaning |', '|---|---|---|---|']
    for info in options(cls):
        low = '' if info.min is None else f'{info.min:g}'
        high = '' if info.max is None else f'{info.max:g}'
        span = ', '.join(info.choices) or (f'{low} to {high}' if low or high else '')
        unit = f' [{info.unit}]' if info.unit else ''
        lines.append(f'| `{prefix}{info.name}` | `{info.default}` | {span} | {info.doc}{unit} |')
    return '\n'.join(lines)
