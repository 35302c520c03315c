"""Numbers of a decoded message: by the path of a field, by index, by the names of joints."""

from typing import Any

from chunkpilot_core.bags import decode
from chunkpilot_core.bags.imports.mapping import Action, MAX_VALUES, Signal
from chunkpilot_core.errors import BagError, UnknownNameError
from chunkpilot_core.types import F64
import numpy as np


def numbers(message: Any, entry: Signal | Action) -> F64:
    """
    Return the numbers (n,) of a signal, in units of the source.

    :raises BagError: no such field, index or joint, or something else than numbers
    """
    values = _flat(_field(message, entry), entry.source)
    if entry.joints:
        names = [str(name) for name in getattr(message, 'name', ())]
        if len(names) != len(values):
            raise BagError(f'{entry.source}: {len(names)} names for {len(values)} numbers')
        for joint in entry.joints:
            if joint not in names:
                raise BagError(str(UnknownNameError(f'joint in {entry.source}', joint, names)))
        return values[[names.index(joint) for joint in entry.joints]]
    if entry.index:
        if max(entry.index) >= len(values):
            raise BagError(
                f'{entry.source}: index {max(entry.index)}, it has {len(values)} numbers'
            )
        return values[list(entry.index)]
    return values


def _field(message: Any, entry: Signal | Action) -> Any:
    found = message
    for part in entry.field.split('.') if entry.field else ():
        if part.isdecimal() and hasattr(found, '__len__'):
            if int(part) >= len(found):
                raise BagError(f'{entry.source}: {entry.field} has only {len(found)} elements')
            found = found[int(part)]
            continue
        known = _fields(found)
        if part not in known:
            raise BagError(str(UnknownNameError(f'field of {entry.source}', part, known)))
        found = getattr(found, part)
    return found


def _fields(message: Any) -> list[str]:
    return list(getattr(type(message), '__dataclass_fields__', {}))


def _flat(value: Any, topic: str) -> F64:
    """Return all numbers of a value in the order of its fields; header and names are none."""
    out: list[float] = []
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, np.ndarray | list | tuple):
            if len(item) + len(out) > MAX_VALUES:
                raise BagError(f'{topic}: more than {MAX_VALUES} numbers; choose a field')
            if isinstance(item, np.ndarray):
                out += np.asarray(item, np.float64).reshape(-1).tolist()
            else:
                waiting += reversed(item)
        elif isinstance(item, bool | int | float | np.number):
            out.append(float(item))
        elif not isinstance(item, str):
            names = [name for name in _fields(item) if name not in ('header', '__msgtype__')]
            waiting += [getattr(item, name) for name in reversed(names)]
    if not out:
        raise BagError(f'{topic}: no numbers in it; choose a field')
    return np.array(out)


def stamp_ns(message: Any, received_ns: int, use_header: bool) -> int:
    """Return when a message counts from: its header's time if it has one, else its receipt."""
    stamp = getattr(getattr(message, 'header', None), 'stamp', None)
    if not use_header or stamp is None:
        return received_ns
    found = decode.stamp_ns(stamp)
    return found if found > 0 else received_ns
