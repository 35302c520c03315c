"""
A new bag from what a recorder left that was killed, or from a damaged one.

Files are read from their start, record by record; what makes no sense is jumped over to the next
chunk. No index, end or metadata is needed. A damaged chunk is left out and counted. The old files
are not touched.
"""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
import re
from typing import Any

from chunkpilot_core.bags import copy
from chunkpilot_core.bags import metadata as metadata_file
from chunkpilot_core.bags.copy import plain, Progress
from chunkpilot_core.bags.mcap_records import HEAD, messages_in, parse, unpacked
from chunkpilot_core.bags.mcap_salvage import Known, Salvage, walk
from chunkpilot_core.bags.metadata import parse_profiles, regular_file
from chunkpilot_core.bags.reader import Message
from chunkpilot_core.bags.sqlite_file import SqliteFile
from chunkpilot_core.bags.storage import Channel, MAX_STAMP_NS, Row
from chunkpilot_core.bags.topics import Topic
from chunkpilot_core.bags.writer import UNFINISHED
from chunkpilot_core.errors import BagError
from mcap import records
from mcap.opcode import Opcode

_KINDS = ('.mcap', '.db3')


@dataclass(slots=True)
class Repaired:
    """A new bag, and what is not in it."""

    path: Path
    messages: int
    files: list[Salvage]

    @property
    def lost(self) -> bool:
        """Whether anything is known to be missing."""
        return any(f.lost_chunks or f.lost_bytes or f.lost_messages for f in self.files)

    def to_json(self) -> dict[str, Any]:
        """Return it for machines."""
        return {
            'bag': str(self.path),
            'messages': self.messages,
            'lost': self.lost,
            'files': [asdict(file) for file in self.files],
        }


def default_out(path: Path) -> Path:
    """Return where the new bag goes: beside, with ``.repaired`` at the end."""
    name = path.name.removesuffix(UNFINISHED)
    return path.with_name(f'{name.removesuffix(".mcap").removesuffix(".db3")}.repaired')


def repair(path: Path, out: Path, progress: Progress = plain) -> Repaired:
    """
    Write a new bag with all that can be read of an old one.

    :param path: a bag, an unfinished bag, or a single file
    :raises BagError: there is nothing to be read in it, or the disk is full
    """
    files = find_files(path)
    salvages = [Salvage(str(file)) for file in files]
    custom, types = _metadata(path)
    topics: dict[str, Topic] = {}
    names: list[dict[int, str]] = []
    for file in files:  # announced before the first message: a first pass is for the topics
        channels = SqliteFile(file).channels if file.suffix == '.db3' else Known(file).channels()
        names.append({channel.id: channel.topic for channel in channels})
        for channel in channels:
            topic = _topic(channel, types)
            if topic is not None:
                topics.setdefault(channel.topic, topic)
    if not topics:
        raise BagError(f'{path}: no topic in {", ".join(file.name for file in files)}')

    def messages() -> Iterator[Message]:
        for file, salvage, known in zip(files, salvages, names, strict=True):
            for message in _messages(file, salvage, known, topics):
                salvage.messages += 1
                yield message

    told = {**custom, 'repaired_from': path.name}
    written = copy.write(out, topics, messages(), told, progress)
    return Repaired(out, written.messages, salvages)


def find_files(path: Path) -> list[Path]:
    """
    Return the files of messages in a folder, in the order of their numbers.

    :raises BagError: there are none
    """
    if path.is_file():
        return [regular_file(path, path.parent)]
    if not path.is_dir():
        raise BagError(f'{path}: no such bag')
    found = [
        regular_file(file, path)
        for file in (*path.glob('*'), *path.glob('*/*'))
        if file.suffix in _KINDS
    ]
    if not found:
        raise BagError(f'{path}: no .mcap or .db3 file in it')
    return sorted(
        found,
        key=lambda file: [
            int(part) if part.isdecimal() else part for part in re.split(r'(\d+)', file.name)
        ],
    )


def _messages(
    file: Path, salvage: Salvage, names: dict[int, str], topics: dict[str, Topic]
) -> Iterator[Message]:
    if file.suffix == '.db3':
        rows: Iterator[Row] = SqliteFile(file).messages(names)
    else:
        rows = _rows(file, salvage)
    for row in rows:
        name = names.get(row[1])
        if name is not None and name in topics and 0 <= row[0] < MAX_STAMP_NS:
            yield _message(row, name, topics)
        else:
            salvage.lost_messages += 1


def _rows(file: Path, salvage: Salvage) -> Iterator[Row]:
    """Iterate over the messages of what is whole; damaged chunks are counted."""
    broken = False
    for opcode, content in walk(file, salvage):
        if opcode == Opcode.CHUNK:
            try:
                data = unpacked(memoryview(content))
                rows = sorted(messages_in(data, None), key=lambda row: row[0])
                broken = False
            except ValueError as error:
                salvage.lost_chunks += 1
                salvage.reasons.append(str(error))
                broken = True
                continue
            yield from rows
        elif opcode == Opcode.MESSAGE:
            yield from messages_in(HEAD.pack(opcode, len(content)) + content, None)
        elif opcode == Opcode.MESSAGE_INDEX and broken:
            with suppress(ValueError):
                salvage.lost_messages += len(parse(records.MessageIndex, content).records)


def _message(row: Row, name: str, topics: dict[str, Topic]) -> Message:
    stamp_ns, _, cdr, sent_ns, sequence = row
    published_ns = sent_ns if 0 < sent_ns < MAX_STAMP_NS else None
    return Message(name, topics[name].type_name, stamp_ns, cdr, published_ns, sequence)


def _topic(channel: Channel, told: Mapping[str, str]) -> Topic | None:
    """Return a topic; None where neither its file nor metadata.yaml tells its type."""
    definition = channel.definition
    if not definition.type_name:
        definition = replace(definition, type_name=told.get(channel.topic, ''))
    try:
        qos = parse_profiles(channel.profiles)
    except ValueError:
        qos = ()
    return Topic(channel.topic, definition, qos, 0) if definition.type_name else None


def _metadata(path: Path) -> tuple[dict[str, str], dict[str, str]]:
    """Return custom data, and types by topic, of a bag whose metadata is left."""
    try:
        found = metadata_file.read(path)
    except BagError:
        return {}, {}
    return dict(found.custom), {topic.name: topic.type_name for topic in found.topics}
