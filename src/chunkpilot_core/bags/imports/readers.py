"""Files of messages, opened for an import: what the bag reader reads, and ROS 1 bags."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from chunkpilot_core.bags.reader import BagReader
from chunkpilot_core.errors import BagError, damage
from rosbags.rosbag1 import Reader
from rosbags.typesys import get_types_from_msg, get_typestore, Stores


class _Ros2:
    """An MCAP file or a rosbag2 folder."""

    def __init__(self, bag: BagReader) -> None:
        self._bag = bag
        self.topics: Mapping[str, str] = bag.topics

    def decoded(self, topics: Sequence[str]) -> Iterator[tuple[str, int, Any]]:
        """Iterate over topic, time of receipt and message."""
        for message in self._bag.messages(topics):
            yield message.topic, message.stamp_ns, self._bag.decode(message)


@contextmanager
def ros2(path: Path) -> Iterator[_Ros2]:
    """
    Open an MCAP file or a rosbag2 folder.

    :raises BagError: it can't be read
    """
    with BagReader(path) as bag:
        yield _Ros2(bag)


class _Ros1:
    """A ROS 1 bag, with the definitions that it carries."""

    def __init__(self, path: Path, reader: Reader) -> None:
        self._path, self._reader = path, reader
        self._store = get_typestore(Stores.EMPTY)
        self.topics: Mapping[str, str] = {c.topic: c.msgtype for c in reader.connections}

    def decoded(self, topics: Sequence[str]) -> Iterator[tuple[str, int, Any]]:
        """Iterate over topic, time of receipt and message."""
        chosen = [c for c in self._reader.connections if c.topic in topics]
        try:
            for connection in chosen:
                types = get_types_from_msg(connection.msgdef.data, connection.msgtype)
                known = self._store.types
                self._store.register({k: v for k, v in types.items() if k not in known})
            for connection, stamp_ns, data in self._reader.messages(chosen):
                message = self._store.deserialize_ros1(data, connection.msgtype)
                yield connection.topic, int(stamp_ns), message
        except Exception as error:  # damaged bags raise whatever their parser stumbles upon
            raise BagError(f'{self._path}: {damage(error)}') from error


@contextmanager
def ros1(path: Path) -> Iterator[_Ros1]:
    """
    Open a ROS 1 bag.

    :raises BagError: it can't be read
    """
    try:
        reader = Reader(path)
        reader.open()
        opened = _Ros1(path, reader)
    except Exception as error:  # see above; MemoryError for lengths that can't be
        raise BagError(f'{path}: no ROS 1 bag: {damage(error)}') from error
    try:
        yield opened
    finally:
        reader.close()
