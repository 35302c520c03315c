"""
A gamepad (sensor_msgs/Joy, as ROS 2's joy_node sends it): hold the dead-man button, steer with the
sticks.

The numbers of axes and buttons default to those of a gamepad of the Xbox layout.
"""

from dataclasses import dataclass
from typing import Any

from chunkpilot_core.config import option
from chunkpilot_core.errors import ConfigError, InvalidDataError
from chunkpilot_core.robot import Robot
from chunkpilot_core.teleop import base
from chunkpilot_core.teleop.runtime.steering import Steering, SteeringConfig, Stick
from chunkpilot_core.types import seconds
import numpy as np


class Joy(base.Source):
    """Drives while the dead-man button is held, and messages keep coming."""

    @dataclass(frozen=True)
    class Config(SteeringConfig):
        """Which axis does what: its number, negative = the other way round, counted from 1."""

        dead_man: int = option(5, 'button to hold, counted from 1', min=1, max=64)
        axes: tuple[int, ...] = option(
            (2, 1, 5, 0, 0, 4),
            'axes of x, y, z and the turns about them; counted from 1, 0 = none, negative = '
            'reversed',
            min=-64,
            max=64,
        )
        open_button: int = option(2, 'opens the gripper, counted from 1', min=1, max=64)
        close_button: int = option(1, 'closes the gripper, counted from 1', min=1, max=64)
        dead_zone: float = option(0.08, 'deflection that counts as none', min=0.0, max=0.9)
        timeout_s: float = option(
            0.5, 'without a message for longer nobody drives', unit='s', min=0.05, max=5.0
        )

    name = 'joy'
    listens = ('joy',)
    config: Config

    def __init__(self, robot: Robot, config: Any = None) -> None:
        super().__init__(robot, config)
        if len(self.config.axes) != 6:
            raise ConfigError(f'joy.axes: {self.config.axes} must have 6 values')
        self._steering = Steering(self.config)
        self._newest: base.Joystick | None = None
        self._heard_ns = 0
        self._held_before = True
        """Held since before the first message: it has to be released and pressed again."""

    @property
    def bounds(self) -> base.Bounds:
        """As configured."""
        return self._steering.bounds

    def take(self, what: str, data: Any, now_ns: int) -> None:
        """Take the newest state of the gamepad; a senseless one takes the last one away."""
        self._newest, last = None, self._newest
        if last is None:
            self._held_before = True
        if not isinstance(data, base.Joystick):
            raise InvalidDataError(f'{what}: {type(data).__name__}, expected a Joystick')
        config = self.config
        axes = max((abs(number) for number in config.axes), default=0)
        buttons = max(config.dead_man, config.open_button, config.close_button)
        for have, need, kind in (
            (len(data.axes), axes, 'axes'),
            (len(data.buttons), buttons, 'buttons'),
        ):
            if have < need:
                raise InvalidDataError(f'joy has {have} {kind}, number {need} is to be used')
        if not np.isfinite(data.axes).all() or np.abs(data.axes).max(initial=0.0) > 1.001:
            raise InvalidDataError(f'joy axes {data.axes}, allowed -1 to 1')
        self._newest, self._heard_ns = data, now_ns
        if not self._pressed(config.dead_man):
            self._held_before = False

    def let_go(self) -> None:
        """Wait for the dead-man button to be pressed anew."""
        self._held_before = self._newest is None or self._pressed(self.config.dead_man)
        self._steering.let_go()

    def aim(self, arm: base.Arm) -> base.Aim | str:
        """Steer."""
        if self._newest is None:
            return 'no gamepad was heard'
        if not 0 <= seconds(arm.now_ns - self._heard_ns) <= self.config.timeout_s:
            return 'the gamepad is silent'
        if not self._pressed(self.config.dead_man):
            return f'button {self.config.dead_man} is not held'
        if self._held_before:
            return f'release button {self.config.dead_man} and press it again'
        values = np.array([self._axis(number) for number in self.config.axes])
        opens = float(self._pressed(self.config.open_button))
        closes = float(self._pressed(self.config.close_button))
        return self._steering(Stick(values[:3], values[3:], opens - closes), arm)

    def _pressed(self, number: int) -> bool:
        return self._newest is not None and self._newest.buttons[number - 1]

    def _axis(self, number: int) -> float:
        if not number or self._newest is None:
            return 0.0
        value = self._newest.axes[abs(number) - 1] * (1.0 if number > 0 else -1.0)
        beyond = abs(value) - self.config.dead_zone
        return float(np.sign(value) * max(beyond, 0.0) / (1.0 - self.config.dead_zone))
