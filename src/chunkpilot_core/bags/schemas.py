"""
Message definitions that bags carry, made into decoders. They come from outside.

rosbags writes Python code from definitions and unrolls fixed arrays in it, so that what reaches it
is reduced to field lines of bounded size first; constants and defaults are not needed to decode.
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
import re
from typing import Any

from chunkpilot_core.bags.definitions import Definitions
from chunkpilot_core.errors import BagError, damage
from rosbags.interfaces import Nodetype
from rosbags.serde.cdr import generate_deserialize_cdr
from rosbags.typesys import get_types_from_idl, get_types_from_msg, get_typestore, Stores
from rosbags.typesys.base import normalize_fieldname
from rosbags.typesys.store import Typestore

MAX_TEXT = 2**20
MAX_UNROLLED = 10_000
"""Elements of fixed arrays of strings and messages: rosbags writes a line of code for each."""
MAX_DEPTH = 20
MAX_TYPES = 200
MAX_FIELDS = 5_000
MAX_DECODED = 2**31
"""Bytes of Python objects that one message may become."""
MAX_UNUSED = 64
"""Bytes after a message, or a quarter of it: rclpy's serialize_message adds some of its buffer."""
_OBJECT_BYTES = 256
_SEPARATOR = '=' * 80
_TYPE = re.compile(r'[A-Za-z]\w{0,99}(/msg)?/[A-Za-z]\w{0,99}', re.ASCII)
_FIELD = re.compile(
    r'((?:[a-z]\w*/){0,2}[A-Za-z]\w*(?:<=\d{1,9})?(?:\[(?:<=)?\d{0,9}\])?)\s+([A-Za-z]\w*)(?=[\s=#]|$)\s*(=?)',
    re.ASCII,
)
_QUOTED = re.compile(r'"(?:\\.|[^"\\])*"|//[^\n]*|/\*.*?\*/', re.DOTALL)
_NOTHING = [('structure_needs_at_least_one_member', (Nodetype.BASE, ('uint8', 0)))]
_STORES: deque[Any] = deque(maxlen=16)
_SIZES = {'8': 1, '16': 2, '32': 4, '64': 8, '128': 16}


@dataclass(frozen=True, slots=True)
class Definition:
    """A message type as a bag tells it."""

    type_name: str
    encoding: str = ''
    """ros2msg, ros2idl, or '' where the bag has none."""
    text: str = ''
    hash: str = ''
    """RIHS01, or '' where the bag has none."""


class _Functions:
    """What a store needs to decode one type; made when it is asked for."""

    def __init__(self, name: str, store: Any) -> None:
        self._store = store
        self.fields = [(normalize_fieldname(key), of) for key, of in store.fielddefs[name][1]]
        self.cls = store.types[name]

    @cached_property
    def deserialize_cdr_le(self) -> Any:
        """Decode little endian."""
        return generate_deserialize_cdr(self.fields, self._store, 'le')

    @cached_property
    def deserialize_cdr_be(self) -> Any:
        """Decode big endian."""
        return generate_deserialize_cdr(self.fields, self._store, 'be')


class _Store(Typestore):
    """A store that only decodes: rosbags makes twelve functions of each type, this one one."""

    def __init__(self) -> None:
        super().__init__()
        base = get_typestore(Stores.EMPTY)
        self.fielddefs.update(base.fielddefs)
        self.types.update(base.types)
        self._functions: dict[str, _Functions] = {}

    def get_msgdef(self, typename: str) -> Any:
        """Return the functions of a type."""
        if typename not in self._functions:
            self._functions[typename] = _Functions(typename, self)
        return self._functions[typename]


