"""A part of a bag as a bag that stands alone: a range of time, some topics."""

from collections.abc import Iterator
from pathlib import Path

from chunkpilot_core.bags import copy
from chunkpilot_core.bags.copy import plain, Progress, Written
from chunkpilot_core.bags.play import latched
from chunkpilot_core.bags.reader import BagReader, Message
from chunkpilot_core.bags.selection import Selection


def cut(path: Path, out: Path, selection: Selection, progress: Progress = plain) -> Written:
    """
    Write a part of a bag.

    What was latched before its start comes first, stamped with the start, as a recorder that
    began there would have got it.

    :raises BagError: the bag can't be read, nothing of it is meant, or the disk is full
    """
    with BagReader(path) as bag:
        names = selection.names(bag)
        start_ns, stop_ns = selection.range_ns(bag)
        topics = {name: bag.details[name] for name in names}

        def messages() -> Iterator[Message]:
            if start_ns > bag.start_ns:
                for name, cdr in latched(bag, names, start_ns):
                    yield Message(name, topics[name].type_name, start_ns, cdr)
            yield from bag.messages(names, start_ns, stop_ns)

        metadata = {**bag.metadata, 'cut_from': bag.path.name}
        return copy.write(out, topics, messages(), metadata, progress)
