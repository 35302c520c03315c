"""Whether observations, chunks, executed rows and the guard's epochs of a bag fit together."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from chunkpilot_core.bags import decode
from chunkpilot_core.bags.findings import Finding
from chunkpilot_core.bags.merge import across, Range
from chunkpilot_core.bags.reader import BagReader, Message
from chunkpilot_core.types import Id, NS_PER_S, RowSource

_OF_POLICY = (RowSource.POLICY, RowSource.RESIDUAL)
_KINDS = {
    f'chunkpilot/msg/{name}': name
    for name in (
        'Observation',
        'ActionChunk',
        'ExecutedRows',
        'GuardState',
        'EpisodeEvent',
        'Outcome',
    )
}


class EpisodeCheck:
    """Takes the decoded messages of some topics; tells what contradicts."""

    def __init__(self, bag: BagReader, ranges: Sequence[Range] = ()) -> None:
        """
        Take a bag.

        :param ranges: times [ns] of the bags that it was merged of
        """
        self._bag = bag
        self._ranges = ranges
        self._between: dict[str, list[tuple[int, int, int]]] = {}
        """By kind: session, first and last number that no merged bag is of."""
        self._kinds = {name: _KINDS[kind] for name, kind in bag.topics.items() if kind in _KINDS}
        self._observations: set[Id] = set()
        self._chunks: dict[Id, Any] = {}
        self._rows: list[tuple[Message, Any]] = []
        self._chunk_times: dict[Id, int] = {}
        self._epochs: dict[int, int] = {}
        self._guard: tuple[int, int] | None = None
        self._started: list[str] = []
        self._ended: set[str] = set()
        self._last: dict[tuple[str, int], tuple[int, int]] = {}
        self._lost: Counter[str] = Counter()
        self._found: list[Finding] = []

    def wants(self, topic: str) -> bool:
        """Return whether messages of a topic have to be decoded for it."""
        return topic in self._kinds

    def add(self, message: Message, msg: Any) -> None:
        """Take a message."""
        kind = self._kinds[message.topic]
        if kind in ('Observation', 'ActionChunk', 'ExecutedRows'):
            self._count(kind, message, decode.identity(msg.id))
        if kind == 'Observation':
            self._observations.add(decode.identity(msg.id))
        elif kind == 'ActionChunk':
            self._chunks[decode.identity(msg.id)] = msg
            self._chunk_times.setdefault(decode.identity(msg.id), message.stamp_ns)
        elif kind == 'ExecutedRows':
            self._rows.append((message, msg))
        elif kind == 'GuardState':
            self._state(message, msg)
        elif kind == 'EpisodeEvent' and msg.event == decode.EPISODE_START:
            self._started.append(str(msg.episode_id))
        elif kind == 'Outcome':
            self._ended.add(str(msg.episode_id))

    def _count(self, kind: str, message: Message, sent: Id) -> None:
        """Count numbers that a sender used and the bag lacks."""
        key, topic = (message.topic, sent.session), message.topic
        last, last_ns = self._last.get(key, (sent.seq, 0))
        if sent.seq > last + 1:
            if across(self._ranges, last_ns, message.stamp_ns):
                hole = (sent.session, last + 1, sent.seq - 1)
                self._between.setdefault(kind, []).append(hole)
            else:
                self._lost[topic] += sent.seq - last - 1
        self._last[key] = max((last, last_ns), (sent.seq, message.stamp_ns))

    def _is_between(self, kind: str, sent: Id) -> bool:
        """Return whether a message was sent after a merged bag ended and before the next began."""
        return any(
            session == sent.session and first <= sent.seq <= last
            for session, first, last in self._between.get(kind, ())
        )

    def _state(self, message: Message, msg: Any) -> None:
        session, epoch = int(msg.session), int(msg.arm_epoch)
        self._epochs.setdefault(epoch, message.stamp_ns)
        if self._guard is not None and session == self._guard[0] and epoch < self._guard[1]:
            text = f'arm_epoch went back from {self._guard[1]} to {epoch}'
            self._found.append(self._at('epoch', text, message))
        elif self._guard is not None and session != self._guard[0]:
            text = f'the guard was started again, arm_epoch {epoch}'
            self._found.append(self._at('epoch', text, message, problem=False))
        self._guard = session, epoch

    def findings(self) -> Iterator[Finding]:
        """Iterate over what was found."""
        yield from self._found
        for topic, count in self._lost.items():
            yield Finding('drop', f'{count} numbers of messages are missing', topic, count=count)
        yield from self._chunk_findings()
        yield from self._row_findings()
        for episode in self._started[:-1] if len(self._started) > 1 else self._started:
            if episode not in self._ended:
                yield Finding('outcome', f'episode {episode} has no outcome', problem=False)

    def _chunk_findings(self) -> Iterator[Finding]:
        topic = self._name('ActionChunk')
        if not self._observations and self._chunks:
            yield Finding('chunk', 'chunks, and no observations', topic, count=len(self._chunks))
            return
        before = _first(self._observations)
        for chunk_id, chunk in self._chunks.items():
            seen = decode.identity(chunk.observation_id)
            if seen in self._observations or seen.seq < before.get(seen.session, 0):
                continue
            if self._is_between('Observation', seen):
                continue
            text = f'chunk {chunk_id.seq} rests on observation {seen.seq}, which is not there'
            yield self._late('chunk', text, topic, self._chunk_times[chunk_id])

    def _row_findings(self) -> Iterator[Finding]:
        before = _first(set(self._chunks))
        for message, batch in self._rows:
            yield from self._epoch_of(message, int(batch.arm_epoch))
            chunk_id = decode.identity(batch.chunk_id)
            by_policy = [
                index for index, source in enumerate(batch.sources) if source in _OF_POLICY
            ]
            if not chunk_id.seq:
                if by_policy:
                    text = f'{len(by_policy)} rows of the policy without a chunk'
                    yield self._at('row', text, message)
                continue
            chunk = self._chunks.get(chunk_id)
            if chunk is None:
                if self._is_between('ActionChunk', chunk_id):
                    continue
                if not before or chunk_id.seq >= before.get(chunk_id.session, 0):
                    text = f'{len(batch.sources)} rows of chunk {chunk_id.seq}, which is not there'
                    yield self._at('row', text, message)
            elif batch.first_row + len(batch.sources) > chunk.horizon:
                last = batch.first_row + len(batch.sources) - 1
                text = f'row {last} of chunk {chunk_id.seq}, which has {chunk.horizon}'
                yield self._at('row', text, message)

    def _epoch_of(self, message: Message, epoch: int) -> Iterator[Finding]:
        if epoch == 0:
            return  # imported: there was no guard
        if not self._epochs:
            yield self._at('epoch', f'rows of arm_epoch {epoch}, and no guard/state', message)
        elif epoch not in self._epochs and epoch > min(self._epochs):
            text = f'rows of arm_epoch {epoch}, which the guard never announced'
            yield self._at('epoch', text, message)

    def _name(self, kind: str) -> str:
        return next((name for name, known in self._kinds.items() if known == kind), '')

    def _at(self, kind: str, text: str, message: Message, problem: bool = True) -> Finding:
        return self._late(kind, text, message.topic, message.stamp_ns, problem)

    def _late(
        self, kind: str, text: str, topic: str, stamp_ns: int, problem: bool = True
    ) -> Finding:
        at_s = (stamp_ns - self._bag.start_ns) / NS_PER_S
        return Finding(kind, text, topic, at_s, problem=problem)


def _first(ids: set[Id]) -> dict[int, int]:
    """Return the first number of each session: what is older was sent before the bag began."""
    first: dict[int, int] = {}
    for entry in ids:
        first[entry.session] = min(entry.seq, first.get(entry.session, entry.seq))
    return first
