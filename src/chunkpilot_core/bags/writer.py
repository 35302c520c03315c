"""
Writes one rosbag2 folder: MCAP with zstd chunks, raw CDR, definitions inside.

The bag grows in ``<name>.unfinished`` and gets its name when it is complete: what carries a bag's
name can be read by every rosbag2 tool, whatever was killed while it was written.
"""

from collections.abc import Mapping
from dataclasses import dataclass
import os
from pathlib import Path
import shutil
from types import TracebackType
from typing import Any

from chunkpilot_core.bags.definitions import Definitions
from chunkpilot_core.errors import BagError
from rosbags.interfaces import (
    Connection,
    Qos,
    QosDurability,
    QosHistory,
    QosLiveliness,
    QosReliability,
    QosTime,
)
from rosbags.rosbag2 import CompressionFormat, CompressionMode, StoragePlugin, Writer, WriterError

UNFINISHED = '.unfinished'
CHUNK_BYTES = 256 * 1024
"""Uncompressed size at which a chunk is written: what a kill can lose."""
CHUNK_NS = 1_000_000_000
"""The same in time."""
_FOREVER = QosTime(9223372036, 854775807)


@dataclass(frozen=True, slots=True)
class TopicQos:
    """Quality of service that a topic's publishers offer."""

    reliable: bool = True
    latched: bool = False
    depth: int = 10

    def to_rosbags(self) -> Qos:
        """Return the same as the bag's metadata tells it."""
        return Qos(
            QosHistory.KEEP_LAST,
            max(self.depth, 1),  # Fast DDS says 0 for remote publishers, which no player accepts
            QosReliability.RELIABLE if self.reliable else QosReliability.BEST_EFFORT,
            QosDurability.TRANSIENT_LOCAL if self.latched else QosDurability.VOLATILE,
            _FOREVER,
            _FOREVER,
            QosLiveliness.AUTOMATIC,
            _FOREVER,
            avoid_ros_namespace_conventions=False,
        )


class BagWriter:
    """One bag; every method but :meth:`abort` raises BagError when the disk does not take it."""

    def __init__(self, path: str | Path, definitions: Definitions | None = None) -> None:
        """
        Create the unfinished bag.

        :param path: the bag's folder, which must not exist
        :raises BagError: it exists, or can't be created
        """
        self.path = Path(path)
        self.messages = 0
        self._definitions = definitions or Definitions()
        self._beside = self.path.with_name(self.path.name + UNFINISHED)
        self._connections: dict[str, Connection] = {}
        self._pending = 0
        self._pending_since_ns = 0
        if self.path.exists() or self._beside.exists():
            taken = self.path if self.path.exists() else self._beside
            raise BagError(f'{taken} exists already, bags are not overwritten')
        # rosbags names the file after its folder, so the folder has its final name from the start
        self._writer = Writer(
            self._beside / self.path.name, version=9, storage_plugin=StoragePlugin.MCAP
        )
        self._writer.set_compression(CompressionMode.STORAGE, CompressionFormat.ZSTD)
        self._attempt(self._writer.open)

    def add_topic(self, topic: str, type_name: str, qos: TopicQos | None = None) -> None:
        """
        Announce a topic; a second time is ignored.

        :param type_name: e.g. ``'chunkpilot/msg/Command'``
        :raises BagError: no definition of the type, or the topic has another type already
        """
        known = self._connections.get(topic)
        if known is not None:
            if known.msgtype != type_name:
                raise BagError(f'{topic} is of type {known.msgtype}, not {type_name}')
            return
        self._definitions.load(type_name)
        offered = [(qos or TopicQos()).to_rosbags()]
        self._connections[topic] = self._attempt(
            lambda: self._writer.add_connection(
                topic,
                type_name,
                typestore=self._definitions.store,
                offered_qos_profiles=offered,
            )
        )

    def write(self, topic: str, stamp_ns: int, cdr: bytes) -> None:
        """
        Append a serialised message.

        :param stamp_ns: time of receipt
        :raises BagError: unknown topic, or the disk does not take it
        """
        connection = self._connections.get(topic)
        if connection is None:
            raise BagError(f'{topic} was not announced to {self.path}')
        self._attempt(lambda: self._writer.write(connection, stamp_ns, cdr))
        if not self._pending:
            self._pending_since_ns = stamp_ns
        self.messages += 1
        self._pending += len(cdr)
        if self._pending >= CHUNK_BYTES or stamp_ns - self._pending_since_ns >= CHUNK_NS:
            self.flush()

    def flush(self) -> None:
        """Hand what is pending to the operating system as a chunk of its own."""
        storage: Any = self._writer.storage
        if self._pending and storage is not None:
            self._pending = 0
            self._attempt(lambda: (storage.close_chunk(), storage.bio.flush()))

    def close(self, metadata: Mapping[str, str] | None = None) -> Path:
        """
        Complete the bag and give it its name.

        :param metadata: kept as custom data
        :returns: where it is
        :raises BagError: the disk does not take it; the bag stays unfinished
        """
        for key, value in (metadata or {}).items():
            self._writer.set_custom_data(str(key), str(value))
        self._attempt(self._finish)
        return self.path

    def _finish(self) -> None:
        self._writer.close()
        folder = self._beside / self.path.name
        for file in folder.iterdir():  # a delayed write error has to come before the name
            descriptor = os.open(file, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        folder.rename(self.path)
        self._beside.rmdir()

    def abort(self) -> None:
        """Leave the bag unfinished."""
        try:
            self._writer.abort()
        except OSError:  # the disk that made us abort
            pass

    def discard(self) -> None:
        """Remove the unfinished bag."""
        self.abort()
        shutil.rmtree(self._beside, ignore_errors=True)

    def _attempt(self, action: Any) -> Any:
        try:
            return action()
        except (OSError, WriterError, ValueError) as error:
            raise BagError(f'{self.path}: not written: {error}') from error

    def __enter__(self) -> 'BagWriter':
        """Write inside of a with block."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Complete the bag, or leave it unfinished after an exception."""
        if kind is None:
            self.close()
        else:
            self.abort()
