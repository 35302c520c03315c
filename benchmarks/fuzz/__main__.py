"""
Attacks the guard for a million ticks and counts what it should not have done.

    make fuzz [FUZZ_ARGS='--ticks 100000 --seed 1']
    python -m benchmarks.fuzz [--ticks N] [--sim-ticks N] [--seed N] [--again] [--episode KIND N]

First the guard alone, with random limits, then in front of the simulated arm, where PyBullet
counts the collisions. An interrupted run goes on where it was. Writes runs/fuzz/summary.json:
``ticks``, ``limit_violations``, ``property_failures``, ``sim_ticks``, ``collisions``, and of the
first failures what was wrong and the episode, which ``--episode`` runs again by itself.
"""

import argparse
from collections import Counter
import json
from pathlib import Path
import signal
import sys
import time
from typing import Any

from benchmarks.fuzz.attack import Episode
from benchmarks.fuzz.sim import SimEpisode
from chunkpilot_core import files
from chunkpilot_core import robot as robots
from chunkpilot_core.runs.progress import progress_bar
from chunkpilot_core.types import Reaction

ROOT = Path(__file__).resolve().parents[2]
OUT = ROOT / 'runs' / 'fuzz'
KINDS = {'core': (Episode, 2000), 'sim': (SimEpisode, 1000)}
"""Classes of episodes, and their ticks."""
TICKS = {'core': 'ticks', 'sim': 'sim_ticks'}
COUNTS = {'limit': 'limit_violations', 'collision': 'collisions'}
TOLD = 20  # failures that are told one by one
SAVE_S = 5.0


def main() -> int:
    """Attack, write the summary, return 1 when anything was wrong."""
    args = parse()
    # A shell that starts this in the background has SIGINT ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    robot = robots.load(args.robot)
    if args.episode is not None:
        return run_one(robot, args.seed, args.episode[0], int(args.episode[1]))
    file = args.out / 'progress.json'
    done = fresh(args) if args.again else resumed(file, args)
    try:
        campaign(robot, 'core', args.ticks, done, file)
        campaign(robot, 'sim', args.sim_ticks, done, file)
    except KeyboardInterrupt:
        files.write_json(file, done)
        print(f'\ninterrupted after {done["ticks"]} ticks; the same command goes on from here')
        return 130
    files.write_json(args.out / 'summary.json', done)
    file.unlink(missing_ok=True)
    tell(done, args.out)
    return 1 if any(done[name] for name in ('property_failures', *COUNTS.values())) else 0


def campaign(robot: robots.Robot, kind: str, ticks: int, done: dict[str, Any], file: Path) -> None:
    """Run episodes of one kind until there are so many ticks; progress is kept in a file."""
    name, (_, length) = TICKS[kind], KINDS[kind]
    began = saved = time.monotonic()
    before_s = done['seconds']
    with progress_bar(kind, ticks, initial=done[name], unit='tick') as bar:
        while done[name] < ticks:
            count = min(length, ticks - done[name])
            attack(robot, kind, done, count)
            bar.update(count)
            bar.set_postfix(wrong=len(done['failures']))
            done['seconds'] = round(before_s + time.monotonic() - began, 1)
            if time.monotonic() - saved > SAVE_S:
                saved = time.monotonic()
                files.write_json(file, done)


def attack(robot: robots.Robot, kind: str, done: dict[str, Any], count: int) -> None:
    """Run one episode and add what it found."""
    number = done['episodes'][kind]
    episode = KINDS[kind][0](robot, (done['seed'], number))
    states = Counter(done['ticks_by_state'])
    for tick in range(count):
        for what in wrong_of(episode):
            done[COUNTS.get(what.split(':')[0].split(' ')[0], 'property_failures')] += 1
            if len(done['failures']) < TOLD:
                entry = {'kind': kind, 'episode': number, 'tick': tick, 'what': what}
                done['failures'].append(entry)
        if episode.tick is not None:
            states[episode.tick.verdict.state.name] += 1
    done['ticks_by_state'] = dict(states)
    if episode.tick is not None:
        reactions = Counter(done['ticks_by_reaction'])
        names = [reaction.name for reaction in Reaction]
        reactions.update(dict(zip(names, episode.tick.verdict.counters, strict=True)))
        done['ticks_by_reaction'] = dict(reactions)
    episode.close()
    done['episodes'][kind] += 1
    done[TICKS[kind]] += count


