"""
What looking ahead is worth among things that reactive braking serves badly.

    make bench-hazards [BENCH_ARGS='--episodes 20']
    python -m benchmarks.hazards [--episodes N] [--seed N] [--policy NAME] [--workers N]
        [--guards NAME ...] [--again] [--out FOLDER]

Pick and place with a fixed thing in the way that the policy knows nothing of: a ledge before the
object, a post on the path, a wall behind the goal. The same scenes with a guard that knows it
(reactive: its own checks, tick by tick), and with chunks judged before they run and detours taken
where one is bad (predictive); on wish without detours (judged), or with a guard that knows nothing
(ignorant). All but that are told of the cube while perception says it is held. Unsafe is an
episode in which arm or cube touches the thing. Seeds in whose scene there is no place for a thing
are passed over. An interrupted run goes on where it was. Writes runs/bench-hazards/summary.json.
"""

import argparse
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
import json
import os
from pathlib import Path
import sys
from typing import Any

from benchmarks.hazards.runner import Scene, start, work
from benchmarks.hazards.scenes import KINDS
from chunkpilot_core import files
from chunkpilot_core.eval import workers
from chunkpilot_core.eval.statistics import paired_difference, wilson
from chunkpilot_core.runs.progress import progress_bar

ROOT = Path(__file__).resolve().parents[2]
OUT = ROOT / 'runs' / 'bench-hazards'
GUARDS = ('ignorant', 'reactive', 'judged', 'predictive')

Done = dict[str, dict[str, dict[str, Any] | None]]
"""Episodes by scene (see :func:`key`) and guard; an empty scene has no place for its thing."""


def main() -> int:
    """Run what is missing, write the summary, tell the figures."""
    args = parse()
    file = args.out / 'episodes.json'
    settings = {'policy': args.policy, 'latency_s': args.latency, 'guards': args.guards}
    done = load(file, settings, args.again)
    try:
        run_missing(args, done, lambda: save(file, settings, done))
    except KeyboardInterrupt:
        save(file, settings, done)
        print(f'\ninterrupted after {len(done)} scenes; the same command goes on from here')
        return 130
    save(file, settings, done)
    chosen = {kind: found(done, kind, args.seed)[: args.episodes] for kind in KINDS}
    summary = {'settings': settings, 'seeds': chosen, **summarise(done, chosen, args.guards)}
    files.write_json(args.out / 'summary.json', summary)
    tell(summary, args.out)
    return 0


def run_missing(args: argparse.Namespace, done: Done, keep: Any) -> None:
    """Run scenes until there are enough of each kind."""
    had = sum(min(len(found(done, kind, args.seed)), args.episodes) for kind in KINDS)
    coming = missing(args, done)
    with (
        workers.pool(args.workers, start, (args.policy, args.latency)) as pool,
        progress_bar('scenes', len(KINDS) * args.episodes, initial=had) as bar,
    ):
        flying: set[Future[Any]] = set()
        try:
            while True:
                while len(flying) < args.workers and (scene := next(coming, None)):
                    flying.add(pool.submit(work, scene, args.guards))
                if not flying:
                    return
                ready, flying = wait(flying, return_when=FIRST_COMPLETED)
                for (kind, seed), episodes in (future.result() for future in ready):
                    done[key(kind, seed)] = episodes
                    bar.update(bool(episodes))
                keep()
        finally:
            pool.shutdown(cancel_futures=True)


def missing(args: argparse.Namespace, done: Done) -> Iterator[Scene]:
    """Yield scenes to run, seed by seed, as long as there are too few of their kind."""
    asked: set[str] = set()
    for seed in range(args.seed, args.seed + 10 * args.episodes):
        for kind in KINDS:
            open_ones = sum(name.startswith(kind) and name not in done for name in asked)
            enough = len(found(done, kind, args.seed)) + open_ones >= args.episodes
            if key(kind, seed) not in done and not enough:
                asked.add(key(kind, seed))
                yield kind, seed


def found(done: Done, kind: str, first: int) -> list[int]:
    """Return the seeds whose scenes have the thing, in order."""
    seeds = (
        int(name.split('/')[1]) for name, one in done.items() if one and name.startswith(kind)
    )
    return sorted(seed for seed in seeds if seed >= first)


def key(kind: str, seed: int) -> str:
    """Return the name of a scene."""
    return f'{kind}/{seed}'


def load(file: Path, settings: dict[str, Any], again: bool) -> Done:
    """Return the scenes of an interrupted run with the same settings."""
    if again or not file.is_file():
        return {}
    kept = json.loads(file.read_text(encoding='utf-8'))
    return dict(kept['scenes']) if kept['settings'] == settings else {}


def save(file: Path, settings: dict[str, Any], done: Done) -> None:
    """Keep what there is."""
    files.write_json(file, {'settings': settings, 'scenes': done})


def summarise(done: Done, chosen: dict[str, list[int]], guards: Sequence[str]) -> dict[str, Any]:
    """Return rows by guard and kind, and what prediction changes, with 95 % intervals."""
    rows, paired = [], []
    for kind in (*KINDS, 'all'):
        kinds = KINDS if kind == 'all' else (kind,)
        scenes: list[Any] = [done[key(k, seed)] for k in kinds for seed in chosen[k]]
        got = {guard: [scene[guard] for scene in scenes] for guard in guards}
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
        for name, of in MEASURES if {'reactive', 'predictive'} <= set(guards) else ():
            first, second = ([of(one) for one in got[g]] for g in ('reactive', 'predictive'))
            change = paired_difference(first, second).as_dict()
            paired.append({'hazard': kind, 'what': name, 'predictive_minus_reactive': change})
    return {'rows': rows, 'paired': paired}


def good(one: dict[str, Any]) -> bool:
    """Whether the task was solved and nothing touched."""
    return bool(one['success'] and not one['touched'])


MEASURES: tuple[tuple[str, Callable[[dict[str, Any]], bool]], ...] = (
    ('success', lambda one: one['success']),
    ('unsafe', lambda one: bool(one['touched'])),
    ('safe_success', good),
)


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
    parser.add_argument('--episodes', type=int, default=100, help='scenes of each hazard')
    parser.add_argument('--seed', type=int, default=3000, help='first one')
    parser.add_argument('--policy', default='flow_pick_and_place')
    parser.add_argument('--latency', type=float, default=0.05, help='of the policy [s]')
    parser.add_argument('--guards', nargs='+', choices=GUARDS, default=['reactive', 'predictive'])
    parser.add_argument('--workers', type=int, default=max((os.cpu_count() or 2) // 2, 1))
    parser.add_argument('--again', action='store_true', help='forget an interrupted run')
    parser.add_argument('--out', type=Path, default=OUT)
    return parser.parse_args()


if __name__ == '__main__':
    sys.exit(main())
