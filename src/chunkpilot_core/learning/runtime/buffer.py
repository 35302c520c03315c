"""A bounded memory of examples: the newest stay, sampling is uniform."""

from chunkpilot_core.errors import ConfigError
from chunkpilot_core.learning.runtime.windows import Windows
import numpy as np


class ReplayBuffer:
    """A ring of at most ``capacity`` examples; memory is taken once, when their shape is known."""

    def __init__(self, capacity: int) -> None:
        if capacity < 1:
            raise ConfigError(f'replay capacity {capacity}, must be at least 1')
        self.capacity = capacity
        self._ring: Windows | None = None
        self._next = 0
        self._filled = 0

    def __len__(self) -> int:
        return self._filled

    def add(self, windows: Windows) -> None:
        """Append examples, the oldest make room."""
        if not len(windows):
            return
        if self._ring is None:
            self._ring = _allocate(windows, self.capacity)
        kept = min(len(windows), self.capacity)
        places = (self._next + np.arange(kept)) % self.capacity
        for name in ('inputs', 'rows', 'valid'):
            getattr(self._ring, name)[places] = getattr(windows, name)[-kept:]
        self._next = int((self._next + kept) % self.capacity)
        self._filled = min(self._filled + kept, self.capacity)

    def sample(self, count: int, random: np.random.Generator) -> Windows:
        """
        Draw examples with replacement.

        :raises ConfigError: nothing to draw from
        """
        return self._take(random.integers(0, max(self._filled, 1), count))

    def all(self) -> Windows:
        """
        Return every example.

        :raises ConfigError: there are none
        """
        return self._take(np.arange(self._filled))

    def _take(self, places: 'np.typing.NDArray[np.int64]') -> Windows:
        if self._ring is None:
            raise ConfigError('the replay buffer is empty')
        ring = self._ring
        return Windows(ring.inputs[places], ring.rows[places], ring.valid[places])


def _allocate(windows: Windows, capacity: int) -> Windows:
    return Windows(
        *(
            np.zeros((capacity, *array.shape[1:]), array.dtype)
            for array in (windows.inputs, windows.rows, windows.valid)
        )
    )
