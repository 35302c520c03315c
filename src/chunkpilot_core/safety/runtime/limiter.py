"""
Closed-form position, velocity and acceleration limiter, exact in discrete time.

Clamping velocity and then acceleration is no limiter: it overshoots. This one knows at every tick
how fast it may be to still stop in time. A target that can be followed within the limits is passed
through bit for bit.
"""

from dataclasses import dataclass
from typing import NamedTuple

from chunkpilot_core.errors import ConfigError
from chunkpilot_core.robot import Robot
from chunkpilot_core.types import F64
import numpy as np

SLACK = 2e-12  # [rad/s] rounding of a division
REST = 1e-9  # [rad/s] below this the arm stands
INWARD_SPEED = 0.1  # [rad/s] of a joint outside its soft limits, towards them


class Step(NamedTuple):
    """Next setpoint, (J,) each; whether the arm left the straight line to its target."""

    positions: F64
    velocities: F64
    direction_changed: bool


@dataclass(frozen=True, slots=True)
class _Box:
    """Velocities allowed in a tick, (J,) each: by speed and position limits, by acceleration."""

    slowest: F64
    fastest: F64
    reachable_low: F64
    reachable_high: F64

    def clip(self, velocity: F64) -> F64:
        """Return the nearest allowed velocity; acceleration has the last word."""
        inside = np.minimum(np.maximum(velocity, self.slowest), self.fastest)
        nearest: F64 = np.minimum(np.maximum(inside, self.reachable_low), self.reachable_high)
        return nearest

    def ends(self) -> tuple[F64, F64]:
        """Return lowest and highest allowed velocity; acceleration overrules the other limits."""
        return self.clip(self.slowest), self.clip(self.fastest)


