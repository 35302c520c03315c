"""Where the arm was and where it was sent, for times that have passed."""

from collections import deque

from chunkpilot_core.execution.runtime.expectation import Arm
from chunkpilot_core.types import F64
import numpy as np

KEPT = 512  # ticks


class Poses:
    """Measured and commanded targets (T,), tick by tick."""

    def __init__(self) -> None:
        self._ticks: deque[tuple[int, F64, F64]] = deque(maxlen=KEPT)

    def clear(self) -> None:
        """Forget all."""
        self._ticks.clear()

    def note(self, now_ns: int, measured: F64, commanded: F64) -> None:
        """Remember a tick; times only go forward."""
        self._ticks.append((now_ns, measured, commanded))

    def at(self, ros_ns: int) -> tuple[F64, F64] | None:
        """Return measured and commanded target at a time, None where nothing is known."""
        for stamp_ns, measured, commanded in reversed(self._ticks):
            if stamp_ns <= ros_ns:
                return measured, commanded
        return self._ticks[0][1:] if self._ticks else None

    def arm(self, ros_ns: int, lag_ns: int) -> Arm | None:
        """
        Return where the arm was at a time, and where it was sent until then.

        :param lag_ns: how far behind its commands the arm may be
        """
        path, measured = [], None
        for stamp_ns, pose, commanded in reversed(self._ticks):
            if stamp_ns > ros_ns:
                continue
            if measured is None:
                measured = pose
            elif stamp_ns < ros_ns - lag_ns:
                break
            path.append(commanded)
        return None if measured is None else Arm(measured, np.array(path))
