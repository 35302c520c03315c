"""The topics of a bag: what its files tell, and what its metadata tells, as one."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from chunkpilot_core.bags.information import TopicQos
from chunkpilot_core.bags.mcap_records import Guard
from chunkpilot_core.bags.metadata import Metadata, parse_profiles
from chunkpilot_core.bags.schemas import Definition
from chunkpilot_core.bags.storage import Channel, StorageFile
from chunkpilot_core.errors import BagError


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic of a bag."""

    name: str
    definition: Definition
    qos: tuple[TopicQos, ...]
    """Quality of service that its publishers offered; empty where the bag does not say."""
    count: int
    """Messages, as the bag says."""

    @property
    def type_name(self) -> str:
        """E.g. ``'chunkpilot/msg/Command'``."""
        return self.definition.type_name

    @property
    def latched(self) -> bool:
        """Whether late subscribers got its last message."""
        return bool(self.qos) and all(qos.latched for qos in self.qos)


def join(
    path: Path, storages: Sequence[StorageFile], metadata: Metadata | None
) -> dict[str, Topic]:
    """
    Return topics as files and metadata tell them.

    :raises BagError: they contradict one another, or messages are not CDR
    """
    told = {entry.name: entry for entry in metadata.topics} if metadata else {}
    joined: dict[str, Topic] = {}
    for storage in storages:
        for channel in storage.channels:
            entry = told.get(channel.topic)
            qos = entry.qos if entry and entry.qos else _qos(channel, storage)
            joined[channel.topic] = _with(joined.get(channel.topic), channel, qos, storage)
    for name, entry in told.items():
        known = joined.get(name)
        if known is None:  # rosbag2 writes no channel for a topic without messages
            definition = Definition(entry.type_name, '', '', entry.hash)
            joined[name] = Topic(name, definition, entry.qos, 0)
        elif known.type_name != entry.type_name:
            raise BagError(
                f'{path}: {name} is {known.type_name} in its file, {entry.type_name} in '
                'metadata.yaml'
            )
        elif entry.hash:
            definition = replace(known.definition, hash=entry.hash)
            joined[name] = replace(known, definition=definition)
    return dict(sorted(joined.items()))


def _qos(channel: Channel, storage: StorageFile) -> tuple[TopicQos, ...]:
    with Guard(storage.path):
        return parse_profiles(channel.profiles)


def _with(
    known: Topic | None,
    channel: Channel,
    qos: tuple[TopicQos, ...],
    storage: StorageFile,
) -> Topic:
    if channel.serialization != 'cdr':
        raise BagError(
            f'{storage.path}: {channel.topic} is serialised as '
            f'{channel.serialization[:50]!r}, must be cdr'
        )
    if known is None:
        return Topic(channel.topic, channel.definition, qos, channel.count)
    if replace(known.definition, hash='') != replace(channel.definition, hash=''):
        raise BagError(f'{storage.path}: {channel.topic} has two types or definitions')
    more = tuple(profile for profile in qos if profile not in known.qos)
    return replace(known, qos=(*known.qos, *more), count=known.count + channel.count)
