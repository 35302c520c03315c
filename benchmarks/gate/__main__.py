"""
What one wrong decision costs, with and without the gate for irreversible actions.

    make bench-gate [BENCH_ARGS='--episodes 60']
    python -m benchmarks.gate [--episodes N] [--seed N] [--again] [--out FOLDER]

Stack, by a scripted expert that answers with chunks of 16 rows which run to their end. In one
chunk of each episode something goes wrong: the gripper opens while it carries a cube, or the tool
is displaced in free motion, for one row or for the rest of the chunk. The same seeds in every
case. An interrupted run goes on where it was. Writes runs/bench-gate/summary.json.
"""

import argparse
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
import json
import math
from pathlib import Path
import sys
from typing import Any

from benchmarks.gate.policy import GRIPPER, MOTION, NAMES, ScriptedChunks, Slip
from chunkpilot_core import files, registry
from chunkpilot_core import robot as robots
from chunkpilot_core.eval.latency import LatencyModel
from chunkpilot_core.eval.loop import Frame, Loop
from chunkpilot_core.eval.statistics import paired_difference, wilson
from chunkpilot_core.kinematics import Kinematics
from chunkpilot_core.runs.progress import progress_bar
from chunkpilot_core.safety.runtime.gate_config import GateConfig
from chunkpilot_core.tasks.stack import Stack
import numpy as np

ROOT = Path(__file__).resolve().parents[2]
OUT = ROOT / 'runs' / 'bench-gate'
REST = 16
FALL_M, FALL_TICKS = 0.03, 6  # 0.5 m/s: no tool lowers a cube so fast
GATED = GateConfig(opening='confirm_n')
OPEN = GateConfig()


@dataclass(frozen=True)
class Case:
    """What goes wrong, and whether the gate is there."""

    name: str
    slip: Slip | None
    gate: GateConfig


CASES = (
    Case('nothing', None, OPEN),
    Case('nothing, gate', None, GATED),
    Case('opens, 1 row', Slip(GRIPPER, 1), OPEN),
    Case('opens, rest of the chunk', Slip(GRIPPER, REST), OPEN),
    Case('opens, rest of the chunk, gate', Slip(GRIPPER, REST), GATED),
    Case('displaced, rest of the chunk', Slip(MOTION, REST), OPEN),
    Case('displaced, rest of the chunk, gate', Slip(MOTION, REST), GATED),
)


class Falls:
    """Looks on, and sees whether a cube falls."""

    def __init__(self, policy: ScriptedChunks) -> None:
        self._policy = policy
        self._heights: deque[list[float]] = deque(maxlen=FALL_TICKS)
        self.seen = False

    def __call__(self, frame: Frame) -> None:
        """Take a tick."""
        if not self._policy.asked or self._policy.world is None:  # the scene is being prepared
            return
        scene = self._policy.world.scene()
        self._heights.append([float(scene.position(name)[2]) for name in NAMES])
        fallen = np.array(self._heights[0]) - np.array(self._heights[-1])
        self.seen = self.seen or bool((fallen > FALL_M).any())


def main() -> int:
    """Run what is not there yet, and write the table."""
    args = parse()
    file = args.out / 'progress.json'
    key = {'timeout': args.timeout}
    done = {} if args.again else kept(file, key)
    robot = robots.load('panda')
    policy = ScriptedChunks(Stack(Stack.Config()).expert(robot), Kinematics(robot))
    task = Stack(Stack.Config(distance_threshold=0.05, timeout_s=args.timeout))
    loop = Loop(task, policy, LatencyModel(0.05, 0.0, ''))
    policy.world = loop._world
    left = [
        (seed, case)
        for seed in range(args.seed, args.seed + args.episodes)
        for case in CASES
        if f'{case.name} {seed}' not in done
    ]
    try:
        for seed, case in progress_bar('episodes', items=left):
            done[f'{case.name} {seed}'] = run(loop, policy, seed, case)
            files.write_json(file, {'of': key, 'episodes': done})
    except KeyboardInterrupt:
        print(f'\ninterrupted with {len(left)} to do; the same command goes on from here')
        return 130
    finally:
        loop.close()
    summary = summarise(done, range(args.seed, args.seed + args.episodes))
    files.write_json(args.out / 'summary.json', summary)
    show(summary)
    print(f'written: {args.out / "summary.json"}')
    return 0


