"""
The newest chunks of this epoch, as the guard hears them beside the commands made of them.

Checks of stage ``CHUNK`` are asked once for each; commands of a chunk that one of them refused are
not accepted.
"""

from collections import deque
from dataclasses import replace

from chunkpilot_core.errors import InvalidDataError
from chunkpilot_core.kinematics import Kinematics
from chunkpilot_core.prediction.due import due_row, due_targets
from chunkpilot_core.safety.base import Finding, HeardChunk
from chunkpilot_core.types import ActionChunk, ActionSpace, F64, Id, Reaction

KEPT = 4  # chunks: detectors compare each with the one before
REFUSED = 16


class Chunks:
    """Keeps what a policy answered lately; told the time by its caller."""

    def __init__(self, kinematics: Kinematics) -> None:
        self._kinematics = kinematics
        self.space: ActionSpace | None = None
        self.heard: deque[HeardChunk] = deque(maxlen=KEPT)
        self._epoch = 0
        self._refused: dict[Id, Finding] = {}

    def begin(self, epoch: int) -> bool:
        """Forget the chunks of any other epoch; returns whether this is another one."""
        if epoch == self._epoch:
            return False
        self._epoch = epoch
        self.heard.clear()
        self._refused.clear()
        return True

    def take(self, chunk: ActionChunk, now_ns: int, commanded: F64) -> Finding | None:
        """
        Keep a chunk, or say why it is none.

        Parts of one answer replace each other, under the id that commands carry: the first one's.

        :param commanded: joints sent last, shape (J,)
        """
        if self.space is None:
            self._keep(HeardChunk(chunk, now_ns))
            return None
        try:
            chunk.validate(self.space)
        except InvalidDataError as error:
            found = Finding(Reaction.REJECT_CHUNK, str(error), 'chunk', check='chunk')
            self.refuse(chunk.id, found)
            return found
        due = due_row(chunk, now_ns)
        targets = due_targets(self.space, self._kinematics, chunk.actions, due, commanded)
        self._keep(HeardChunk(chunk, now_ns, int(due), targets))
        return None

    def refuse(self, chunk_id: Id, found: Finding) -> None:
        """Accept no command of a chunk from now on."""
        self._refused[chunk_id] = replace(found, fault=False)
        while len(self._refused) > REFUSED:
            del self._refused[next(iter(self._refused))]

    def refusal(self, chunk_id: Id) -> Finding | None:
        """Return why no command of this chunk is accepted, None if they may be."""
        return self._refused.get(chunk_id) if self._refused else None

    def _keep(self, heard: HeardChunk) -> None:
        last = self.heard[-1] if self.heard else None
        if last is not None and last.chunk.request_id == heard.chunk.request_id:
            self.heard.pop()
            heard = heard.named(last.chunk.id)
        self.heard.append(heard)
