"""The seam of an import: whatever the format, episodes come out one after the other."""

from abc import ABC, abstractmethod
from collections.abc import Iterator

from chunkpilot_core.bags.imports.recording import Names, Recording


class Source(ABC):
    """Data of others, opened with a mapping; episodes can be iterated over more than once."""

    total: int
    """Episodes, or files where episodes are not known before they are read."""
    dt_s: float
    """Time between rows."""

    @abstractmethod
    def names(self) -> Names:
        """
        Return names of state, features and goal.

        :raises BagError: columns or topics that are not there
        """

    @abstractmethod
    def widths(self) -> list[int]:
        """Return the number of columns of each entry of the mapping's action."""

    @abstractmethod
    def recordings(self) -> Iterator[Recording]:
        """
        Iterate over the episodes, one in memory at a time.

        :raises BagError: damaged data, or data that does not fit the mapping
        """
