"""How well a stream of commands followed the reference; pure functions of what was recorded."""

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.execution.reference import AMPLITUDE, DT_S, F64, positions
import numpy as np
from numpy.typing import NDArray

SETTLE_S = 0.5  # after the second chunk is there
FINE = 8  # error samples per control period


@dataclass(frozen=True)
class Trace:
    """
    What one run commanded, a row for each control tick from the first command on.

    ``sent_s`` (N,) is when each was sent, seconds since the run began; ``meant_s`` (N,) the time
    for which its values were computed: where a system steps through rows on a grid that is the
    grid, whatever the operating system made of it. ``values`` (N, 6) [rad], repeated while nothing
    was sent; ``starved`` (N,) where no row was due.
    """

    sent_s: F64
    meant_s: F64
    values: F64
    starved: NDArray[np.bool_]
    calls: int
    cpu_pct: float

    def since(self, time_s: float) -> 'Trace':
        """Return what was commanded from a time on."""
        keep = self.sent_s >= time_s
        return Trace(
            self.sent_s[keep],
            self.meant_s[keep],
            self.values[keep],
            self.starved[keep],
            self.calls,
            self.cpu_pct,
        )


def settled_s(trace: Trace, answers_s: Sequence[float]) -> float:
    """
    Return the time from which accuracy and smoothness are scored.

    Systems differ in whether the first chunk's rows are late by the first latency, during which a
    robot stood still. Both have their reasons, so the start is scored for neither.

    :param answers_s: when each chunk was answered, ascending
    """
    began_s = answers_s[1] if len(answers_s) > 1 else trace.sent_s[0]
    return float(max(began_s, trace.sent_s[0])) + SETTLE_S


def scores(trace: Trace, answers_s: Sequence[float]) -> dict[str, float | int | None]:
    """
    Return the measured columns of a case; None where there is nothing to measure.

    A run that never commanded has neither error nor first action, and every tick starved.
    """
    if len(trace.sent_s) == 0:
        return {
            'starved_pct': 100.0,
            'rms_error': None,
            'largest_step': None,
            'rms_jerk': None,
            'policy_calls': trace.calls,
            'first_action_s': None,
            'cpu_pct': trace.cpu_pct,
        }
    part = trace.since(settled_s(trace, answers_s))
    return {
        'starved_pct': 100.0 * float(np.mean(trace.starved)),
        'rms_error': rms_error(part.sent_s, part.values),
        'largest_step': largest_step(part.values),
        'rms_jerk': rms_jerk(part.meant_s, part.values),
        'policy_calls': trace.calls,
        'first_action_s': float(trace.sent_s[0]),
        'cpu_pct': trace.cpu_pct,
    }


def rms_error(sent_s: F64, values: F64) -> float | None:
    """
    Return the error of a zero-order hold against the reference, in amplitudes.

    Sampled much finer than the commands: the hold itself costs half a period on average, even of
    perfect commands (0.020 here).
    """
    if len(sent_s) < 2:
        return None
    times = np.arange(sent_s[0], sent_s[-1], DT_S / FINE)
    held = values[np.searchsorted(sent_s, times, side='right') - 1]
    return float(np.sqrt(np.mean((held - positions(times)) ** 2))) / AMPLITUDE


def largest_step(values: F64) -> float | None:
    """Return the largest change of one joint from one command to the next, in amplitudes."""
    if len(values) < 2:
        return None
    return float(np.max(np.abs(np.diff(values, axis=0)))) / AMPLITUDE


def rms_jerk(meant_s: F64, values: F64) -> float | None:
    """
    Return the third derivative of the commands, amplitudes / s^3.

    Divided differences over the times that the values are meant for: third differences over a
    nominal period would show a tick that came 1 ms late as a jerk of 100.
    """
    if len(meant_s) < 4:
        return None
    slope = values
    for order in (1, 2, 3):
        slope = order * np.diff(slope, axis=0) / (meant_s[order:] - meant_s[:-order])[:, None]
    return float(np.sqrt(np.mean(slope**2))) / AMPLITUDE


def starved_after(trace: Trace, since_s: float) -> float | None:
    """Return the starved percentage of the ticks from a time on, None where there are none."""
    later = trace.starved[trace.sent_s >= since_s]
    return 100.0 * float(np.mean(later)) if len(later) else None
