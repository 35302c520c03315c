"""What a check of a bag found."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong with a bag, or worth knowing."""

    kind: str
    """In one word: gap, clock, drop, definition, type, count, chunk, row, epoch, ..."""
    text: str
    topic: str = ''
    at_s: float | None = None
    """Where, from the start of the bag."""
    count: int = 1
    problem: bool = True
    """Whether the bag is not what it should be; else a note."""

    def to_json(self) -> dict[str, Any]:
        """Return it for machines."""
        return {
            'kind': self.kind,
            'problem': self.problem,
            'topic': self.topic,
            'at_s': None if self.at_s is None else round(self.at_s, 3),
            'count': self.count,
            'text': self.text,
        }
