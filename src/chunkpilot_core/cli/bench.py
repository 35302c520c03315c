"""``chunkpilot bench``: strategies, or policies, over tasks, on the same seeds."""

import argparse
import os
from pathlib import Path

from chunkpilot_core.cli import _checks
from chunkpilot_core.errors import ConfigError

HELP = 'compare strategies, or policies, over tasks on the same seeds'
MAX_WORKERS = 1024


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add = parser.add_argument
    add('what', choices=['strategies', 'policies'], help='what is compared')
    add('--full', action='store_true', help='section full of the plan: hours; default: minutes')
    add('--section', help='another section of the plan, e.g. all: every strategy')
    add(
        '--only',
        nargs='+',
        default=[],
        metavar='WORD=NAME[,NAME]',
        help='run these only, by task, policy, strategy, and disturbance, latency of strategies; '
        'e.g. task=push strategy=upcycling. The summary still holds whatever is there of the '
        'whole plan',
    )
    add('--episodes', type=int, help="per row, instead of the plan's")
    add('--choice-episodes', type=int, help='strategies: per horizon, to choose the reference')
    add('--seed', type=int, help='first seed (default: 0)')
    add('--plan', type=Path, help='YAML file (default: config/benchmarks/<what>.yaml)')
    add('--out', type=Path, help='default: runs/bench-<what>')
    add('--workers', type=int, default=os.cpu_count() or 1, help='processes (default: cores)')


def main(args: argparse.Namespace) -> str | None:
    """Run what is missing, then write summary, page and plots; interrupted, it goes on later."""
    from chunkpilot_core.cli import _bench_policies, _bench_strategies

    _checks.number('--workers', args.workers, 1, MAX_WORKERS)
    args.out = args.out or Path(f'runs/bench-{args.what}')
    if args.what == 'policies':
        if args.choice_episodes is not None:
            raise ConfigError('--choice-episodes: of strategies only, policies have no reference')
        return _bench_policies.main(args)
    return _bench_strategies.main(args)
