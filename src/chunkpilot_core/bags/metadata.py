"""
metadata.yaml of a rosbag2 folder. It comes from outside: bounded, nothing in it is followed.

Every value is read as the text that stands there and converted here, since YAML 1.1 and 1.2
disagree on what ``yes`` and ``1:30`` are.
"""

from collections.abc import Mapping
from dataclasses import dataclass
import os
from pathlib import Path, PurePosixPath
import stat
from typing import Any

from chunkpilot_core.bags.information import FOREVER_NS, TopicQos
from chunkpilot_core.errors import BagError
from chunkpilot_core.types import NS_PER_S
import yaml

MAX_BYTES = 2**24
MAX_DEPTH = 20
NEWEST = 9
STORAGES = ('mcap', 'sqlite3')
_LOADER: Any = getattr(yaml, 'CBaseLoader', yaml.BaseLoader)
_NONE = ('', 'null', '~', 'Null', 'NULL')
_INFORMATION = 'rosbag2_bagfile_information'
_DIGITS = 20


@dataclass(frozen=True, slots=True)
class TopicEntry:
    """One topic."""

    name: str
    type_name: str
    serialization: str
    count: int
    qos: tuple[TopicQos, ...]
    hash: str


@dataclass(frozen=True, slots=True)
class Metadata:
    """What metadata.yaml says."""

    version: int
    storage: str
    files: tuple[str, ...]
    """Names of files in the bag's folder, in the order in which they were written."""
    count: int
    start_ns: int
    duration_ns: int
    topics: tuple[TopicEntry, ...]
    compression_format: str
    compression_mode: str
    """'', 'message' or 'file'."""
    custom: Mapping[str, str]
    distro: str


def read(folder: Path) -> Metadata:
    """
    Read the metadata of a bag.

    :raises BagError: missing, damaged, of a newer version, or naming files elsewhere
    """
    file = folder / 'metadata.yaml'
    data = regular_file(file, folder, MAX_BYTES).read_bytes()
    try:
        return _metadata(_map(load_yaml(data.decode()), _INFORMATION))
    except (UnicodeDecodeError, RecursionError) as error:
        raise BagError(f'{file}: damaged: no text in UTF-8, or nested too deeply') from error
    except ValueError as error:
        raise BagError(f'{file}: damaged: {str(error)[:300]}') from error


def regular_file(file: Path, folder: Path, max_bytes: int | None = None) -> Path:
    """
    Return a file of a bag's folder after a look at what it is.

    :raises BagError: missing, no ordinary file (a pipe would be waited for), a link to elsewhere,
        or too large
    """
    try:
        status = os.lstat(file)
        if stat.S_ISLNK(status.st_mode):
            if not file.resolve().is_relative_to(folder.resolve()):
                raise BagError(f'{file}: a link out of the folder of the bag is not followed')
            status = os.stat(file)
    except FileNotFoundError:
        raise BagError(f'{file}: missing') from None
    except (OSError, RuntimeError, ValueError) as error:  # a circle of links
        raise BagError(f'{file}: {error}') from error
    if not stat.S_ISREG(status.st_mode):
        raise BagError(f'{file}: not an ordinary file')
    if max_bytes is not None and status.st_size > max_bytes:
        raise BagError(f'{file}: {status.st_size} bytes, at most {max_bytes} allowed')
    return file


def load_yaml(text: str) -> Any:
    """
    Return lists and dictionaries of texts.

    :raises ValueError: no YAML, or with what makes small files huge: aliases, deep nesting
    """
    try:
        depth = 0
        for event in yaml.parse(text, Loader=_LOADER):
            if isinstance(event, yaml.AliasEvent):
                raise ValueError(f'alias *{event.anchor} is not read')
            if isinstance(event, yaml.CollectionStartEvent):
                depth += 1
                if depth > MAX_DEPTH:
                    raise ValueError(f'nested more than {MAX_DEPTH} times')
            elif isinstance(event, yaml.CollectionEndEvent):
                depth -= 1
        return yaml.load(text, Loader=_LOADER)
    except yaml.YAMLError as error:
        raise ValueError(f'no YAML: {" ".join(str(error).split())[:200]}') from error


def parse_profiles(entries: Any) -> tuple[TopicQos, ...]:
    """
    Return quality of service profiles as metadata versions 4 to 9 and MCAP channels tell them.

    :raises ValueError: damaged
    """
    if isinstance(entries, str):
        entries = [] if entries.strip() in (*_NONE, '[]') else load_yaml(entries)
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise ValueError(f'offered_qos_profiles: {str(entries)[:100]!r} is no list of profiles')
    return tuple(_profile(entry) for entry in entries)