def wrong_of(episode: Episode) -> list[str]:
    """Let a tick pass; an exception is a failure, too."""
    try:
        return episode.step()
    except Exception as error:
        return [f'raised {type(error).__name__}: {error}']


def run_one(robot: robots.Robot, seed: int, kind: str, number: int) -> int:
    """Run one episode again and say what is wrong with it."""
    cls, length = KINDS[kind]
    episode, bad = cls(robot, (seed, number)), 0
    for tick in range(length):
        for what in episode.step():
            bad += 1
            print(f'tick {tick}, {episode.mood.__name__}: {what}')
    print(f'{kind} episode {number}: {bad} failures')
    return 1 if bad else 0


def fresh(args: argparse.Namespace) -> dict[str, Any]:
    """Return the summary of nothing."""
    return {
        'ticks': 0,
        'limit_violations': 0,
        'property_failures': 0,
        'sim_ticks': 0,
        'collisions': 0,
        'seed': args.seed,
        'robot': args.robot,
        'seconds': 0.0,
        'episodes': dict.fromkeys(KINDS, 0),
        'ticks_by_state': {},
        'ticks_by_reaction': {},
        'failures': [],
    }


def resumed(file: Path, args: argparse.Namespace) -> dict[str, Any]:
    """Return what an interrupted run of the same seed and robot has done."""
    start = fresh(args)
    try:
        done = json.loads(file.read_text())
        same = all(done[key] == start[key] for key in ('seed', 'robot'))
        if same and done.keys() == start.keys():
            print(f'going on after {done["ticks"]} ticks; --again begins anew')
            return dict(done)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        pass
    return start


def tell(done: dict[str, Any], out: Path) -> None:
    """Print the figures."""
    print(
        f'{done["ticks"]} ticks with {done["episodes"]["core"]} robots and {done["sim_ticks"]} '
        f'in the sim, {done["seconds"]} s: {done["limit_violations"]} limit violations, '
        f'{done["property_failures"]} property failures, {done["collisions"]} collisions'
    )
    print('ticks by state:', done['ticks_by_state'])
    for failure in done['failures']:
        where = f'{failure["kind"]} episode {failure["episode"]}, tick {failure["tick"]}'
        print(f'  {where}: {failure["what"]}')
    print(f'{out}/summary.json')


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or '').split('\n\n')[0])
    parser.add_argument('--ticks', type=int, default=1_000_000, help='default: %(default)s')
    parser.add_argument('--sim-ticks', type=int, default=20_000, help='default: %(default)s')
    parser.add_argument('--seed', type=int, default=0, help='default: %(default)s')
    parser.add_argument('--robot', default='panda', help='default: %(default)s')
    parser.add_argument('--out', type=Path, default=OUT, help='default: runs/fuzz')
    parser.add_argument('--again', action='store_true', help='begin anew')
    parser.add_argument(
        '--episode', nargs=2, metavar=('KIND', 'N'), help='run this one again: core 12, sim 3'
    )
    args = parser.parse_args()
    if args.ticks < 0 or args.sim_ticks < 0 or args.seed < 0:
        parser.error('--ticks, --sim-ticks and --seed: 0 or more')
    if args.episode and not (args.episode[0] in KINDS and args.episode[1].isdecimal()):
        parser.error(f'--episode {" ".join(args.episode)}: known are core N and sim N')
    args.out.mkdir(parents=True, exist_ok=True)
    return args


if __name__ == '__main__':
    sys.exit(main())
