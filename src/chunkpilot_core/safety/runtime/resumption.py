"""
Puts a guard into the state that a verdict tells of, to go on from the middle of a recorded run.

Exact where the arm rests and nothing was commanded since it was armed, or released from a hold:
then a verdict tells all that the decisions to come rest on, but for what checks remember of the
last seconds.
"""

import math

from chunkpilot_core.safety.runtime.guard import Guard
from chunkpilot_core.types import ArmState, nanoseconds, SafetyVerdict
import numpy as np


def settled(verdict: SafetyVerdict) -> bool:
    """Return whether a verdict tells enough to go on from it."""
    if verdict.state is ArmState.DISARMED:
        return True
    return (
        verdict.state is ArmState.ARMED
        and math.isnan(verdict.command_age_s)
        and not verdict.sent_velocity.any()
        and not verdict.source
    )


def resume(guard: Guard, verdict: SafetyVerdict) -> None:
    """
    Let a guard, which has just done the same tick, be where the verdict says.

    :param guard: its private parts are set, as nobody but a replay may do that
    """
    n = guard.limiter.n_arm
    machine, mover, reporter = guard.machine, guard._mover, guard._reporter
    machine.state, machine.epoch = verdict.state, verdict.arm_epoch
    machine.causes.clear()
    machine.transitions.clear()
    ramp_ns = nanoseconds(machine.config.ramp_s * verdict.speed_scale)
    ramping = verdict.state is ArmState.ARMED and verdict.speed_scale < 1.0
    machine._ramp_steady_ns = verdict.steady_ns - ramp_ns if ramping else 0
    machine.epoch_steady_ns = machine._ramp_steady_ns
    machine.since_steady_ns, machine.since_ns = verdict.steady_ns, verdict.stamp_ns
    mover.start(verdict.sent.copy(), verdict.stamp_ns)
    guard._fingers = verdict.sent[n:].copy()
    guard._active = verdict.state is not ArmState.DISARMED
    measured = guard._situation.measured
    if verdict.state is ArmState.DISARMED and measured is not None and verdict.sent.any():
        guard._squeeze = verdict.sent[n:].copy(), measured.positions[n:].copy()
    reporter.ticks, reporter._counters = verdict.tick, list(verdict.counters)
    guard._situation.not_before_ns = 0
    guard._situation.nearest = dict(verdict.clearances)
    guard._stream.reset()
    assert np.isfinite(verdict.sent).all()
