"""Messages of bags written into a new one: as they are, with their definitions and QoS."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from chunkpilot_core.bags import schemas
from chunkpilot_core.bags.information import REPEATED
from chunkpilot_core.bags.reader import BagReader, Message
from chunkpilot_core.bags.schemas import Definition
from chunkpilot_core.bags.topics import Topic
from chunkpilot_core.bags.writer import BagWriter
from chunkpilot_core.errors import BagError

Progress = Callable[[Iterable[Message]], Iterable[Message]]


def plain(messages: Iterable[Message]) -> Iterable[Message]:
    """Show no progress."""
    return messages


@dataclass(frozen=True, slots=True)
class Written:
    """A new bag."""

    path: Path
    messages: int
    topics: int


def write(
    out: Path,
    topics: Mapping[str, Topic],
    messages: Iterable[Message],
    metadata: Mapping[str, str],
    progress: Progress = plain,
) -> Written:
    """
    Write a new bag; it gets its name when it is complete, and nothing is left of it before.

    :raises BagError: a type is known neither to its bag nor here, or the disk does not take it
    """
    bag = BagWriter(out)
    try:
        for topic in topics.values():
            bag.add_topic(topic.name, topic.type_name, topic.qos or None, described(topic))
        for message in progress(messages):
            bag.write(
                message.topic,
                message.stamp_ns,
                message.cdr,
                message.published_ns,
                message.sequence,
            )
        kept = {key: value for key, value in metadata.items() if key != REPEATED}
        bag.close(kept)  # read back without repetitions, so that there are none
    except BaseException:
        bag.discard()
        raise
    return Written(out, bag.messages, len(topics))


def described(topic: Topic) -> Definition:
    """
    Return the definition of a topic's type with text and hash: the bag's, or the installed one.

    :raises BagError: neither is there, or it can't be understood
    """
    given = topic.definition
    if given.text and given.hash:
        return given
    try:
        decoder = schemas.decoder(given)
    except BagError as error:
        raise BagError(f'{topic.name}: {error}; leave it out, or source its workspace') from error
    if given.text:
        return replace(given, hash=decoder.hash)
    return Definition(given.type_name, 'ros2msg', decoder.text, given.hash or decoder.hash)


def joined(bags: Sequence[BagReader]) -> dict[str, Topic]:
    """
    Return the topics of several bags.

    :raises BagError: a topic is of two types, or a type has two definitions
    """
    topics: dict[str, Topic] = {}
    types: dict[str, tuple[Path, str]] = {}
    for bag in bags:
        for name, topic in bag.details.items():
            digest = described(topic).hash
            where, other = types.setdefault(topic.type_name, (bag.path, digest))
            if other != digest:
                raise BagError(
                    f'{topic.type_name} is {digest} in {bag.path}, {other} in {where}: '
                    'recorded with different versions of its package'
                )
            known = topics.get(name)
            if known is None:
                topics[name] = topic
                continue
            if known.type_name != topic.type_name:
                raise BagError(
                    f'{name} is {topic.type_name} in {bag.path}, {known.type_name} elsewhere'
                )
            more = tuple(qos for qos in topic.qos if qos not in known.qos)
            topics[name] = replace(known, qos=(*known.qos, *more), count=known.count + topic.count)
    return topics
