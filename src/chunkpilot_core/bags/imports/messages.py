"""Messages without ROS: objects of a definition's type, with zeros where nothing is given."""

from typing import Any

from chunkpilot_core.bags.definitions import Definitions
from chunkpilot_core.errors import BagError
from chunkpilot_core.types import NS_PER_S
import numpy as np
from rosbags.interfaces import Nodetype

_NUMBERS = {'byte': 'uint8', 'char': 'uint8', 'octet': 'uint8'}


class Messages:
    """Makes and serialises messages by the name of their type."""

    def __init__(self, definitions: Definitions | None = None) -> None:
        """Use the definitions of the sourced environment, or others."""
        self.definitions = definitions or Definitions()
        self._empty: dict[str, Any] = {}

    def make(self, type_name: str, **values: Any) -> Any:
        """
        Return a message.

        :param values: fields that are not zero, empty or ''
        :raises BagError: no such type, or no such field
        """
        self.definitions.load(type_name)
        store = self.definitions.store
        fields = store.fielddefs[type_name][1]
        unknown = set(values) - {name for name, _ in fields}
        if unknown:
            raise BagError(f'{type_name} has no field {", ".join(sorted(unknown))}')
        filled = {
            name: _sequence(values[name], node) if name in values else self._zero(node)
            for name, node in fields
        }
        return store.types[type_name](**filled)

    def time(self, stamp_ns: int) -> Any:
        """Return a builtin_interfaces/Time."""
        sec, nanosec = divmod(int(stamp_ns), NS_PER_S)
        return self.make('builtin_interfaces/msg/Time', sec=sec, nanosec=nanosec)

    def header(self, stamp_ns: int, frame: str = '') -> Any:
        """Return a std_msgs/Header."""
        return self.make('std_msgs/msg/Header', stamp=self.time(stamp_ns), frame_id=frame)

    def serialize(self, message: Any) -> bytes:
        """Return the bytes (CDR) of a message of :meth:`make`."""
        return bytes(self.definitions.store.serialize_cdr(message, message.__msgtype__))

    def _zero(self, node: Any) -> Any:
        kind, detail = node
        if kind == Nodetype.NAME:
            if detail not in self._empty:  # shared: nobody writes into messages
                self._empty[detail] = self.make(detail)
            return self._empty[detail]
        if kind == Nodetype.BASE:
            return '' if detail[0] == 'string' else _number(detail[0])(0)
        inner, length = detail
        count = length if kind == Nodetype.ARRAY else 0
        if inner[0] == Nodetype.BASE and inner[1][0] != 'string':
            return np.zeros(count, _number(inner[1][0]))
        return [self._zero(inner) for _ in range(count)]


def _number(name: str) -> Any:
    return np.bool_ if name == 'bool' else getattr(np, _NUMBERS.get(name, name))


def _sequence(value: Any, node: Any) -> Any:
    """Return numbers as the array that the serialiser wants, everything else as it is."""
    kind, detail = node
    if kind in (Nodetype.ARRAY, Nodetype.SEQUENCE):
        inner = detail[0]
        if inner[0] == Nodetype.BASE and inner[1][0] != 'string':
            return np.ascontiguousarray(value, _number(inner[1][0])).reshape(-1)
        return list(value)
    return value
