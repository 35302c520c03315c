"""One episode of other people's data on a grid of rows, before it is written as a bag."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from chunkpilot_core.types import EpisodeOutcome, F32, F64
import numpy as np
from numpy.typing import NDArray

MAX_ROWS = 1_000_000  # of one episode


@dataclass(frozen=True, slots=True)
class Picture:
    """A compressed image, JPEG or PNG."""

    camera: str
    stamp_ns: int
    format: str
    data: bytes


def _no_images() -> Iterator[Picture]:
    return iter(())


@dataclass(frozen=True, slots=True)
class Recording:
    """
    T rows, ``dt_s`` apart: ``stamps_ns`` (T,) are their starts.

    ``state`` (T, S), ``features`` (T, F), ``goal`` (T, G) are what was known then; ``actions``
    (T, A), in the units of the source, are what was sent during the row. ``images`` yields the
    episode's images in order of time, when it is called.
    """

    name: str
    dt_s: float
    stamps_ns: NDArray[np.int64]
    state: F32
    features: F32
    goal: F32
    actions: F64
    outcome: EpisodeOutcome = EpisodeOutcome.UNKNOWN
    reward: float = 0.0
    task_text: str = ''
    images: Callable[[], Iterator[Picture]] = _no_images
    origin: dict[str, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.stamps_ns)


@dataclass(frozen=True, slots=True)
class Names:
    """Names of state, features and goal."""

    state: tuple[str, ...]
    features: tuple[str, ...]
    goal: tuple[str, ...]
