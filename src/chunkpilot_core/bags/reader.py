"""Reads rosbag2 folders of any storage, with the definitions that the bag carries."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from chunkpilot_core.bags.writer import UNFINISHED
from chunkpilot_core.errors import BagError, UnknownNameError
from rosbags.rosbag2 import Reader, ReaderError
from rosbags.typesys import get_types_from_msg, get_typestore, Stores
from rosbags.typesys.base import TypesysError


@dataclass(frozen=True, slots=True)
class Message:
    """One recorded message: received at ``stamp_ns``, serialised as ``cdr``."""

    topic: str
    type_name: str
    stamp_ns: int
    cdr: bytes


class BagReader:
    """One bag, opened for reading; use it in a with block."""

    def __init__(self, path: str | Path) -> None:
        """
        Open a bag.

        :param path: the bag's folder
        :raises BagError: there is none, it was not finished, or it is damaged
        """
        self.path = Path(path)
        if self.path.name.endswith(UNFINISHED):
            raise BagError(f'{self.path}: recording was cut off before the bag was complete')
        beside = self.path.with_name(self.path.name + UNFINISHED)
        if not self.path.exists() and beside.exists():
            raise BagError(f'{self.path}: recording was cut off, {beside} is what there is')
        try:
            self._reader = Reader(self.path)
            self._reader.open()
        except Exception as error:  # damaged bags raise whatever their parser stumbles upon
            raise BagError(f'{self.path}: {error}') from error
        self._store = get_typestore(Stores.EMPTY)
        self._register()

    def _register(self) -> None:
        for connection in self._reader.connections:
            try:
                types = get_types_from_msg(connection.msgdef.data, connection.msgtype)
                new = {key: value for key, value in types.items() if key not in self._store.types}
                self._store.register(new)
            except TypesysError as error:
                raise BagError(
                    f'{self.path}: definition of {connection.msgtype}: {error}'
                ) from error

    @property
    def metadata(self) -> Mapping[str, str]:
        """What was given when the bag was closed."""
        return dict(self._reader.storage.metadata.custom or {})

    @property
    def topics(self) -> Mapping[str, str]:
        """Type of each topic."""
        return {connection.topic: connection.msgtype for connection in self._reader.connections}

    @property
    def counts(self) -> Mapping[str, int]:
        """Number of messages of each topic."""
        return {connection.topic: connection.msgcount for connection in self._reader.connections}

    def messages(self, topics: Collection[str] | None = None) -> Iterator[Message]:
        """
        Iterate in the order of receipt.

        :param topics: only these; None = all
        :raises UnknownNameError: a topic that the bag does not have
        :raises BagError: the bag is damaged
        """
        for topic in topics or ():
            if topic not in self.topics:
                raise UnknownNameError(f'topic in {self.path}', topic, self.topics)
        chosen = [c for c in self._reader.connections if topics is None or c.topic in topics]
        if not chosen:
            return
        try:
            for connection, stamp_ns, cdr in self._reader.messages(chosen):
                yield Message(connection.topic, connection.msgtype, stamp_ns, bytes(cdr))
        except (ReaderError, OSError, ValueError, AssertionError) as error:
            raise BagError(f'{self.path}: {error}') from error

    def decode(self, message: Message) -> Any:
        """
        Return a message as an object with the fields of its definition, arrays as numpy.

        :raises BagError: its bytes do not fit its definition
        """
        try:
            return self._store.deserialize_cdr(message.cdr, message.type_name)
        except Exception as error:  # generated code on foreign bytes: anything may come
            raise BagError(
                f'{self.path}: message of {message.topic} at {message.stamp_ns}: {error!r}'
            ) from error

    def close(self) -> None:
        """Close the files."""
        self._reader.close()

    def __enter__(self) -> 'BagReader':
        """Read inside of a with block."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the files."""
        self.close()
