"""
Keys typed in a terminal: space takes control, any unknown key gives it back.

A terminal tells of presses only, not of releases: a key counts as held while it repeats, and the
arm stops a moment after.
"""

from dataclasses import dataclass
from typing import Any

from chunkpilot_core.config import option
from chunkpilot_core.errors import InvalidDataError
from chunkpilot_core.robot import Robot
from chunkpilot_core.teleop import base
from chunkpilot_core.teleop.runtime.steering import Steering, SteeringConfig, Stick
from chunkpilot_core.types import seconds
import numpy as np

MOVES = {
    'w': (0, 1.0),
    's': (0, -1.0),
    'a': (1, 1.0),
    'd': (1, -1.0),
    'r': (2, 1.0),
    'f': (2, -1.0),
    'u': (3, 1.0),
    'o': (3, -1.0),
    'i': (4, 1.0),
    'k': (4, -1.0),
    'j': (5, 1.0),
    'l': (5, -1.0),
}
GRIPS = {'e': 1.0, 'q': -1.0}
CONTROL = ' '


class Keyboard(base.Source):
    """Drives from a press of space until another key that means nothing, or a long pause."""

    @dataclass(frozen=True)
    class Config(SteeringConfig):
        """How a press becomes a motion."""

        first_hold_s: float = option(
            0.15,
            'a key counts as held so long after its press; terminals repeat after about 0.5 s',
            unit='s',
            min=0.02,
            max=1.0,
        )
        hold_s: float = option(
            0.12, 'and so long after each repetition', unit='s', min=0.02, max=1.0
        )
        idle_s: float = option(
            20.0, 'without a key for so long control is given back', unit='s', min=1.0, max=600.0
        )

    name = 'keyboard'
    listens = ('keys',)
    help = (
        'space: take control    w s: x    a d: y    r f: z    u o, i k, j l: turn    '
        'e q: open, close    any other key: give control back'
    )
    config: Config

    def __init__(self, robot: Robot, config: Any = None) -> None:
        super().__init__(robot, config)
        self._steering = Steering(self.config)
        self.let_go()

    @property
    def bounds(self) -> base.Bounds:
        """As configured."""
        return self._steering.bounds

    def take(self, what: str, data: Any, now_ns: int) -> None:
        """Take typed text, key by key."""
        if not isinstance(data, str):
            raise InvalidDataError(f'{what}: {type(data).__name__}, expected text')
        for key in data.lower():
            self._typed_ns = now_ns
            if key in MOVES or key in GRIPS:
                again = 0 <= now_ns - self._until_ns.get(key, -(10**18)) < 600_000_000
                hold_s = self.config.hold_s if again else self.config.first_hold_s
                self._until_ns[key] = now_ns + round(hold_s * 1e9)
            elif key == CONTROL:
                self._engaged = True
            else:
                self._engaged = False

    def let_go(self) -> None:
        """Wait for space."""
        self._engaged = False
        self._typed_ns = 0
        self._until_ns: dict[str, int] = {}
        self._steering.let_go()

    def aim(self, arm: base.Arm) -> base.Aim | str:
        """Steer with the keys that are held."""
        if not self._engaged:
            return 'press space to take control'
        if not 0 <= seconds(arm.now_ns - self._typed_ns) <= self.config.idle_s:
            return f'no key for {self.config.idle_s:g} s'
        wish = np.zeros(6)
        grip = 0.0
        for key, until_ns in self._until_ns.items():
            if arm.now_ns < until_ns:
                if key in GRIPS:
                    grip += GRIPS[key]
                else:
                    axis, sign = MOVES[key]
                    wish[axis] += sign
        wish = np.clip(wish, -1.0, 1.0)
        return self._steering(Stick(wish[:3], wish[3:], float(np.clip(grip, -1.0, 1.0))), arm)