def _profile(entry: Mapping[str, Any]) -> TopicQos:
    """Return a profile; versions up to 8 have numbers of rmw for the words of version 9."""
    return TopicQos(
        str(entry.get('reliability')).lower() not in ('2', 'best_effort'),
        str(entry.get('durability')).lower() in ('1', 'transient_local'),
        min(max(_whole(entry.get('depth', '0'), 'depth'), 0), 2**31 - 1),
        str(entry.get('history')).lower() in ('2', 'keep_all'),
        _duration_ns(entry.get('deadline')),
        _duration_ns(entry.get('lifespan')),
        str(entry.get('liveliness')).lower() in ('3', 'manual_by_topic'),
        _duration_ns(entry.get('liveliness_lease_duration')),
    )


def _duration_ns(entry: Any) -> int:
    """Return a duration; one of nothing stands for none asked for, as in ROS."""
    if not isinstance(entry, Mapping):
        return FOREVER_NS
    seconds, rest = (_whole(entry.get(name, '0'), name) for name in ('sec', 'nsec'))
    return min(seconds * NS_PER_S + rest, FOREVER_NS) or FOREVER_NS


def _metadata(info: Mapping[str, Any]) -> Metadata:
    version = _number(info, 'version')
    if not 1 <= version <= NEWEST:
        raise ValueError(f'version {version}, known are 1 to {NEWEST}')
    storage = str(_get(info, 'storage_identifier'))
    if storage not in STORAGES:
        raise ValueError(f'storage {storage[:50]!r}, known are {" and ".join(STORAGES)}')
    mode = _text(info, 'compression_mode').lower()
    form = _text(info, 'compression_format').lower()
    if mode not in ('', 'none', 'message', 'file') or (
        mode not in ('', 'none') and form != 'zstd'
    ):
        raise ValueError(f'compression {form[:50]!r} by {mode[:50]!r} is not read')
    custom = info.get('custom_data')
    custom = custom if isinstance(custom, dict) else {}
    return Metadata(
        version,
        storage,
        tuple(_file(str(name), version) for name in _list(info, 'relative_file_paths')),
        _number(info, 'message_count'),
        _number(_map(info, 'starting_time'), 'nanoseconds_since_epoch'),
        _number(_map(info, 'duration'), 'nanoseconds'),
        tuple(map(_topic, _list(info, 'topics_with_message_count'))),
        form,
        '' if mode == 'none' else mode,
        {str(key): str(value) for key, value in custom.items()},
        _text(info, 'ros_distro'),
    )


def _topic(entry: Any) -> TopicEntry:
    topic = _map(entry, 'topic_metadata')
    return TopicEntry(
        str(_get(topic, 'name')),
        str(_get(topic, 'type')),
        str(_get(topic, 'serialization_format')),
        _number(entry, 'message_count'),
        parse_profiles(topic.get('offered_qos_profiles', '')),
        _text(topic, 'type_description_hash'),
    )


def _file(name: str, version: int) -> str:
    """Return the name of a file in the bag's folder; before version 4 the folder stood there."""
    path = PurePosixPath(name)
    allowed = 2 if version < 4 else 1
    if path.is_absolute() or '..' in path.parts or not 1 <= len(path.parts) <= allowed:
        raise ValueError(f'relative_file_paths: {name[:100]!r} is not in the folder of the bag')
    if not path.name.isprintable():
        raise ValueError(f'relative_file_paths: {name[:100]!r} is no name of a file')
    return path.name


def _get(entry: Any, key: str) -> Any:
    if not isinstance(entry, dict):
        found = 'nothing' if entry is None else repr(str(entry)[:100])
        raise ValueError(f'{found} where {key} should stand')
    if key not in entry:
        raise ValueError(f'lacks {key!r}')
    return entry[key]


def _map(entry: Any, key: str) -> Mapping[str, Any]:
    found = _get(entry, key)
    if not isinstance(found, dict):
        raise ValueError(f'{key}: {str(found)[:100]!r} has no names')
    return found


def _number(entry: Any, key: str) -> int:
    return _whole(_get(entry, key), key)


def _whole(value: Any, key: str) -> int:
    """Return a whole number; Python's own errors for long ones speak of Python."""
    text = str(value)
    try:
        if len(text) > _DIGITS:
            raise ValueError
        return int(text)
    except ValueError:
        raise ValueError(f'{key}: {text[:50]!r} is no whole number of 64 bits') from None


def _list(info: Mapping[str, Any], key: str) -> list[Any]:
    entries = _get(info, key)
    if isinstance(entries, str) and entries in _NONE:
        return []
    if not isinstance(entries, list):
        raise ValueError(f'{key}: {str(entries)[:100]!r} is no list')
    return entries


def _text(info: Mapping[str, Any], key: str) -> str:
    value = info.get(key, '')
    return '' if not isinstance(value, str) or value in _NONE else value
