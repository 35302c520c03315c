"""A robot as LeRobot's clients see one, without being theirs: it needs no LeRobot to import."""

import time
from typing import Any

from benchmarks.execution import record
from benchmarks.execution.reference import DEGREES, F64, JOINTS
import numpy as np

NAMES = tuple(f'joint{i}.pos' for i in range(1, JOINTS + 1))
CLOCK = 'clock.pos'


class BenchRobot:
    """
    Six joints that follow every command, in degrees (what LeRobot's arms report) or radians.

    :param clock: adds the time of the observation to the state, for policies that get no other
    """

    name = robot_type = 'bench'
    cameras: dict[str, Any] = {}  # noqa: RUF012
    is_connected = True

    def __init__(self, unit: str, *, clock: bool = False) -> None:
        self.recorder = record.Recorder()
        self.scale = DEGREES if unit == 'degrees' else 1.0
        self._clock = clock
        self._start_s = 0.0  # time.time() at which the run begins
        self._action: F64 | None = None  # sent in the tick under way
        self._ticked_s: float | None = None
        self.action_features = dict.fromkeys(NAMES, float)
        self.observation_features = dict.fromkeys(NAMES + (CLOCK,) * clock, float)

    def begin(self, start_s: float) -> None:
        """Let the run begin at a time of ``time.time()``, and wait for it."""
        self._start_s = start_s
        time.sleep(max(0.0, start_s - time.time()))

    @property
    def now_s(self) -> float:
        """Seconds since the run began."""
        return time.time() - self._start_s

    def tick(self) -> None:
        """Note the end of the tick before and the begin of one; called once per loop."""
        now_s = self.now_s
        if self._ticked_s is not None:
            sent_s, action = (self._ticked_s, None) if self._action is None else self._sent()
            self.recorder.tick(sent_s, action)
        self._ticked_s, self._action = now_s, None

    def _sent(self) -> tuple[float, F64]:
        assert self._action is not None
        return self._sent_s, self._action

    def get_observation(self) -> dict[str, float]:
        now_s = self.now_s
        pose = self._action if self._action is not None else self.recorder.pose(now_s)
        found = dict(zip(NAMES, (self.scale * pose).tolist(), strict=True))
        return {**found, CLOCK: now_s} if self._clock else found

    def send_action(self, action: dict[str, float]) -> dict[str, float]:
        self._action = np.array([action[name] for name in NAMES]) / self.scale
        self._sent_s = self.now_s
        return action

    def connect(self, calibrate: bool = True) -> None:
        pass

    def disconnect(self) -> None:
        pass


def version_of_lerobot() -> str:
    """Return which LeRobot is measured."""
    from importlib.metadata import version

    return version('lerobot')
