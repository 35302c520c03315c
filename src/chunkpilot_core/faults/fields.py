"""Fields of messages by path, ``groups[0].values``: of dataclasses and of ROS messages alike."""

from array import array
from collections.abc import Callable, Sequence
import copy
from dataclasses import fields, is_dataclass, replace
import re
from typing import Any

from chunkpilot_core.errors import ConfigError, InvalidDataError, UnknownNameError
from chunkpilot_core.types import F64
import numpy as np

_PATH = re.compile(r'[A-Za-z_]\w*(\[\d+\])*(\.[A-Za-z_]\w*(\[\d+\])*)*')
VALUES = ('position', 'positions', 'actions', 'groups[0].values', 'data')
"""Fields that matter, tried in this order where a fault names none."""


def check(path: str) -> str:
    """
    Return a path that can be followed.

    :raises ConfigError: it is none
    """
    if not _PATH.fullmatch(path):
        raise ConfigError(f'{path!r} is no field, allowed are names like groups[0].values')
    return path


def edit(message: Any, path: str, change: Callable[[Any], Any]) -> Any:
    """
    Return a copy of a message in which the value at ``path`` is ``change`` of the one there.

    :raises InvalidDataError: the message has no such field, or the change does not fit it
    """
    parts = [int(part) if part.isdigit() else part for part in re.findall(r'\w+', path)]
    return _edit(message, parts, change)


def _edit(value: Any, parts: Sequence[str | int], change: Callable[[Any], Any]) -> Any:
    if not parts:
        return change(value)
    head, rest = parts[0], parts[1:]
    if isinstance(head, int):
        if isinstance(value, str) or not hasattr(value, '__len__'):
            raise InvalidDataError(f'{type(value).__name__} has no entries')
        if head >= len(value):
            raise InvalidDataError(f'there is no entry {head} of {len(value)}')
        items = list(value)
        items[head] = _edit(items[head], rest, change)
        return type(value)(items) if isinstance(value, tuple) else items
    known = names(value)
    if head not in known:
        error = UnknownNameError(f'field of {type(value).__name__}', head, known)
        raise InvalidDataError(str(error))
    new = _edit(getattr(value, head), rest, change)
    if is_dataclass(value):
        return replace(value, **{head: new})  # type: ignore[type-var]
    changed = copy.copy(value)
    setattr(changed, head, new)
    return changed


def names(message: Any) -> list[str]:
    """Return the names of a message's fields."""
    if is_dataclass(message):
        return [entry.name for entry in fields(message)]
    listed = getattr(message, 'get_fields_and_field_types', None)
    return list(listed()) if listed else []


def present(message: Any, candidates: Sequence[str]) -> tuple[str, ...]:
    """Return those of some paths whose first name is a field of the message."""
    known = names(message)
    return tuple(path for path in candidates if re.split(r'[.\[]', path)[0] in known)


def numbers(value: Any, change: Callable[[F64], F64], index: Sequence[int] = ()) -> Any:
    """
    Return numbers of the same type and shape, changed at some places.

    :param value: number, or numbers of any shape
    :param change: given those numbers as float64, shape (n,)
    :param index: places in the flattened numbers; none = all
    :raises InvalidDataError: no such place, no numbers, or not a finite number where only whole
        ones are possible
    """
    try:
        flat = np.array(value, np.float64).ravel()
    except (TypeError, ValueError):
        raise InvalidDataError(f'{type(value).__name__} holds no numbers') from None
    wrong = [place for place in index if not 0 <= place < flat.size]
    if wrong:
        raise InvalidDataError(f'there is no entry {wrong[0]} of {flat.size}')
    places = list(index) if index else slice(None)
    flat[places] = change(flat[places])
    if isinstance(value, float):
        return float(flat[0])
    if isinstance(value, list | tuple):
        return type(value)(flat.tolist())
    kind = np.dtype(value.typecode) if isinstance(value, array) else np.asarray(value).dtype
    if kind.kind in 'iu':
        flat = _whole(flat, kind)
    if isinstance(value, array):
        return array(value.typecode, flat.astype(kind).tobytes())
    if isinstance(value, int):
        return int(flat[0])
    with np.errstate(over='ignore'):  # what a narrow type does not hold becomes infinite
        return flat.reshape(np.shape(value)).astype(kind)


def _whole(flat: F64, kind: np.dtype[Any]) -> F64:
    if not np.isfinite(flat).all():
        raise InvalidDataError(f'{kind} holds whole numbers only')
    limits = np.iinfo(kind)
    return np.clip(np.rint(flat), limits.min, limits.max)
