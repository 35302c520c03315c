"""What a measuring process leaves: a trace and some facts beside it. Numpy only."""

from collections.abc import Sequence
from dataclasses import dataclass, field
import json
import os
from pathlib import Path
import signal
import sys
from types import FrameType

from benchmarks.execution import scoring
from benchmarks.execution.reference import Case, DT_S, F64, JOINTS, positions
import numpy as np

NICE_VARIABLE = 'BENCH_EXECUTION_NICE'
REMEMBERED = 5  # chunks by which a cold start must be forgotten


@dataclass
class Recorder:
    """Ticks of a controller, as its robot sees them; until the first it is on the reference."""

    starved: list[bool] = field(default_factory=list)
    sent_s: list[float] = field(default_factory=list)
    meant_s: list[float] = field(default_factory=list)
    values: list[F64] = field(default_factory=list)

    def tick(self, sent_s: float, values: F64 | None, meant_s: float | None = None) -> None:
        """
        Note a control tick; those before the first command do not count.

        :param values: shape (6,) [rad], None where no row was due and nothing was sent
        :param meant_s: time that they were computed for; without it, the next of a 30 Hz grid
        """
        if values is None and not self.values:
            return
        self.starved.append(values is None)
        self.sent_s.append(sent_s)
        self.meant_s.append(DT_S * len(self.meant_s) if meant_s is None else meant_s)
        self.values.append(self.values[-1] if values is None else values)

    def pose(self, now_s: float) -> F64:
        """
        Return where the robot is, shape (6,) [rad].

        It does what it is told. Carrying it along until then spares everybody a jump at the start
        that depends on nothing but the first latency.
        """
        return self.values[-1] if self.values else positions(max(0.0, now_s))

    def trace(self, seconds: float, calls: int, cpu_pct: float) -> scoring.Trace:
        """Return what is scored: ``seconds`` from the first command on."""
        sent_s = np.array(self.sent_s)
        keep = sent_s < sent_s[0] + seconds if len(sent_s) else np.zeros(0, bool)
        values = np.array(self.values).reshape(-1, JOINTS)
        return scoring.Trace(
            sent_s[keep],
            np.array(self.meant_s)[keep],
            values[keep],
            np.array(self.starved, bool)[keep],
            calls,
            cpu_pct,
        )


def write(
    out: Path, case: Case, trace: scoring.Trace, answers_s: Sequence[float], **facts: object
) -> None:
    """
    Leave the result of a case: ``out`` and, beside it, the trace as .npz.

    :param answers_s: when each chunk was answered, ascending, seconds since the run began
    :param facts: what helps to explain the figures
    """
    row = {
        'system': case.system,
        'strategy': case.strategy,
        'in_flight': case.in_flight,
        'cold_start_s': case.cold_start_s,
        'H': case.horizon,
        'latency_s': case.latency_s,
        'jitter_s': case.jitter_s,
        'noise': case.noise,
        **scoring.scores(trace, answers_s),
    }
    late_s = answers_s[REMEMBERED - 1] if len(answers_s) >= REMEMBERED else np.inf
    details = {
        'case': case.name,
        'seconds': case.seconds,
        'ticks': len(trace.sent_s),
        'starved_after_5_chunks_pct': scoring.starved_after(trace, late_s),
        'largest_step_with_start': scoring.largest_step(trace.values),
        'load': os.getloadavg()[0],
        **facts,
    }
    np.savez_compressed(
        out.with_suffix('.npz'),
        sent_s=trace.sent_s,
        meant_s=trace.meant_s,
        values=trace.values,
        starved=trace.starved,
        answers_s=np.array(answers_s),
    )
    text = json.dumps({'row': row, 'details': details}, indent=1)
    part = out.with_suffix('.part')
    part.write_text(text + '\n', encoding='utf-8')
    part.replace(out)


def prioritise() -> None:
    """
    Take the wished priority; called when everything is imported, which is others' time.

    Linux shares the CPU between sessions first, and each case runs in one of its own, so niceness
    must be told to the session too.
    """
    wished = int(os.environ.get(NICE_VARIABLE, '0'))
    if not wished:
        return
    os.setpriority(os.PRIO_PROCESS, 0, wished)
    autogroup = Path('/proc/self/autogroup')
    if autogroup.exists():
        autogroup.write_text(str(wished))


def end_on_sigterm() -> None:
    """Let SIGTERM run the finally blocks, which end the processes that this one started."""

    def leave(number: int, frame: FrameType | None) -> None:
        sys.exit(128 + number)

    signal.signal(signal.SIGTERM, leave)
