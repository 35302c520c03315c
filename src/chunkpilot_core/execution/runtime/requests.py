"""Requests under way: how many, time-outs, and which answers still count."""

from dataclasses import dataclass

from chunkpilot_core.types import ChunkRequest, Id, nanoseconds

KEPT = 8


@dataclass(slots=True)
class _Open:
    request: ChunkRequest
    heard_ns: int  # when it was sent, or when rows of it came last
    timed_out: bool = False
    superseded_by: int = 0  # seq of a newer request that was answered first
    streaming: bool = False  # rows of the answer are there, more are to come


class Requests:
    """
    Ids given out and not yet answered in full.

    A timed-out request no longer keeps the next one from being sent, but its answer counts until a
    newer one was accepted: a slow policy is not a dead one. An answer that comes after that of a
    newer request does not count any more; until it is there its request is still under way.
    """

    def __init__(self, session: int) -> None:
        self.session = session
        self.timeouts = 0
        self._seq = 0
        self._open: dict[int, _Open] = {}

    def next_id(self) -> Id:
        """Return the id of the request to be sent."""
        return Id(self.session, self._seq + 1)

    def sent(self, request: ChunkRequest) -> None:
        """Note a request made with :meth:`next_id`."""
        self._seq = request.id.seq
        self._open[self._seq] = _Open(request, request.stamp_ns)
        for seq in list(self._open)[:-KEPT]:
            del self._open[seq]

    @property
    def under_way(self) -> int:
        """How many requests the policy works at, as far as is known."""
        return sum(not entry.timed_out for entry in self._open.values())

    @property
    def awaited(self) -> list[ChunkRequest]:
        """Requests whose answer will run, oldest first."""
        return [
            entry.request
            for entry in self._open.values()
            if not (entry.timed_out or entry.superseded_by or entry.streaming)
        ]

    def expire(self, now_ns: int, timeout_s: float) -> None:
        """Give up waiting for requests of which nothing was heard for ``timeout_s``."""
        for seq, entry in list(self._open.items()):
            if not entry.timed_out and now_ns - entry.heard_ns > nanoseconds(timeout_s):
                entry.timed_out = True
                self.timeouts += 1
                if entry.superseded_by:
                    del self._open[seq]

    def drop(self) -> None:
        """Forget all: whatever is answered from now on is refused."""
        self._open.clear()

    def find(self, request_id: Id) -> ChunkRequest | str:
        """Return the request that is answered, or why the answer does not count."""
        if request_id.session != self.session:
            return f'it answers session {request_id.session}, this is {self.session}'
        entry = self._open.get(request_id.seq)
        if entry is not None:
            newer = entry.superseded_by
            return f'superseded: request {newer} was answered first' if newer else entry.request
        if request_id.seq > self._seq:
            return f'request {request_id.seq} was never sent'
        return f'request {request_id.seq} is answered, superseded or dropped'

    def take_superseded(self, request_id: Id) -> ChunkRequest | None:
        """Return and close a request whose answer came too late to run, None for any other."""
        entry = self._open.get(request_id.seq) if request_id.session == self.session else None
        if entry is None or not entry.superseded_by:
            return None
        del self._open[request_id.seq]
        return entry.request

    def close(self, request_id: Id, *, accepted: bool) -> None:
        """Take a whole answer; an accepted one supersedes everything older."""
        self._open.pop(request_id.seq, None)
        if accepted:
            self._supersede(request_id.seq)

    def heard(self, request_id: Id, now_ns: int, *, accepted: bool = True) -> None:
        """
        Take rows of an answer of which more are to come; they supersede everything older.

        :param accepted: whether any of them run; else it is only known that more will come
        """
        entry = self._open[request_id.seq]
        entry.heard_ns, entry.timed_out = now_ns, False
        if accepted:
            entry.streaming = True
            self._supersede(request_id.seq)

    def _supersede(self, newest: int) -> None:
        for seq in [seq for seq in self._open if seq < newest]:
            older = self._open[seq]
            if older.timed_out or older.streaming:
                del self._open[seq]
            else:
                older.superseded_by = newest