class Decoder:
    """Decodes the messages of one type."""

    def __init__(self, type_name: str, store: Any) -> None:
        self.type_name = type_name
        self.store = store
        self._weight = _Weights(store.fielddefs).weigh(type_name)

    @cached_property
    def hash(self) -> str:
        """RIHS01 of the type as its definition has it."""
        return str(self.store.hash_rihs01(self.type_name))

    @property
    def text(self) -> str:
        """The definition with all that it contains, without comments."""
        return str(self.store.generate_msgdef(self.type_name, ros_version=2)[0])

    def decode(self, cdr: bytes) -> Any:
        """
        Return a message as an object, arrays as numpy.

        :raises BagError: its bytes do not fit the definition
        """
        if len(cdr) * self._weight > MAX_DECODED:
            raise BagError(f'{len(cdr)} bytes of {self.type_name} could fill the memory')
        try:
            if len(cdr) < 4 or cdr[0] != 0 or cdr[1] > 1:
                raise ValueError(f'it begins with {cdr[:4].hex()}, which is no CDR')
            known = self.store.get_msgdef(self.type_name)
            function = known.deserialize_cdr_le if cdr[1] else known.deserialize_cdr_be
            message, end = function(memoryview(cdr)[4:], 0, known.cls, self.store)
            unused = len(cdr) - 4 - end
            if unused > max(MAX_UNUSED, len(cdr) // 4):
                raise ValueError(f'{unused} bytes are left of {len(cdr)}')
        except Exception as error:  # generated code on foreign bytes: anything may come
            raise BagError(f'not a {self.type_name}: {damage(error)}'[:500]) from error
        return message


@lru_cache(maxsize=512)
def decoder(definition: Definition) -> Decoder:
    """
    Return the decoder of a definition; without one in the bag, of what is installed here.

    :raises BagError: it can't be understood, or there is none
    """
    name = definition.type_name
    if not definition.text.strip() and not definition.encoding:
        return _installed(name)
    if not _TYPE.fullmatch(name):
        raise BagError(f'{name[:100]!r} is no message type, must be "package/msg/Name"')
    if len(definition.text) > MAX_TEXT:
        raise BagError(
            f'definition of {name}: {len(definition.text)} characters, at most {MAX_TEXT} allowed'
        )
    try:
        types = _parse(definition)
        if name not in types:
            raise BagError(f'definition of {name}: it defines {", ".join(types)[:200]} instead')
        _check(name, types)
        return Decoder(name, _store(types))
    except BagError:
        raise
    except Exception as error:  # parser and generated code of another library
        raise BagError(f'definition of {name}: {str(error)[:300]}') from error


def _store(types: Mapping[str, Any]) -> Any:
    """
    Return a store with these types: one that has the same or none of each name, else a new one.

    Code is made for each type of a store, so that bags share it where they agree.
    """
    for store in _STORES:
        known = store.fielddefs
        if all(
            name not in known or known[name][1] == (fields or _NOTHING)
            for name, (_, fields) in types.items()
        ):
            break
    else:
        store = _Store()
        if any(
            store.fielddefs[name][1] != types[name][1] for name in store.fielddefs & types.keys()
        ):
            raise BagError('it defines Time or Duration in another way')
        _STORES.append(store)
    new = {name: entry for name, entry in types.items() if name not in store.fielddefs}
    if new:
        store.register(new)
    return store


def _installed(name: str) -> Decoder:
    known = Definitions()
    try:
        known.load(name)
        return Decoder(name, known.store)
    except BagError as error:
        store = get_typestore(Stores.ROS2_JAZZY)
        if name not in store.types:
            raise BagError(f'the bag has no definition of {name}, and here {error}') from error
        return Decoder(name, store)


def _parse(definition: Definition) -> dict[str, Any]:
    name, text = definition.type_name, definition.text
    if definition.encoding in ('ros2idl', 'omgidl'):
        plain = _QUOTED.sub(' ', text)
        if '<<' in plain or '*' in plain:  # 1 << 10**9 is evaluated
            raise BagError(f'definition of {name}: products and shifts are not read')
        return dict(get_types_from_idl(text))
    if definition.encoding != 'ros2msg':
        raise BagError(
            f'definition of {name}: encoding {definition.encoding[:50]!r}, must be ros2msg, '
            'ros2idl or omgidl'
        )
    return dict(get_types_from_msg('\n'.join(_fields(name, text)) + '\n', name))


def _fields(name: str, text: str) -> Iterator[str]:
    """Iterate over separators, names and fields; comments, constants and defaults are left out."""
    for raw in text.splitlines():
        line = raw.strip()
        if line == _SEPARATOR or line.startswith('MSG: '):
            yield line
        elif line and line[0] not in '#@':
            match = _FIELD.match(line)
            if match is None:
                raise BagError(f'definition of {name}: {line[:80]!r} is no field')
            if not match[3]:
                yield f'{match[1]} {match[2]}'


def _check(name: str, types: Mapping[str, Any]) -> None:
    """Refuse what has no end, or makes code without end."""
    fields_of_all = sum(len(fields) for _, fields in types.values())
    if len(types) > MAX_TYPES or fields_of_all > MAX_FIELDS:
        raise BagError(
            f'definition of {name}: {len(types)} types with {fields_of_all} fields, at most '
            f'{MAX_TYPES} and {MAX_FIELDS} allowed'
        )
    for owner, (_, fields) in types.items():
        unrolled = 0
        for field, (kind, detail) in fields:
            if kind == Nodetype.ARRAY:
                (inner, what), length = detail
                if length < 1:
                    raise BagError(f'definition of {name}: {owner}.{field} has {length} elements')
                if inner == Nodetype.NAME or what[0] == 'string':
                    unrolled += length
        if unrolled > MAX_UNROLLED:
            raise BagError(
                f'definition of {name}: arrays of {owner} have {unrolled} elements, at most '
                f'{MAX_UNROLLED} allowed'
            )
    _Weights(types).weigh(name)


class _Weights:
    """How many bytes of objects a byte of a message may become."""

    def __init__(self, types: Mapping[str, Any]) -> None:
        self._types = types
        self._known: dict[str, tuple[int, float]] = {}

    def weigh(self, name: str) -> float:
        """
        Return it for a type.

        :raises BagError: it contains itself, or what is not defined, or too many levels
        """
        return self._of(name, ())[1]

    def _of(self, name: str, path: Sequence[str]) -> tuple[int, float]:
        """Return the fewest bytes that a value takes, and its weight."""
        if name in self._known:
            return self._known[name]
        if name in path or len(path) > MAX_DEPTH:
            raise BagError(f'definition of {path[0]}: it contains {name} without end')
        if name not in self._types:
            raise BagError(f'definition of {path[0] if path else name}: it lacks {name}')
        least, weight = 0, 1.0
        for _, (kind, detail) in self._types[name][1]:
            if kind not in (Nodetype.ARRAY, Nodetype.SEQUENCE):
                size, more = self._plain(kind, detail, (*path, name))
                least += size
            else:
                (inner, what), length = detail
                size, more = self._plain(inner, what, (*path, name))
                if inner == Nodetype.NAME or what[0] == 'string':
                    more = max(more, _OBJECT_BYTES / max(size, 1))
                least += length * size if kind == Nodetype.ARRAY else 4
            weight = max(weight, more)
        self._known[name] = least, weight
        return self._known[name]

    def _plain(self, kind: int, detail: Any, path: Sequence[str]) -> tuple[int, float]:
        if kind == Nodetype.NAME:
            return self._of(detail, path)
        if detail[0] == 'string':
            return 5, 16.0
        return _SIZES.get(re.sub(r'\D', '', detail[0]), 1), 1.0