def kept(file: Path, key: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """
    Return the episodes that are there already, by case and seed.

    :param key: every option that decides what an episode is; those of others are dropped
    """
    if not file.is_file():
        return {}
    data = json.loads(file.read_text(encoding='utf-8'))
    return dict(data['episodes']) if data.get('of') == key else {}


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog='python -m benchmarks.gate', description=__doc__)
    parser.add_argument('--episodes', type=int, default=40, help='per case (default: 40)')
    parser.add_argument('--seed', type=int, default=5_000_000)
    parser.add_argument('--timeout', type=float, default=12.0, help='[s] of an episode')
    parser.add_argument('--again', action='store_true', help='forget what is there')
    parser.add_argument('--out', type=Path, default=OUT)
    return parser.parse_args()


def run(loop: Loop, policy: ScriptedChunks, seed: int, case: Case) -> dict[str, Any]:
    """Run one episode."""
    fixed = registry.get('execution', 'fixed')
    policy.slip, falls = case.slip, Falls(policy)
    strategy = fixed(fixed.Config(horizon=16))
    result = loop.run(seed, strategy, falls, {'gate': case.gate})
    return {
        'success': result.success,
        'fell': falls.seen,
        'slipped': policy.slipped,
        'duration_s': result.duration_s,
        'reactions': dict(result.reactions),
    }


def summarise(done: Mapping[str, Any], seeds: Sequence[int]) -> dict[str, Any]:
    """Return the table: per case, and how cases differ on the same seeds."""
    episodes = {case.name: [done[f'{case.name} {seed}'] for seed in seeds] for case in CASES}
    # Only seeds in which every slip had its chance.
    used = [
        i
        for i in range(len(seeds))
        if all(episodes[case.name][i]['slipped'] for case in CASES if case.slip)
    ]
    rows = []
    for case in CASES:
        chosen = [episodes[case.name][i] for i in used]
        good = [e['success'] for e in chosen]
        clean = [e['success'] and not e['fell'] for e in chosen]
        rows.append(
            {
                'case': case.name,
                'gate': case.gate is GATED,
                'episodes': len(used),
                'success': asdict(wilson(sum(good), len(used))),
                'success_without_fall': asdict(wilson(sum(clean), len(used))),
                'fell': sum(e['fell'] for e in chosen),
                'mean_duration_s': float(np.mean([e['duration_s'] for e in chosen])),
            }
        )
    clean = {
        case.name: [
            episodes[case.name][i]['success'] and not episodes[case.name][i]['fell'] for i in used
        ]
        for case in CASES
    }
    names = 'opens, rest of the chunk', 'displaced, rest of the chunk'
    return {
        'rows': rows,
        'odds_ratio': {
            'without gate': odds_ratio(clean[names[0]], clean[names[1]]),
            'with gate': odds_ratio(clean[f'{names[0]}, gate'], clean[f'{names[1]}, gate']),
        },
        'gate_gains': asdict(paired_difference(clean[names[0]], clean[f'{names[0]}, gate'])),
        'gate_costs': asdict(paired_difference(clean['nothing'], clean['nothing, gate'])),
    }


def odds_ratio(first: Sequence[bool], second: Sequence[bool]) -> dict[str, float]:
    """
    Return the odds of failure in ``first`` over those in ``second``, with a 95 % interval.

    Half an episode is added to each count (Haldane 1956), the interval is Woolf's on the
    logarithm: both are finite where a case never fails.
    """
    counts = [sum(not ok for ok in first), sum(first), sum(not ok for ok in second), sum(second)]
    a, b, c, d = (count + 0.5 for count in counts)
    value = (a / b) / (c / d)
    spread = 1.96 * math.sqrt(1 / a + 1 / b + 1 / c + 1 / d)
    return {'value': value, 'low': value * math.exp(-spread), 'high': value * math.exp(spread)}


def show(summary: Mapping[str, Any]) -> None:
    """Print the table."""
    print(
        f'{"what goes wrong":36} {"episodes":>8} {"success":>20} {"and nothing fell":>20} {"s":>6}'
    )
    for row in summary['rows']:
        parts = [
            f'{part["value"]:.2f} ({part["low"]:.2f} to {part["high"]:.2f})'
            for part in (row['success'], row['success_without_fall'])
        ]
        print(
            f'{row["case"]:36} {row["episodes"]:8} {parts[0]:>20} {parts[1]:>20} '
            f'{row["mean_duration_s"]:6.1f}'
        )
    for name, ratio in summary['odds_ratio'].items():
        print(
            f'odds of failure, opening over displacing, {name}: {ratio["value"]:.1f} '
            f'({ratio["low"]:.1f} to {ratio["high"]:.1f})'
        )


if __name__ == '__main__':
    sys.exit(main())
