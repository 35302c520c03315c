"""
What a decision and a control tick of the execution cost.

    python benchmarks/bench_decision.py [--json FILE]

A decision of upcycling (H 50, A 14) must stay under 50 us, an idle execution tick under 100 us.
CPU time of this thread, median and 95th percentile; foreign load on the machine is printed too.
"""

import argparse
from collections.abc import Callable
import json
import os
from pathlib import Path
import time

from chunkpilot_core import robot as robots
from chunkpilot_core import spaces
from chunkpilot_core.execution.base import ExecutionState
from chunkpilot_core.execution.fixed import Fixed
from chunkpilot_core.execution.runtime.executor import Executor
from chunkpilot_core.execution.upcycling import Upcycling
from chunkpilot_core.types import ActionChunk, ActionGroup, ActionSpace, Id, Kind, PolicySpec
import numpy as np


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1])
    parser.add_argument('--json', type=Path)
    args = parser.parse_args()
    rows = [
        measure('upcycling, H 50, A 14, pool 64', decision(50, 14), 50.0),
        measure('upcycling, H 16, A 4, pool 64', shipped_decision(), 50.0),
        measure('idle execution tick', idle_tick(), 100.0),
    ]
    load = os.getloadavg()[0]
    print(f'{"":36}{"median":>9}{"p95":>9}{"target":>9}  [us CPU], load {load:.1f}')
    for row in rows:
        word = 'ok' if row['median_us'] < row['target_us'] else 'MISSED'
        print(
            f'{row["what"]:36}{row["median_us"]:9.1f}{row["p95_us"]:9.1f}'
            f'{row["target_us"]:9.0f}  {word}'
        )
    if args.json:
        args.json.write_text(json.dumps({'load': load, 'rows': rows}, indent=1) + '\n')


def measure(what: str, call: Callable[[], object], target_us: float, count: int = 3000) -> dict:
    """Return median and 95th percentile of the CPU time of a call."""
    for _ in range(200):
        call()
    times = np.empty(count)
    for i in range(count):
        start = time.thread_time_ns()
        call()
        times[i] = (time.thread_time_ns() - start) / 1000
    median, p95 = np.quantile(times, (0.5, 0.95))
    return {
        'what': what,
        'median_us': float(median),
        'p95_us': float(p95),
        'target_us': target_us,
    }


def joint_space(size: int, max_velocity: float = 2.0) -> ActionSpace:
    """Return absolute joint positions of ``size`` joints."""
    names = tuple(f'joint{i}' for i in range(size))
    group = ActionGroup(
        'arm',
        0,
        size,
        Kind.JOINT_POSITION,
        names=names,
        unit='rad',
        scale=(1.0,) * size,
        offset=(0.0,) * size,
    )
    return spaces.make(
        ActionSpace(
            (group,),
            (-3.0,) * size,
            (3.0,) * size,
            (max_velocity,) * size,
            (10.0,) * size,
            (5000.0,) * size,
            (False,) * size,
        )
    )


def decision(horizon: int, size: int, space: ActionSpace | None = None) -> Callable[[], object]:
    """Return a call that decides on one of many chunks, with a full pool."""
    space = space or joint_space(size)
    spec = PolicySpec('any', 'any', 1, space, horizon, 0.02, max_row_age_s=2.0)
    strategy = Upcycling(Upcycling.Config(horizon=horizon // 2))
    strategy.configure(spec)
    random = np.random.default_rng(0)
    chunks = [_chunk(random, spec, seq) for seq in range(1, 200)]
    state = ExecutionState(0, np.zeros(size, np.float32), 1, 0.05, 3.0)
    turn = iter(range(10**9))
    return lambda: strategy.horizon(chunks[next(turn) % len(chunks)], state)


def shipped_decision() -> Callable[[], object]:
    """Return the same for the shipped policies' space."""
    return decision(16, 4, spaces.ee_delta_space())


def idle_tick() -> Callable[[], object]:
    """Return a tick of an executor that has a policy and is not armed."""
    space = spaces.ee_delta_space()
    executor = Executor(Fixed(), None, robots.load('panda'))
    executor.configure(PolicySpec('any', 'any', 1, space, 16, 0.04, max_row_age_s=1.0))
    measured = np.zeros(space.target_size)
    ticks = iter(range(10**9))

    def tick() -> object:
        now_ns = 10**9 + next(ticks) * 10_000_000
        return executor.tick(now_ns, measured, now_ns)

    return tick


def _chunk(random: np.random.Generator, spec: PolicySpec, seq: int) -> ActionChunk:
    path = np.cumsum(random.normal(0, 0.01, (spec.horizon, spec.space.size)), axis=0)
    return ActionChunk(
        Id(1, seq),
        Id(1, seq),
        1,
        't',
        Id(1, seq),
        0,
        0,
        spec.dt_s,
        path.astype(np.float32),
        spec.space.hash,
        spec.policy,
        1,
    )


if __name__ == '__main__':
    main()
