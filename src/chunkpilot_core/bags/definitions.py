"""Message definitions, from the share folders of the ROS packages on this machine."""

from collections.abc import Iterator, Sequence
import os
from pathlib import Path
from typing import Any

from chunkpilot_core.errors import BagError
from rosbags.interfaces import Nodetype
from rosbags.typesys import get_types_from_msg, get_typestore, Stores
from rosbags.typesys.base import TypesysError


def share_folders() -> tuple[Path, ...]:
    """Return the share folders of the sourced environment (AMENT_PREFIX_PATH)."""
    prefixes = os.environ.get('AMENT_PREFIX_PATH', '').split(os.pathsep)
    return tuple(Path(prefix) / 'share' for prefix in prefixes if prefix)


class Definitions:
    """
    Knows message types by name, ``package/msg/Name``; files are read when a type is asked for.
    """

    def __init__(self, folders: Sequence[Path] | None = None) -> None:
        """
        Remember where to look.

        :param folders: share folders; those of the sourced environment by default
        """
        self.folders = share_folders() if folders is None else tuple(folders)
        self.store = get_typestore(Stores.EMPTY)
        self._described: dict[str, tuple[str, str]] = {}

    def load(self, type_name: str) -> None:
        """
        Make a type and all that it contains known.

        :raises BagError: no message type, no such definition, or one that can't be parsed
        """
        waiting, found = [type_name], {}
        while waiting:
            name = waiting.pop()
            if name in self.store.types or name in found:
                continue
            types = self._read(name)
            found.update(types)
            waiting += [part for fields in types.values() for part in _contained(fields[1])]
        if found:
            self.store.register(found)

    def describe(self, type_name: str) -> tuple[str, str]:
        """
        Return a type's definition with all that it contains, and its hash (RIHS01).

        :raises BagError: see :meth:`load`
        """
        if type_name not in self._described:
            self.load(type_name)
            text, _ = self.store.generate_msgdef(type_name, ros_version=2)
            self._described[type_name] = str(text), str(self.store.hash_rihs01(type_name))
        return self._described[type_name]

    def _read(self, name: str) -> dict[str, Any]:
        parts = name.split('/')
        if len(parts) != 3 or parts[1] != 'msg' or not all(part.isidentifier() for part in parts):
            raise BagError(f'{name!r} is no message type, must be "package/msg/Name"')
        package, _, short = parts
        for folder in self.folders:
            file = folder / package / 'msg' / f'{short}.msg'
            if file.is_file():
                try:
                    return dict(get_types_from_msg(file.read_text(encoding='utf-8'), name))
                except (OSError, UnicodeDecodeError, TypesysError) as error:
                    raise BagError(f'{file}: {error}') from error
        looked = ', '.join(map(str, self.folders)) or 'no folder: AMENT_PREFIX_PATH is not set'
        raise BagError(f'no definition of {name} in {looked}')


def _contained(fields: Sequence[tuple[str, Any]]) -> Iterator[str]:
    for _, (kind, detail) in fields:
        if kind in (Nodetype.ARRAY, Nodetype.SEQUENCE):
            kind, detail = detail[0]
        if kind == Nodetype.NAME:
            yield str(detail)
