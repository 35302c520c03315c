"""Requests under way: one at a time, time-outs, and which answers still count."""

from dataclasses import dataclass

from chunkpilot_core.types import ChunkRequest, Id, nanoseconds

KEPT = 8


@dataclass(slots=True)
class _Open:
    request: ChunkRequest
    timed_out: bool = False


class Requests:
    """
    Ids given out and not yet answered.

    A timed-out request no longer keeps the next one from being sent, but its answer counts until a
    newer one was accepted: a slow policy is not a dead one.
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
        self._open[self._seq] = _Open(request)
        for seq in list(self._open)[:-KEPT]:
            del self._open[seq]

    @property
    def in_flight(self) -> ChunkRequest | None:
        """The newest request that is waited for."""
        waiting = [entry.request for entry in self._open.values() if not entry.timed_out]
        return waiting[-1] if waiting else None

    def expire(self, now_ns: int, timeout_s: float) -> None:
        """Give up waiting for requests sent longer ago than ``timeout_s``."""
        for entry in self._open.values():
            if not entry.timed_out and now_ns - entry.request.stamp_ns > nanoseconds(timeout_s):
                entry.timed_out = True
                self.timeouts += 1

    def drop(self) -> None:
        """Forget all: whatever is answered from now on is refused."""
        self._open.clear()

    def find(self, request_id: Id) -> ChunkRequest | str:
        """Return the request that is answered, or why the answer does not count."""
        if request_id.session != self.session:
            return f'it answers session {request_id.session}, this is {self.session}'
        if request_id.seq in self._open:
            return self._open[request_id.seq].request
        if request_id.seq > self._seq:
            return f'request {request_id.seq} was never sent'
        return f'request {request_id.seq} is answered, superseded or dropped'

    def close(self, request_id: Id, *, accepted: bool) -> None:
        """Take an answer; an accepted one also closes everything older."""
        self._open.pop(request_id.seq, None)
        if accepted:
            for seq in [seq for seq in self._open if seq < request_id.seq]:
                del self._open[seq]
