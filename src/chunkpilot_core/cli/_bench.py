"""What the two benches of the command line share: their plan, their part of it, their end."""

import argparse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
import shlex
import signal
import sys
from typing import Any

from chunkpilot_core.cli import _checks
from chunkpilot_core.errors import ConfigError
from chunkpilot_core.robot import config_dir


def read(args: argparse.Namespace, reader: Callable[[Path, str], Any]) -> Any:
    """
    Return the wanted section of the plan, with what the command line says instead.

    :raises ConfigError: unreadable, or a number out of range
    """
    file = args.plan or config_dir() / 'benchmarks' / f'{args.what}.yaml'
    plan = reader(file, args.section or ('full' if args.full else 'short'))
    given = {'episodes': args.episodes, 'choice_episodes': args.choice_episodes, 'seed': args.seed}
    given = {name: value for name, value in given.items() if value is not None}
    for name, value in given.items():
        low, high = (0, _checks.MAX_SEED) if name == 'seed' else (1, _checks.MAX_EPISODES)
        _checks.number(f'--{name.replace("_", "-")}', value, low, high)
    return replace(plan, **given)


def filters(words: list[str]) -> dict[str, list[str]]:
    """Return the names of each word of ``--only``."""
    found: dict[str, list[str]] = {}
    for word in words:
        name, mark, values = word.partition('=')
        if not (mark and values):
            raise ConfigError(f'--only {word!r}: must be WORD=NAME[,NAME]')
        found.setdefault(name, []).extend(values.split(','))
    return found


def command(args: argparse.Namespace) -> str:
    """Return the command that makes the whole table."""
    words = ['chunkpilot', 'bench', args.what, *(['--full'] if args.full else [])]
    for name in ('section', 'episodes', 'choice_episodes', 'seed', 'plan'):
        value = getattr(args, name)
        if value is not None:
            words += [f'--{name.replace("_", "-")}', str(value)]
    return shlex.join(words)


@contextmanager
def terminated() -> Iterator[None]:
    """Take a polite kill for Ctrl-C, so that the summary of what is there gets written."""

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    except KeyboardInterrupt:
        print('\ninterrupted; the same command goes on from here', file=sys.stderr)
        raise
    finally:
        signal.signal(signal.SIGTERM, before)
