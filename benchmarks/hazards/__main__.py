"""
What looking ahead is worth among things that reactive braking serves badly.

    make bench-hazards [BENCH_ARGS='--episodes 20']
    python -m benchmarks.hazards [--episodes N] [--seed N] [--policy NAME] [--again] [--out FOLDER]

Pick and place with a fixed thing in the way that the policy knows nothing of: a ledge at the
object, a post beside the path, a wall behind the goal. The same seeds with a guard that knows it
(reactive: its own checks, tick by tick), one with chunks judged before they run as well
(predictive), and on wish one that knows nothing of it. Unsafe is an episode in which arm or cube
touches the thing. An interrupted run goes on where it was. Writes runs/bench-hazards/summary.json.
"""

import argparse
from collections.abc import Sequence
from dataclasses import asdict
import json
from pathlib import Path
import sys
from typing import Any

from benchmarks.hazards.scenes import KINDS, Scenes
from chunkpilot_core import files, registry
from chunkpilot_core import robot as robots
from chunkpilot_core.eval.latency import LatencyModel
from chunkpilot_core.eval.loop import EpisodeResult, Loop, Surroundings
from chunkpilot_core.eval.prediction import Prediction
from chunkpilot_core.eval.statistics import paired_difference, wilson
from chunkpilot_core.execution.upcycling import Upcycling
from chunkpilot_core.policies.runtime import checkpoint
from tqdm import tqdm

ROOT = Path(__file__).resolve().parents[2]
OUT = ROOT / 'runs' / 'bench-hazards'
GUARDS = ('ignorant', 'reactive', 'predictive')


def main() -> int:
    """Run what is missing, write the summary, tell the figures."""
    args = parse()
    file = args.out / 'episodes.json'
    settings = {'policy': args.policy, 'latency_s': args.latency}
    done = load(file, settings, args.again)
    clearance = registry.get('clearance', 'capsules')(robots.load('panda'))
    seeds = range(args.seed, args.seed + args.episodes)
    guards = GUARDS if args.ignorant else GUARDS[1:]
    jobs = [(s, k, g) for s in seeds for k in KINDS for g in guards if key(s, k, g) not in done]
    if jobs:
        policy = checkpoint.load(args.policy)
        loop = Loop('pick_and_place', policy, LatencyModel(args.latency))
        try:
            for seed, kind, guard in tqdm(jobs, unit='episode', disable=None):
                done[key(seed, kind, guard)] = run(loop, clearance, seed, kind, guard)
                if len(done) % 10 == 0:
                    files.write_json(file, {'settings': settings, 'episodes': done})
        except KeyboardInterrupt:
            files.write_json(file, {'settings': settings, 'episodes': done})
            print(f'\ninterrupted after {len(done)} episodes; the same command goes on from here')
            return 130
        loop.close()
    files.write_json(file, {'settings': settings, 'episodes': done})
    summary = {
        'settings': settings,
        'seeds': [seeds[0], seeds[-1]],
        **summarise(done, seeds, guards),
    }
    files.write_json(args.out / 'summary.json', summary)
    tell(summary, args.out)
    return 0


def run(loop: Loop, clearance: Any, seed: int, kind: str, guard: str) -> dict[str, Any]:
    """Run one episode."""
    scenes = Scenes(kind, clearance)
    parts: dict[str, Any] = {'surroundings': Surroundings(scenes, known=guard != 'ignorant')}
    if guard == 'predictive':
        parts['prediction'] = Prediction()
    strategy = Upcycling(Upcycling.Config())
    return short(loop.run(seed, strategy, None, parts))


def short(result: EpisodeResult) -> dict[str, Any]:
    """Return what the summary needs, and why things happened."""
    names = ('success', 'touched', 'duration_s', 'cuts', 'reactions', 'interrupts', 'notes')
    return {name: value for name, value in asdict(result).items() if name in names}


def key(seed: int, kind: str, guard: str) -> str:
    """Return the name of an episode."""
    return f'{guard}/{kind}/{seed}'


def load(file: Path, settings: dict[str, Any], again: bool) -> dict[str, Any]:
    """Return the episodes of an interrupted run with the same settings."""
    if again or not file.is_file():
        return {}
    kept = json.loads(file.read_text(encoding='utf-8'))
    return dict(kept['episodes']) if kept['settings'] == settings else {}


def summarise(done: dict[str, Any], seeds: range, guards: Sequence[str]) -> dict[str, Any]:
    """Return rows by guard and kind, and what prediction changes, with 95 % intervals."""
    rows, paired = [], []
    for kind in (*KINDS, 'all'):
        kinds = KINDS if kind == 'all' else (kind,)
        got = {
            guard: [done[key(seed, k, guard)] for seed in seeds for k in kinds] for guard in guards
        }
        for guard, episodes in got.items():
            row = {
                'guard': guard,
                'hazard': kind,
                'episodes': len(episodes),
                'success': share([one['success'] for one in episodes]),
                'unsafe': share([bool(one['touched']) for one in episodes]),
                'safe_success': share([good(one) for one in episodes]),
            }
            rows.append(row)
        for name, of in (('success', lambda one: one['success']), ('safe_success', good)):
            first, second = ([of(one) for one in got[g]] for g in ('reactive', 'predictive'))
            change = paired_difference(first, second).as_dict()
            paired.append({'hazard': kind, 'what': name, 'predictive_minus_reactive': change})
    return {'rows': rows, 'paired': paired}


def good(one: dict[str, Any]) -> bool:
    """Whether the task was solved and nothing touched."""
    return bool(one['success'] and not one['touched'])


def share(values: list[bool]) -> dict[str, float]:
    """Return a share with its interval."""
    return wilson(sum(values), len(values)).as_dict()


def tell(summary: dict[str, Any], out: Path) -> None:
    """Print the figures."""
    print(
        f'{"guard":12}{"hazard":9}{"n":>5}  {"success":22}{"unsafe":22}{"both safe and solved":22}'
    )
    for row in summary['rows']:
        texts = ''.join(f'{text(row[n]):22}' for n in ('success', 'unsafe', 'safe_success'))
        print(f'{row["guard"]:12}{row["hazard"]:9}{row["episodes"]:5}  {texts}')
    for row in summary['paired']:
        change = text(row['predictive_minus_reactive'])
        print(f'predictive minus reactive, {row["hazard"]}, {row["what"]}: {change}')
    print(f'written: {out / "summary.json"}')


def text(estimate: dict[str, float]) -> str:
    """Return a share in percent with its interval."""
    value, low, high = (100.0 * estimate[name] for name in ('value', 'low', 'high'))
    return f'{value:.1f} ({low:.1f} to {high:.1f})'


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1])
    parser.add_argument('--episodes', type=int, default=100, help='seeds of each hazard')
    parser.add_argument('--seed', type=int, default=1000, help='first one')
    parser.add_argument('--policy', default='flow_pick_and_place')
    parser.add_argument('--latency', type=float, default=0.05, help='of the policy [s]')
    parser.add_argument('--ignorant', action='store_true', help='also a guard that knows nothing')
    parser.add_argument('--again', action='store_true', help='forget an interrupted run')
    parser.add_argument('--out', type=Path, default=OUT)
    return parser.parse_args()


if __name__ == '__main__':
    sys.exit(main())
