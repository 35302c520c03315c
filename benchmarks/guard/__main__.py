"""
Measures what the guard costs: a tick, the check of a chunk, and the prediction of a chunk.

    make bench-guard [BENCH_ARGS='--ticks 20000']
    python -m benchmarks.guard [--ticks N] [--rounds N] [--only NAME ...]

CPU time of the thread, as guard_node measures it, on a nominal motion over the table with three
obstacles; the ways to compute distances take turns, so that a busy machine is as unfair to all of
them. Writes runs/bench-guard/summary.json: ``rows`` with one entry per way that is there.
"""

import argparse
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
import gc
import os
from pathlib import Path
import sys
import time
from typing import Any

from benchmarks.guard import load
from chunkpilot_core import files, registry
from chunkpilot_core import robot as robots
from chunkpilot_core.clearance.runtime import choice
from chunkpilot_core.errors import ConfigError
from chunkpilot_core.prediction.predictor import Predictor
from chunkpilot_core.robot import Robot
from chunkpilot_core.runs.progress import progress_bar
from chunkpilot_core.safety.runtime.guard import Guard, GuardTick
from chunkpilot_core.types import ArmState, F64, JointState, Reaction
import numpy as np

ROOT = Path(__file__).resolve().parents[2]
OUT = ROOT / 'runs' / 'bench-guard'
NAMES = {'capsules': 'numpy', 'pybullet': 'pybullet', 'coal': 'coal'}
"""Plug-ins of the family clearance, and what their rows are called."""
TARGETS_MS = {'numpy': 0.3, 'pybullet': 1.0, 'coal': 0.3}
CHUNK_TARGET_MS = 5.0
CHUNK_EVERY, WARM_UP = 40, 250  # ticks
MS = 1e3 / 1e9


@dataclass(slots=True)
class Costs:
    """Times [ns] of one way to compute distances."""

    ticks: list[int] = field(default_factory=list)
    chunks: list[int] = field(default_factory=list)
    predictions: list[int] = field(default_factory=list)
    reactions: dict[str, int] = field(default_factory=lambda: defaultdict(int))


class Bench:
    """A guard and a predictor on one motion, which goes on from call to call."""

    def __init__(self, robot: Robot, plugin: str) -> None:
        self.robot, self.costs = robot, Costs()
        self.guard = Guard(robot, Guard.Config(distances=plugin))
        self.guard.set_space(load.SPACE, load.ROW_S)
        self.predictor = Predictor(robot, clearance=choice.make(plugin, robot))
        self.predictor.space = load.SPACE
        self.positions = np.array([*robot.home, *[0.04] * len(robot.gripper.joints)])  # type: ignore[union-attr]
        self.velocities: F64 = np.zeros_like(self.positions)
        self.tick = 0
        self.began_s = 0.0
        told = load.obstacles(load.now_ns_of(0))
        self.guard.on_obstacles(told, load.now_ns_of(0))
        assert self.predictor.clearance is not None
        self.predictor.clearance.set_obstacles(told.obstacles)
        self.predictor.surroundings_changed()
        self._arm()

    def _arm(self) -> None:
        """Arm, and go to where the motion begins."""
        self._step(None)
        self._step(None)
        done, why_not = self.guard.arm(load.now_ns_of(self.tick))
        if not done:
            raise SystemExit(f'not armed: {why_not}')
        for _ in range(WARM_UP):
            self._step(0.0)
        if self.guard.machine.state is not ArmState.ARMED:
            raise SystemExit(f'not ready: {self.guard.machine.causes}')

    def run(self, ticks: int) -> None:
        """Go on for some ticks, and note what they cost."""
        for _ in range(ticks):
            self.began_s += load.PERIOD_S
            cost, tick = self._step(self.began_s)
            self.costs.ticks.append(cost)
            self.costs.reactions[tick.verdict.reaction.name] += 1
            if self.tick % CHUNK_EVERY == 0:
                self._chunk()

    def _step(self, moving_s: float | None) -> tuple[int, GuardTick]:
        self.tick += 1
        now_ns, guard = load.now_ns_of(self.tick), self.guard
        guard.on_joint_state(self._state(now_ns), now_ns)
        if moving_s is not None:
            epoch = guard.machine.epoch
            guard.on_command(load.command(self.tick, now_ns, epoch, moving_s), now_ns)
        began = time.thread_time_ns()
        tick = guard.tick(now_ns, now_ns, moving_s is None)
        cost = time.thread_time_ns() - began
        if tick.positions is not None:
            self.velocities = (tick.positions - self.positions) / load.PERIOD_S
            self.positions = tick.positions
        return cost, tick

    def _chunk(self) -> None:
        now_ns = load.now_ns_of(self.tick)
        chunk = load.chunk(self.tick, now_ns, self.guard.machine.epoch, self.began_s)
        self.costs.chunks.append(_timed(lambda: self.guard.on_chunk(chunk, now_ns)))
        state = self._state(now_ns)
        self.costs.predictions.append(_timed(lambda: self.predictor.judge(chunk, state, now_ns)))

    def _state(self, now_ns: int) -> JointState:
        return load.joint_state(self.robot, now_ns, self.positions, self.velocities)


