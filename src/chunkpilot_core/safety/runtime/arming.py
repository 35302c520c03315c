"""What has to be true before the arm is armed or reset, and before a setpoint is sent."""

from chunkpilot_core.robot import Robot
from chunkpilot_core.safety.base import Finding, Measured, Situation
from chunkpilot_core.safety.runtime.limiter import Limiter, SLACK, Step
from chunkpilot_core.types import F64, JointState, NS_PER_S, Reaction, seconds
import numpy as np

FRESH_S = 0.1
LARGEST = 100.0  # [rad, m] of a position that a joint can have; more is no measurement
STILL = 0.02  # [rad/s]
MOVED = 0.002  # [m] of a finger
ROUNDING = 1e-4  # [rad] beyond a hard limit that counts as on it
RECOVERABLE = 0.1  # [rad] beyond a hard limit from which the arm may be brought back


def measure(state: JointState, robot: Robot, before: Measured | None) -> Measured | str:
    """
    Bring a joint state into the robot's order.

    :param before: the newest one; gives the velocities of a driver that sends none (NaN)
    :returns: the measurement, or what is wrong with the message
    """
    if len(set(state.names)) != len(state.names):
        return f'joint state names a joint twice: {list(state.names)}'
    size = len(state.names)
    if not size == len(state.positions) == len(state.velocities) or len(state.efforts) not in (
        0,
        size,
    ):
        return (
            f'joint state of {size} names, {len(state.positions)} positions, '
            f'{len(state.velocities)} velocities, {len(state.efforts)} efforts'
        )
    index = {name: i for i, name in enumerate(state.names)}
    missing = [name for name in robot.joints if name not in index]
    if missing:
        return f'joint state lacks {missing}'
    order = [index[name] for name in robot.joints]
    positions, velocities = state.positions[order], state.velocities[order]
    bad = np.flatnonzero(~(np.abs(positions) <= LARGEST))  # NaN is bad too
    if bad.size:
        return f'measured position of {robot.joints[bad[0]]} is {positions[bad[0]]}'
    if np.isnan(velocities).any():
        velocities = _differences(positions, state.stamp_ns, before)
    bad = np.flatnonzero(~np.isfinite(velocities))
    if bad.size:
        return f'measured velocity of {robot.joints[bad[0]]} is {velocities[bad[0]]}'
    efforts = state.efforts[order] if len(state.efforts) else None
    if efforts is None or np.isnan(efforts).all():  # as ros2_control says "no such interface"
        efforts = None
    elif not np.isfinite(efforts).all():
        bad = np.flatnonzero(~np.isfinite(efforts))
        return f'measured effort of {robot.joints[bad[0]]} is {efforts[bad[0]]}'
    same = before is not None and np.array_equal(before.positions, positions)
    changed_ns = before.changed_ns if same and before is not None else state.stamp_ns
    return Measured(state.stamp_ns, positions, velocities, changed_ns, efforts)


def _differences(positions: F64, stamp_ns: int, before: Measured | None) -> F64:
    if before is None or stamp_ns <= before.stamp_ns:
        return np.full(len(positions), np.inf) if before is None else before.velocities
    rate: F64 = (positions - before.positions) / ((stamp_ns - before.stamp_ns) / NS_PER_S)
    return rate


def why_not(situation: Situation, pressed: list[str], beyond: float | None) -> str:
    """
    Return what stands in the way of arming or resetting, '' for nothing.

    :param pressed: emergency stops that are asserted
    :param beyond: how far the arm may be outside its hard position limits [rad]; None: anywhere
    """
    if pressed:
        return f'emergency stop pressed: {", ".join(pressed)}'
    measured, limiter = situation.measured, situation.limiter
    if measured is None or situation.joint_error:
        return situation.joint_error or 'no joint state yet'
    if abs(seconds(situation.now_ns - measured.stamp_ns)) > FRESH_S:
        return 'joint state is not fresh'
    n = limiter.n_arm
    fastest = int(np.argmax(np.abs(measured.velocities[:n])))
    if abs(measured.velocities[fastest]) >= STILL:
        return f'the robot moves: {limiter.joints[fastest]} is not below {STILL} rad/s'
    if beyond is None:
        return ''
    outside = _outside(measured.positions, limiter)[:n]
    worst = int(np.argmax(outside))
    if outside[worst] <= beyond:
        return ''
    value = float(measured.positions[worst])
    reason = f'{limiter.joints[worst]} = {value:.4f} rad is outside its hard position limits'
    if outside[worst] <= RECOVERABLE:
        return f'{reason}; guard/recover lets it move inwards'
    return f'{reason} by more than {RECOVERABLE} rad, move it by hand'


def _outside(position: F64, limiter: Limiter) -> F64:
    """Return how far joints are beyond their hard limits, shape (J,); negative: within."""
    return np.maximum(position - limiter.hard_upper, limiter.hard_lower - position)


def start_position(
    measured: F64, squeeze: tuple[F64, F64] | None, limiter: Limiter, beyond: float = ROUNDING
) -> F64:
    """
    Return where commanding starts, shape (J,): as measured, but a grip keeps squeezing.

    :param squeeze: fingers as commanded and as measured when the arm was last disarmed
    :param beyond: how far the arm may be outside its hard limits [rad]
    """
    start: F64 = measured.copy()
    n = limiter.n_arm
    if squeeze is not None:
        commanded, found = squeeze
        unmoved = float(np.abs(found - measured[n:]).max(initial=0.0)) <= MOVED
        if unmoved and np.all(commanded <= measured[n:] + MOVED):
            start[n:] = commanded
    start[n:] = np.clip(start[n:], limiter.lower[n:], limiter.upper[n:])
    if beyond <= ROUNDING:  # counts as on the limit: everything after is exact
        start[:n] = np.clip(start[:n], limiter.hard_lower[:n], limiter.hard_upper[:n])
    return start


def assert_output(
    limiter: Limiter, position: F64, velocity: F64, step: Step, dt: float
) -> Finding | None:
    """Return what is wrong with a setpoint, None if nothing: finds bugs of the guard itself."""
    moved = np.abs(step.positions - position)
    changed = np.abs(step.velocities - velocity)
    beyond = _outside(step.positions, limiter)
    outward = np.maximum(_outside(position, limiter), 0.0) + 1e-9  # no farther than it is already
    for what, values, limits in (
        ('position change', moved, limiter.max_velocity * dt * (1 + 1e-9) + SLACK),
        ('velocity change', changed, limiter.max_acceleration * dt * (1 + 1e-9) + 10 * SLACK),
        ('distance beyond the hard limit', beyond, outward),
    ):
        wrong = np.flatnonzero(~(values <= limits))  # NaN is wrong too
        if wrong.size:
            i = int(wrong[0])
            return Finding(
                Reaction.STOP,
                f'{what} of {limiter.joints[i]} would be {values[i]:.6g}, allowed {limits[i]:.6g}',
                limiter.joints[i],
                float(values[i]),
                float(limits[i]),
                check='output_assert',
            )
    return None
