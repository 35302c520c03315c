"""``chunkpilot bench strategies``: what strategies cost and bring, on tasks where it shows."""

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
import os
from pathlib import Path
import shlex
import signal
from typing import Any

from chunkpilot_core import files
from chunkpilot_core.cli import _checks
from chunkpilot_core.errors import ConfigError
from chunkpilot_core.robot import config_dir

HELP = 'compare strategies over tasks, policies, disturbances and latencies'
MAX_WORKERS = 1024


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add = parser.add_argument
    add('what', choices=['strategies'], help='what is compared')
    add('--full', action='store_true', help='section full of the plan: hours; default: minutes')
    add('--section', help='another section of the plan, e.g. all: every strategy')
    add(
        '--only',
        nargs='+',
        default=[],
        metavar='WORD=NAME[,NAME]',
        help='run these only, by task, policy, disturbance, latency, strategy; e.g. task=push '
        'strategy=upcycling. The summary still holds whatever is there of the whole plan',
    )
    add('--episodes', type=int, help="per row, instead of the plan's")
    add('--choice-episodes', type=int, help='per horizon, to choose the reference')
    add('--seed', type=int, help='first seed (default: 0)')
    add('--plan', type=Path, help='YAML file (default: config/benchmarks/strategies.yaml)')
    add('--out', type=Path, default=Path('runs/bench-strategies'), help='default: %(default)s')
    add('--workers', type=int, default=os.cpu_count() or 1, help='processes (default: cores)')


def main(args: argparse.Namespace) -> str | None:
    """Run what is missing, then write summary, page and plots; interrupted, it goes on later."""
    from chunkpilot_core.eval.grid import plan as plans
    from chunkpilot_core.eval.grid.run import Runner
    from chunkpilot_core.eval.grid.store import Store

    _checks.number('--workers', args.workers, 1, MAX_WORKERS)
    plan = _plan(args)
    plan.check()
    part = plans.only(plan, _filters(args.only))
    _checks.writable('--out', args.out / 'cells')
    store = Store(args.out / 'cells')
    for name in plans.checkpoints(part):
        if not plans.found(name):
            print(f'left out: there is no checkpoint {name}')
    runner = Runner(store, args.workers)
    try:
        with _terminated():
            _run(part, store, runner, lambda: _write(args, plan, store))
    finally:
        runner.close()
        _write(args, plan, store)
    print((args.out / 'summary.md').read_text(encoding='utf-8'))
    plots = _plots(args, plan, store)
    print(f'written: {args.out}: ' + ', '.join(['summary.json', 'summary.md', *plots]))
    return None


def _plan(args: argparse.Namespace) -> Any:
    from chunkpilot_core.eval.grid import plan as plans

    file = args.plan or config_dir() / 'benchmarks' / 'strategies.yaml'
    plan = plans.read(file, args.section or ('full' if args.full else 'short'))
    given = {'episodes': args.episodes, 'choice_episodes': args.choice_episodes, 'seed': args.seed}
    given = {name: value for name, value in given.items() if value is not None}
    for name, value in given.items():
        low, high = (0, _checks.MAX_SEED) if name == 'seed' else (1, _checks.MAX_EPISODES)
        _checks.number(f'--{name.replace("_", "-")}', value, low, high)
    return replace(plan, **given)


def _filters(words: list[str]) -> dict[str, list[str]]:
    filters: dict[str, list[str]] = {}
    for word in words:
        name, mark, values = word.partition('=')
        if not (mark and values):
            raise ConfigError(f'--only {word!r}: must be WORD=NAME[,NAME]')
        filters.setdefault(name, []).extend(values.split(','))
    return filters


def _run(part: Any, store: Any, runner: Any, write: Any) -> None:
    from chunkpilot_core.eval.grid import plan as plans
    from chunkpilot_core.eval.grid import rows

    for group in plans.groups(part):
        if not plans.found(plans.checkpoint_of(part, group)):
            continue
        where = f'{group.task}, {group.policy}'
        runner.run(list(plans.choice_cells(part, group).values()), f'{where}: choice')
        base = rows.chosen(part, store, group)
        assert base is not None
        cells = plans.cells(part, group, base)
        for one in cells:
            if reason := plans.refusal(one):
                print(f'left out: {where}: {reason}')
        served = [one for one in cells if not plans.refusal(one)]
        title = f'{where}, {group.disturbance}, {1000 * group.latency_s:g} ms'
        runner.run(served, title)
        if plans.measures_overlaps(part, group):
            runner.overlaps(plans.overlap_cell(part, group, base))
        write()


def _write(args: argparse.Namespace, plan: Any, store: Any) -> None:
    from chunkpilot_core.eval.grid import page, rows
    from chunkpilot_core.eval.summary import plain

    found = rows.summary(plan, store)
    command = _command(args)
    files.write_json(args.out / 'summary.json', plain({'command': command, **found}))
    files.write(args.out / 'summary.md', page.markdown(found, command))


def _plots(args: argparse.Namespace, plan: Any, store: Any) -> list[str]:
    from chunkpilot_core.eval.grid import page, rows

    try:
        return [file.name for file in page.plot(rows.summary(plan, store), args.out)]
    except ImportError as error:
        print(f'no plots: {error}')
        return []


def _command(args: argparse.Namespace) -> str:
    """Return the command that makes the whole table."""
    words = ['chunkpilot', 'bench', args.what, *(['--full'] if args.full else [])]
    for name in ('section', 'episodes', 'choice_episodes', 'seed', 'plan'):
        value = getattr(args, name)
        if value is not None:
            words += [f'--{name.replace("_", "-")}', str(value)]
    return shlex.join(words)


@contextmanager
def _terminated() -> Iterator[None]:
    """Take a polite kill for Ctrl-C, so that the summary of what is there gets written."""

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