def _timed(call: Callable[[], Any]) -> int:
    began = time.thread_time_ns()
    call()
    return time.thread_time_ns() - began


def main() -> int:
    """Measure, print a table, write the summary."""
    args = parse()
    robot = robots.load(args.robot)
    benches = made(robot, args.only)
    if not benches:
        known = ', '.join(NAMES.values())
        print(f'--only: nothing of {args.only} is here; known are {known}', file=sys.stderr)
        return 2
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)  # as the node does
    share = max(args.ticks // args.rounds, 1)
    with progress_bar('ticks', share * args.rounds * len(benches), unit=' ticks') as bar:
        for _ in range(args.rounds):
            for name, bench in benches.items():
                bar.set_description(name)
                bench.run(share)
                bar.update(share)
    rows = [row(name, bench.costs) for name, bench in benches.items()]
    for line in table(rows):
        print(line)
    args.out.mkdir(parents=True, exist_ok=True)
    files.write_json(
        args.out / 'summary.json', {'cores': os.cpu_count(), 'load': os.getloadavg(), 'rows': rows}
    )
    print(f'written: {args.out / "summary.json"}')
    return 0


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--ticks', type=int, default=6000, help='of each way; default 6000')
    parser.add_argument('--rounds', type=int, default=12, help='turns; default 12')
    parser.add_argument('--only', nargs='+', help=f'of {", ".join(NAMES.values())}')
    parser.add_argument('--robot', default='panda')
    parser.add_argument('--out', type=Path, default=OUT)
    args = parser.parse_args()
    if args.ticks < 1 or args.rounds < 1:
        parser.error('--ticks and --rounds have to be 1 or more')
    return args


def made(robot: Robot, only: list[str] | None) -> dict[str, Bench]:
    """Return a bench for each way to compute distances that is there; say which is not."""
    benches = {}
    for plugin in registry.names('clearance'):
        name = NAMES.get(plugin, plugin)
        if only and name not in only:
            continue
        try:
            benches[name] = Bench(robot, plugin)
        except ConfigError as error:
            print(f'{name}: left out, {error}')
    return benches


def row(name: str, costs: Costs) -> dict[str, Any]:
    """Return the figures of one way."""
    ticks, chunks, predictions = (
        np.array(values) * MS for values in (costs.ticks, costs.chunks, costs.predictions)
    )
    calm = costs.reactions[Reaction.PASS.name] + costs.reactions[Reaction.CLAMP.name]
    return {
        'backend': name,
        'tick_cpu_ms_p50': _quantile(ticks, 50),
        'tick_cpu_ms_p99': _quantile(ticks, 99),
        'chunk_check_ms_p99': _quantile(chunks, 99),
        'predict_ms_p50': _quantile(predictions, 50),
        'predict_ms_p99': _quantile(predictions, 99),
        'ticks': len(ticks),
        'chunks': len(chunks),
        'calm_pct': round(100.0 * calm / max(len(ticks), 1), 2),
    }


def _quantile(values: F64, percent: float) -> float:
    return round(float(np.percentile(values, percent)), 4) if len(values) else float('nan')


def table(rows: list[dict[str, Any]]) -> list[str]:
    """Return the figures as a table in Markdown."""
    lines = [
        '| distances | tick p50 | p99 [ms] | target | chunk p99 | target | predict p50 | p99 |',
        '|---|---|---|---|---|---|---|---|',
    ]
    for entry in rows:
        name = entry['backend']
        lines.append(
            f'| {name} | {entry["tick_cpu_ms_p50"]:.3f} | {entry["tick_cpu_ms_p99"]:.3f} '
            f'| {TARGETS_MS.get(name, 1.0):g} | {entry["chunk_check_ms_p99"]:.3f} '
            f'| {CHUNK_TARGET_MS:g} | {entry["predict_ms_p50"]:.3f} '
            f'| {entry["predict_ms_p99"]:.3f} |'
        )
    return lines


if __name__ == '__main__':
    sys.exit(main())