class Limiter:
    """Moves a commanded position towards a target within the limits of a robot's joints."""

    def __init__(self, robot: Robot, margin: float = 0.05) -> None:
        """
        Read the limits.

        :param margin: soft position limits of the arm lie this far inside the hard ones [rad]
        :raises ConfigError: a limit is not finite, or the margin leaves a joint no room
        """
        self.joints = robot.joints
        self.n_arm = len(robot.arm_joints)
        self.hard_lower, self.hard_upper = (
            robot.limit_array('min_position'),
            robot.limit_array('max_position'),
        )
        inset = np.where(np.arange(len(self.joints)) < self.n_arm, margin, 0.0)
        self.lower, self.upper = self.hard_lower + inset, self.hard_upper - inset
        self.max_velocity = robot.limit_array('max_velocity')
        self.max_acceleration = robot.limit_array('max_acceleration')
        # Near the ends of its range a joint may have to be slower. The arm can't brake harder than
        # its acceleration, so that a larger deceleration there is cut down to it.
        self._offset, limit = (
            robot.limit_array(name) for name in ('velocity_offset', 'deceleration_limit')
        )
        self._slow_ends = np.isfinite(limit)
        self._eases = bool(self._slow_ends.any())
        self._easing = np.where(self._slow_ends, np.minimum(limit, self.max_acceleration), 0.0)
        for name in ('lower', 'upper', 'max_velocity', 'max_acceleration'):
            if not np.all(np.isfinite(getattr(self, name))):
                raise ConfigError(
                    f'limits of {robot.name}: {name} {getattr(self, name)} not finite'
                )
        if not np.all(self.lower < self.upper):
            joint = self.joints[int(np.argmin(self.upper - self.lower))]
            raise ConfigError(
                f'soft position limits of {joint}: a margin of {margin} leaves no room'
            )

    def step(
        self,
        position: F64,
        velocity: F64,
        target: F64,
        target_velocity: F64,
        dt: float,
        scale: float = 1.0,
        effort: float = 1.0,
    ) -> Step:
        """
        Go towards a target for one tick, without overshoot of a target that keeps its velocity.

        In the frame moving with the target the way left is closed by the fastest dead-beat law;
        the joints of the arm are scaled together, so that it stays straight where limits allow.

        :param position: commanded so far, shape (J,) [rad, m]
        :param velocity: of the last tick, shape (J,)
        :param target: shape (J,), finite; beyond the soft limits it is clipped to them
        :param target_velocity: how the target moves on, shape (J,)
        :param dt: length of the tick [s]
        :param scale: of the arm's velocity limits, 0 to 1
        :param effort: of the acceleration used to reach the target, above 0 to 1
        """
        n = self.n_arm
        aim = np.minimum(np.maximum(target, self.lower), self.upper)
        drift = np.where(aim == target, target_velocity, 0.0)
        box = self._box(position, velocity, dt, scale, effort)
        direct = (aim - position) / dt
        gain = self.max_acceleration * dt
        low, high = box.ends()
        follows = (
            (np.abs(direct - drift) <= gain + SLACK)
            & (direct >= low - SLACK)
            & (direct <= high + SLACK)
        )
        if follows.all():
            return Step(aim, direct, False)
        way = aim - drift * dt - position
        closing = stopping_speed(np.abs(way), effort * self.max_acceleration, dt)
        wish = np.where(follows, direct, box.clip(drift + np.sign(way) * closing))
        changed = False
        if not follows[:n].all():
            share = _share(way[:n] / dt, closing[:n], low[:n] - drift[:n], high[:n] - drift[:n])
            changed = share is None
            if share is not None:
                together = drift[:n] + share * (way[:n] / dt)
                wish[:n] = np.minimum(np.maximum(together, low[:n]), high[:n])
                follows[:n] = share == 1.0
        moved = np.where(follows, aim, position + wish * dt)
        return Step(moved, wish, changed)

    def brake(self, position: F64, velocity: F64, dt: float) -> Step:
        """Slow down for one tick along the present direction, all arm joints to rest together."""
        n = self.n_arm
        lost = self.max_acceleration * dt
        ticks = float((np.abs(velocity[:n]) / lost[:n]).max())
        wish = velocity - np.minimum(np.maximum(velocity, -lost), lost)
        wish[:n] = velocity[:n] * (1.0 - 1.0 / ticks) if ticks > 1.0 else 0.0
        allowed = self._box(position, velocity, dt, 1.0, 1.0).clip(wish)
        changed = bool(np.abs(allowed[:n] - wish[:n]).max() > SLACK)
        return Step(position + allowed * dt, allowed, changed)

    def limited(self, position: F64, velocity: F64, wish: F64, dt: float) -> Step:
        """Return the setpoint nearest to a velocity wish (J,) that the limits allow."""
        allowed = self._box(position, velocity, dt, 1.0, 1.0).clip(wish)
        return Step(position + allowed * dt, allowed, False)

    def stop_position(self, position: F64, velocity: F64, dt: float) -> F64:
        """Return where :meth:`brake` would bring the joints to rest, shape (J,)."""
        n = self.n_arm
        ticks = float((np.abs(velocity[:n]) / (self.max_acceleration[:n] * dt)).max())
        stop: F64 = position.copy()
        if ticks > 1.0:
            whole = int(ticks)
            stop[:n] += velocity[:n] * (dt * (whole - whole * (whole + 1) / (2.0 * ticks)))
        return stop

    def at_rest(self, velocity: F64) -> bool:
        """Whether nothing is commanded to move any more."""
        return bool(np.abs(velocity).max() <= REST)

    def _box(self, position: F64, velocity: F64, dt: float, scale: float, effort: float) -> _Box:
        n, gain = self.n_arm, self.max_acceleration * dt
        speed = self.max_velocity.copy()
        speed[:n] *= scale
        room = np.array((self.upper - position, position - self.lower))
        outside = room < -REST
        if outside.any():
            speed = np.where(outside.any(axis=0), np.minimum(speed, INWARD_SPEED), speed)
        up, down = braking_speed(np.maximum(room, 0.0), self.max_acceleration, dt)
        if self._eases:
            up = np.minimum(up, self._near_end(self.hard_upper - position, dt))
            down = np.minimum(down, self._near_end(position - self.hard_lower, dt))
        slowest, fastest = -np.minimum(speed, down), np.minimum(speed, up)
        if effort < 1.0:  # speeding up gently; slowing down may always use all there is
            soft = velocity[:n], effort * gain[:n]
            fastest[:n] = np.minimum(fastest[:n], np.maximum(soft[0], 0.0) + soft[1])
            slowest[:n] = np.maximum(slowest[:n], np.minimum(soft[0], 0.0) - soft[1])
        return _Box(slowest, fastest, velocity - gain, velocity + gain)

    def speed_limits(self, position: F64, dt: float) -> F64:
        """Return the largest speed of each joint towards the nearer end of its range, (J,)."""
        if not self._eases:
            return self.max_velocity
        room = np.minimum(self.hard_upper - position, position - self.hard_lower)
        return np.minimum(self.max_velocity, self._near_end(room, dt))

    def limits_along(self, position: F64, velocity: F64) -> F64:
        """Return how fast joints may be where they are, moving as they do, shape (..., J)."""
        if not self._eases:
            return np.broadcast_to(self.max_velocity, np.shape(position))
        room = np.where(velocity > 0.0, self.hard_upper - position, position - self.hard_lower)
        return np.minimum(self.max_velocity, self._near_end(room, 0.0))

    def _near_end(self, room: F64, dt: float) -> F64:
        """
        Return how fast joints may be with so much room, (J,), where the limit depends on it.

        After the tick the room is smaller, and so is the limit: v <= sqrt(2 d (room - v dt)) - o,
        solved for v.
        """
        lost = self._easing * dt
        inside = lost * lost + 2.0 * self._easing * (np.maximum(room, 0.0) + self._offset * dt)
        speed = np.maximum(np.sqrt(inside) - lost - self._offset, 0.0)
        limited: F64 = np.where(self._slow_ends, speed, np.inf)
        return limited


