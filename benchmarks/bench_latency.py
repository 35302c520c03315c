"""
How much starves, by latency, jitter and horizon, on a virtual clock: what the algorithm costs.

    python -m benchmarks.bench_latency [--seconds N] [--json FILE]

The work of ``make bench-execution`` (same reference, fake policy and scores) without processes,
messages and a machine that is busy: what is left is what the rules of execution do. The law is
that of one request in flight at a fixed latency, 1 - (H - d) / d of the ticks where H < 2 d.
"""

import argparse
from collections.abc import Callable
from dataclasses import dataclass, replace
import heapq
import json
from pathlib import Path
from typing import Any

from benchmarks.bench_decision import joint_space
from benchmarks.execution import scoring
from benchmarks.execution.reference import Case, DT_S, END, FakePolicy, JOINTS, positions
from chunkpilot_core.execution.base import Strategy
from chunkpilot_core.execution.fixed import Fixed
from chunkpilot_core.execution.runtime.executor import Executor
from chunkpilot_core.types import (
    ActionChunk,
    ArmState,
    ExecutionStats,
    GuardStatus,
    Id,
    nanoseconds,
    PolicySpec,
    seconds,
)
import numpy as np

GRID = [(rows, latency) for rows in (50, 20, 16, 10) for latency in (0.1, 0.3, 0.6, 1.0, 1.5)]
JITTER = 1 / 3
START_NS = 10**12
SPACE = joint_space(JOINTS, max_velocity=6.0)


@dataclass(frozen=True)
class Score:
    """What one run was like; ``largest_step`` and ``rms_error`` once the second chunk runs."""

    starved: float  # [%]
    rms_error: float
    largest_step: float
    stats: ExecutionStats
    trace: scoring.Trace


class Policy:
    """Answers each request after its latency; with ``serial`` one at a time, as on one GPU."""

    def __init__(self, case: Case, *, serial: bool = False) -> None:
        self._case, self._serial, self._fake = case, serial, FakePolicy(case, END)
        self._due: list[tuple[int, int, ActionChunk]] = []
        self._free_ns = self._calls = 0

    def ask(self, request_id: Id, now_ns: int) -> None:
        """Observe, and have an answer ready later."""
        call, self._calls = self._calls, self._calls + 1
        seen_ns = max(now_ns, self._free_ns) if self._serial else now_ns
        self._free_ns = seen_ns + nanoseconds(self._fake.latency_s(call))
        rows = self._fake.rows(seconds(seen_ns - START_NS), call).astype(np.float32)
        ids = (Id(9, call + 1), request_id, 1, 't', Id(8, call + 1))
        chunk = ActionChunk(*ids, seen_ns, seen_ns, DT_S, rows, SPACE.hash, 'fake', 1)
        heapq.heappush(self._due, (self._free_ns, call, chunk))

    def answers(self, now_ns: int) -> list[tuple[int, ActionChunk]]:
        """Return what was answered by now, with the times."""
        found = []
        while self._due and self._due[0][0] <= now_ns:
            at_ns, _, chunk = heapq.heappop(self._due)
            found.append((at_ns, chunk))
        return found


def play(
    case: Case,
    *,
    serial: bool = False,
    period_s: float = DT_S,
    strategy: Strategy | None = None,
    watch: Callable[[Executor, int], None] | None = None,
    **config: Any,
) -> Score:
    """
    Run a case on a robot that follows every command.

    :param watch: is shown the executor after every tick
    :param config: of the executor
    """
    policy = Policy(case, serial=serial)
    executor = Executor(
        strategy or Fixed(Fixed.Config(case.horizon)),
        Executor.Config(period_s=period_s, in_flight=case.in_flight, **config),
    )
    executor.configure(
        PolicySpec('fake', 'fake', 1, SPACE, case.horizon, DT_S, max_row_age_s=60.0)
    )
    executor.set_guard(GuardStatus(START_NS, ArmState.ARMED, 1, START_NS), START_NS)
    executor.set_episode(True, 't', START_NS, 'e')
    sent: list[tuple[float, np.ndarray]] = []
    answered_s: list[float] = []
    for i in range(round(case.seconds / period_s)):
        now_ns = START_NS + nanoseconds(i * period_s)
        for at_ns, chunk in policy.answers(now_ns):
            executor.receive(chunk, at_ns)
            answered_s.append(seconds(at_ns - START_NS))
        # As in the benchmark of processes: carried along until the first command.
        measured = sent[-1][1] if sent else positions(i * period_s)
        tick = executor.tick(now_ns, measured, now_ns)
        if tick.request is not None:
            policy.ask(tick.request.id, now_ns)
        if tick.command is not None:
            sent.append((i * period_s, tick.command.groups[0].values))
        if watch is not None:
            watch(executor, now_ns)
    return _score(executor.stats(), sent, answered_s, round(DT_S / period_s))


def _score(
    stats: ExecutionStats,
    sent: list[tuple[float, np.ndarray]],
    answered_s: list[float],
    stride: int,
) -> Score:
    times_s, values = np.array([time for time, _ in sent]), np.array([row for _, row in sent])
    nothing = np.zeros(len(times_s), bool)
    trace = scoring.Trace(times_s, times_s, values, nothing, stats.policy_calls, 0.0)
    settled = trace.since(scoring.settled_s(trace, answered_s))
    return Score(
        100.0 * stats.starved_ticks / stats.ticks,
        scoring.rms_error(settled.sent_s, settled.values) or 0.0,
        scoring.largest_step(settled.values[::stride]) or 0.0,
        stats,
        trace,
    )


def law(horizon: int, latency_s: float) -> float:
    """Return the share of ticks that rule 4 of EXECUTION.md allows to starve [%]."""
    lengths = horizon * DT_S / latency_s
    return 0.0 if lengths >= 2.0 else 100.0 * min(1.0, 2.0 - lengths)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1])
    parser.add_argument('--seconds', type=float, default=60.0, help='virtual time of each run')
    parser.add_argument('--json', type=Path)
    args = parser.parse_args()
    print('starved % / rms error / largest step / policy calls; two = two requests in flight\n')
    print(
        '| H | d [s] | H/d | law | one, fixed | one, jitter d/3 | two, fixed | two, jitter d/3 |'
    )
    print('|---|---|---|---|---|---|---|---|')
    rows = []
    for horizon, latency_s in GRID:
        cells = []
        for in_flight in (1, 2):
            for jitter in (0.0, JITTER):
                case = Case('virtual', 'fixed', horizon, latency_s, jitter * latency_s)
                case = replace(case, in_flight=in_flight, seconds=args.seconds)
                score = play(case)
                cells.append(
                    f'{score.starved:.2f} / {score.rms_error:.3f} / {score.largest_step:.3f} / '
                    f'{score.stats.policy_calls}'
                )
                rows.append(_row(case, score))
        head = f'{horizon} | {latency_s:g} | {horizon * DT_S / latency_s:.2f}'
        print(f'| {head} | {law(horizon, latency_s):.1f} | {" | ".join(cells)} |', flush=True)
    if args.json:
        args.json.write_text(json.dumps({'rows': rows}, indent=1) + '\n', encoding='utf-8')


def _row(case: Case, score: Score) -> dict[str, object]:
    return {
        'in_flight': case.in_flight,
        'H': case.horizon,
        'latency_s': case.latency_s,
        'jitter_s': case.jitter_s,
        'law_pct': law(case.horizon, case.latency_s),
        'starved_pct': score.starved,
        'rms_error': score.rms_error,
        'largest_step': score.largest_step,
        'policy_calls': score.stats.policy_calls,
    }


if __name__ == '__main__':
    main()
