"""MCAP files as a killed recorder leaves them."""

from pathlib import Path

from mcap.exceptions import EndOfFile
from mcap.records import Channel, McapRecord, Message
from mcap.stream_reader import StreamReader


def cut_records(file: Path) -> list[McapRecord]:
    """Return what can be read of a file that lacks its end."""
    found: list[McapRecord] = []
    with file.open('rb') as stream:
        try:
            for record in StreamReader(stream).records:
                found.append(record)
        except EndOfFile:
            return found
    raise AssertionError(f'{file} has its end')


def saved_stamps(file: Path, topic: str = '') -> list[int]:
    """Return times of the messages, of all topics or one, in a file that lacks its end."""
    records = cut_records(file)
    channels = {r.id for r in records if isinstance(r, Channel) and topic in ('', r.topic)}
    return [r.log_time for r in records if isinstance(r, Message) and r.channel_id in channels]