def _share(direct: F64, closing: F64, low: F64, high: F64) -> float | None:
    """
    Return the largest share of the way that all joints can go together, None if none.

    :param direct: speed that would close the whole way in this tick, shape (J,)
    :param closing: fastest speed from which the target is not overshot, shape (J,)
    :param low: slowest closing velocity allowed in this tick, shape (J,)
    :param high: fastest one, shape (J,)
    """
    moving = np.abs(direct) > SLACK
    if not np.all(moving | ((low <= SLACK) & (high >= -SLACK))):
        return None
    if not moving.any():
        return 1.0
    rate = direct[moving]
    first, second = low[moving] / rate, high[moving] / rate
    least = float(np.minimum(first, second).max())
    most = min(1.0, float(np.maximum(first, second).min()))
    most = min(most, float((closing[moving] / np.abs(rate)).min()))
    return None if least > most + 1e-9 or most < 0.0 else most


def stopping_speed(way: F64, acceleration: F64, dt: float) -> F64:
    """
    Return the largest speed from which ticks of constant deceleration end after ``way``.

    :param way: distance to the target, shape (J,), not negative
    :param acceleration: shape (J,)
    :param dt: length of a tick [s]
    """
    unit = acceleration * dt * dt
    ticks = np.floor((np.sqrt(1.0 + 8.0 * way / unit) - 1.0) / 2.0)
    speed: F64 = (way / dt + acceleration * dt * ticks * (ticks + 1.0) / 2.0) / (ticks + 1.0)
    return speed


def braking_speed(room: F64, acceleration: F64, dt: float) -> F64:
    """
    Return the largest speed for one tick after which the room left still suffices to brake.

    A little more careful than :func:`stopping_speed`, so that it holds whatever the length of the
    ticks to come.

    :param room: distance to a limit, shape (..., J), not negative
    """
    gain = acceleration * dt
    speed: F64 = np.sqrt(gain * gain + 2.0 * acceleration * room) - gain
    return speed
