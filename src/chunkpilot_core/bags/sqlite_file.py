"""Reads the sqlite3 files of older recorders, read-only, and nothing in them that computes."""

from collections.abc import Collection, Iterator
from contextlib import closing
from pathlib import Path
import sqlite3
import sys
from typing import Any

from chunkpilot_core.bags.mcap_records import decompressed, Guard, too_large
from chunkpilot_core.bags.schemas import Definition
from chunkpilot_core.bags.storage import Channel, MAX_RECORD_BYTES, MAX_STAMP_NS, Row
import zstandard

_MAGIC = b'SQLite format 3\0'
_MAX_TOPICS = 100_000
_PLAIN = 0  # column of a table as PRAGMA table_xinfo tells; others are generated or hidden


class SqliteFile:
    """One .db3 file; opened only while something is read from it."""

    def __init__(self, path: Path) -> None:
        """
        Read topics, definitions and the range of time.

        :raises BagError: no such file, damaged, or with tables that are none
        """
        self.path = path
        with Guard(path):
            with path.open('rb') as stream:
                magic = stream.read(len(_MAGIC))
            if magic != _MAGIC:
                raise ValueError('not a sqlite3 file' if magic else 'empty')
            with closing(self._open()) as base:
                columns = {name: _columns(base, name) for name in ('topics', 'messages')}
                self.channels = self._channels(base, columns['topics'])
                first, last, self.count = base.execute(
                    'SELECT MIN(timestamp), MAX(timestamp), COUNT(*) FROM messages'
                ).fetchone()
            if not all(isinstance(stamp, int | None) for stamp in (first, last)):
                raise ValueError(f'damaged: times from {first!r} to {last!r}')
        self.start_ns: int = MAX_STAMP_NS if first is None else first
        self.end_ns: int = 0 if last is None else last

    def messages(
        self,
        channels: Collection[int],
        start_ns: int | None = None,
        stop_ns: int | None = None,
    ) -> Iterator[Row]:
        """Iterate over the messages of some channels in [start, stop) in order of time."""
        low = 0 if start_ns is None else start_ns
        last = MAX_STAMP_NS if stop_ns is None else min(stop_ns - 1, MAX_STAMP_NS)
        yield from self._rows(
            frozenset(channels),
            'WHERE timestamp >= ? AND timestamp <= ? ORDER BY timestamp, id',
            (min(low, MAX_STAMP_NS), last),
        )

    def as_written(self, channels: Collection[int]) -> Iterator[Row]:
        """Iterate over the messages of some channels as they stand in the file."""
        yield from self._rows(frozenset(channels), 'ORDER BY id', ())

    def _rows(self, wanted: Collection[int], where: str, values: tuple[int, ...]) -> Iterator[Row]:
        query = f'SELECT timestamp, topic_id, data FROM messages {where}'
        with Guard(self.path), closing(self._open()) as base:
            for stamp_ns, channel, data in base.execute(query, values):
                if channel not in wanted:
                    continue
                if not isinstance(stamp_ns, int) or not isinstance(data, bytes):
                    raise ValueError('damaged: a message of another kind than bytes')
                yield stamp_ns, channel, data, stamp_ns, 0

    def _open(self) -> sqlite3.Connection:
        # immutable: no journal of the same name is played back, nothing is written
        base = sqlite3.connect(f'{self.path.absolute().as_uri()}?mode=ro&immutable=1', uri=True)
        if sys.version_info >= (3, 11):
            base.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_RECORD_BYTES)
        base.execute('PRAGMA trusted_schema = OFF')
        base.execute('PRAGMA cell_size_check = ON')
        return base

    def _channels(self, base: sqlite3.Connection, columns: Collection[str]) -> list[Channel]:
        definitions = _definitions(base)
        profiles = 'offered_qos_profiles' if 'offered_qos_profiles' in columns else "''"
        digest = 'type_description_hash' if 'type_description_hash' in columns else "''"
        counts = dict(base.execute('SELECT topic_id, COUNT(*) FROM messages GROUP BY topic_id'))
        rows = base.execute(
            f'SELECT id, name, type, serialization_format, {profiles}, {digest} FROM topics '
            f'LIMIT {_MAX_TOPICS}'
        )
        found = []
        for number, name, kind, serialization, qos, hashed in rows:
            encoding, text = definitions.get(str(kind), ('', ''))
            definition = Definition(str(kind), encoding, text, str(hashed or ''))
            count = int(counts.get(number, 0))
            found.append(
                Channel(number, str(name), definition, str(serialization), str(qos or ''), count)
            )
        return found


def _columns(base: sqlite3.Connection, table: str) -> list[str]:
    """
    Return the columns of a table.

    :raises ValueError: a view, a virtual table or computed columns: they could compute for ever
    """
    found = base.execute('SELECT type, sql FROM sqlite_master WHERE name = ?', (table,)).fetchall()
    if len(found) != 1 or found[0][0] != 'table' or 'VIRTUAL' in str(found[0][1]).upper():
        raise ValueError(f'no bag: it has no table {table!r}')
    columns = base.execute(f'PRAGMA table_xinfo({table})').fetchall()
    if any(column[6] != _PLAIN for column in columns):
        raise ValueError(f'no bag: table {table!r} has computed columns')
    return [str(column[1]) for column in columns]


def _definitions(base: sqlite3.Connection) -> dict[str, tuple[str, str]]:
    """Return encoding and text of each type; recorders before Jazzy leave them out."""
    try:
        _columns(base, 'message_definitions')
    except ValueError:
        return {}
    rows: Any = base.execute(
        'SELECT topic_type, encoding, encoded_message_definition FROM message_definitions '
        f'LIMIT {_MAX_TOPICS}'
    )
    known = {}
    for kind, encoding, text in rows:
        plain = text.decode() if isinstance(text, bytes) else str(text)
        if plain.strip():
            known[str(kind)] = (str(encoding), plain)
    return known


def decompressed_message(data: bytes) -> bytes:
    """
    Return a message that was compressed on its own.

    :raises ValueError: damaged, or too large
    """
    try:
        size = zstandard.frame_content_size(data)
    except zstandard.ZstdError as error:
        raise ValueError(f'damaged: {error}') from error
    if size > MAX_RECORD_BYTES:
        raise ValueError(too_large('a message', size))
    return decompressed(data, 'zstd', MAX_RECORD_BYTES if size < 0 else size)
