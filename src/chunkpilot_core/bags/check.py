"""
Whether a bag is whole: time, clocks, drops, definitions, and what an episode has to agree on.

One pass over the messages as they stand in the files; only those that have to be are decoded.
"""

from collections.abc import Iterator
from pathlib import Path

from chunkpilot_core.bags import schemas
from chunkpilot_core.bags.check_clocks import ClockCheck
from chunkpilot_core.bags.check_episode import EpisodeCheck
from chunkpilot_core.bags.check_times import TimeCheck
from chunkpilot_core.bags.copy import plain, Progress
from chunkpilot_core.bags.definitions import Definitions
from chunkpilot_core.bags.findings import Finding
from chunkpilot_core.bags.information import ERROR
from chunkpilot_core.bags.merge import Range, ranges
from chunkpilot_core.bags.reader import BagReader
from chunkpilot_core.errors import BagError

GAP_S = 0.5
_LOSSES = {
    'dropped_messages': 'the recorder dropped {} messages',
    'lost_messages': '{} messages were sent and never came',
}
"""Custom data of our recorder, and what it means."""


def check(
    path: Path,
    gap_s: float = GAP_S,
    known: Definitions | None = None,
    progress: Progress = plain,
) -> list[Finding]:
    """
    Return what is wrong with a bag, or worth knowing; nothing at all when it is as it should be.

    :param gap_s: silence of a regular topic that is told
    :param known: definitions installed here, to compare types with
    :raises BagError: it can't be opened
    """
    with BagReader(path) as bag:
        found = [*_types(bag, known or Definitions()), *_told(bag)]
        merged = _merged(bag, found)
        times, clocks = TimeCheck(bag, gap_s, merged), ClockCheck(bag)
        episode = EpisodeCheck(bag, merged)
        counts: dict[str, int] = dict.fromkeys(bag.topics, 0)
        undecodable: set[str] = set()
        try:
            for message in progress(bag.as_written()):
                name = message.topic
                counts[name] += 1
                times.add(message)
                clocks.add(message)
                if name in undecodable or not (counts[name] == 1 or episode.wants(name)):
                    continue
                try:
                    decoded = bag.decode(message)
                except BagError as error:
                    undecodable.add(name)
                    found.append(Finding('decode', str(error), name))
                    continue
                if episode.wants(name):
                    episode.add(message, decoded)
        except BagError as error:
            found.append(Finding('damaged', str(error)))
            return found
        return [
            *found,
            *_counts(bag, counts),
            *clocks.findings(),
            *times.findings(),
            *episode.findings(),
        ]


def _merged(bag: BagReader, found: list[Finding]) -> tuple[Range, ...]:
    """Return the times of the bags that it was merged of."""
    try:
        return ranges(bag.metadata)
    except BagError as error:
        found.append(Finding('recorder', str(error)))
        return ()


def _types(bag: BagReader, known: Definitions) -> Iterator[Finding]:
    """Compare the definitions in the bag with their hashes and with what is installed."""
    for name, topic in bag.details.items():
        given = topic.definition
        used = topic.count > 0
        if not given.text.strip() and used:
            yield Finding('definition', f'{topic.type_name} is not defined in the bag', name)
        told = given.hash
        if given.text.strip():
            try:
                own = schemas.decoder(given).hash
            except BagError as error:
                yield Finding('definition', str(error), name, problem=used)
                continue
            if told and told != own:
                yield Finding(
                    'definition', f'the bag says {told[:15]}..., but defines {own[:15]}...', name
                )
            told = told or own
        try:
            known.load(topic.type_name)
        except BagError:
            continue
        here = str(known.store.hash_rihs01(topic.type_name))
        if told and told != here:
            text = f'{topic.type_name} was recorded as {told[:15]}..., installed is {here[:15]}...'
            yield Finding('type', text, name, problem=used)


def _told(bag: BagReader) -> Iterator[Finding]:
    """Tell what the recorder itself says."""
    for key, text in _LOSSES.items():
        number = bag.metadata.get(key, '0')
        if number != '0':
            count = int(number) if number.isdecimal() else 1
            yield Finding('drop', text.format(number), count=count)
    if ERROR in bag.metadata:
        yield Finding('recorder', f'it ended with an error: {bag.metadata[ERROR]}')
    if 'repaired_from' in bag.metadata:
        text = f'repaired from {bag.metadata["repaired_from"]}'
        yield Finding('recorder', text, problem=False)


def _counts(bag: BagReader, counts: dict[str, int]) -> Iterator[Finding]:
    told = {topic.name: topic.count for topic in bag.told.topics} if bag.told else bag.counts
    for name, count in counts.items():
        if told.get(name, count) != count:
            yield Finding('count', f'{count} messages, {told[name]} are told of', name)
    if not any(counts.values()):
        yield Finding('empty', 'no messages')
