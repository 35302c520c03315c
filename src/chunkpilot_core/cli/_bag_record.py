"""``chunkpilot bag record``: run recorder_node with the options that ``ros2 bag record`` has."""

import argparse
from collections.abc import Mapping, Sequence
import json
import os
from pathlib import Path
import re
import time

from chunkpilot_core.bags.information import NAME, NAME_RULE
from chunkpilot_core.bags.writer import UNFINISHED
from chunkpilot_core.cli import _checks
from chunkpilot_core.cli._bags import unfinished
from chunkpilot_core.errors import ConfigError
from chunkpilot_core.launching import isolation, packages
from chunkpilot_core.launching.interpreter import Process
from chunkpilot_core.launching.supervisor import Supervisor
from chunkpilot_core.launching.terminal import Terminal

HELP = 'record topics into a bag, until Ctrl-C'
_NODE = 'recorder_node'
_GRACE_S = 120.0
"""What completing a bag may take on a slow disk."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add = parser.add_argument
    add('topics', nargs='*', metavar='TOPIC', help='topics to record, full names')
    add('--topics', dest='more_topics', nargs='+', default=[], metavar='TOPIC', help='the same')
    add('-a', '--all', action='store_true', help='record all topics')
    add('-e', '--regex', default='', help='record topics that match, too')
    add('-x', '--exclude-regex', default='', help='leave out topics that match')
    add('--exclude-topics', nargs='+', default=[], metavar='TOPIC', help='leave these out')
    add('-o', '--output', type=Path, help='folder of the bag (default: rosbag2_<date>-<time>)')
    add('-b', '--max-bag-size', type=int, default=0, help='[bytes] at which the next file begins')
    add('-d', '--max-bag-duration', type=float, default=0.0, help='[s] the same by time')
    add('--max-cache-size', type=int, default=2**28, help='[bytes] that may wait for the disk')
    add('--use-sim-time', action='store_true', help='stamp messages with /clock')
    add('--custom-data', nargs='+', default=[], metavar='KEY=VALUE', help='kept in metadata.yaml')
    add('--per-episode', action='store_true', help='a bag for each episode, in folder OUTPUT')


def main(args: argparse.Namespace) -> str | None:
    """Record until a signal, or an error."""
    if args.output is None:
        args.output = Path(
            'runs/bags' if args.per_episode else time.strftime('rosbag2_%Y_%m_%d-%H_%M_%S')
        )
    process = Process(_NODE, _command(), parameters=(json.dumps(_parameters(args)),))
    isolation.clean_shared_memory()
    before = set(_left(args))
    supervisor = Supervisor([process], Terminal([_NODE]), dict(os.environ), grace_s=_GRACE_S)
    code = supervisor.run()
    if not (code or supervisor.exit_codes.get(_NODE, 1)):
        return None
    return (
        unfinished(left) if (left := [path for path in _left(args) if path not in before]) else ''
    )


def _left(args: argparse.Namespace) -> list[Path]:
    """Return the unfinished bags that are where bags go."""
    output = args.output
    if args.per_episode:
        return sorted(output.glob(f'*{UNFINISHED}'))
    beside = output.with_name(output.name + UNFINISHED)
    return [beside] if beside.exists() else []


def _command() -> tuple[str, ...]:
    return str(packages.executable('chunkpilot', _NODE)), '--ros-args'


def _parameters(args: argparse.Namespace) -> Mapping[str, object]:
    """
    Return the parameters of the node as its parameter file has them; JSON is YAML.

    :raises ConfigError: arguments that are not allowed or contradict one another
    """
    topics, output = [*args.topics, *args.more_topics], args.output
    _check(args, topics)
    pairs = [_pair(text) for text in args.custom_data]
    folder = output.absolute() if args.per_episode else output.absolute().parent
    parameters: dict[str, object] = {
        'directory': str(folder),
        'per_episode': args.per_episode,
        'start': not args.per_episode,
        'name': '' if args.per_episode else output.name,
        'keys': [key for key, _ in pairs],
        'values': [value for _, value in pairs],
        'topics': [name if name.startswith('/') else f'/{name}' for name in topics],
        'regex': args.regex,
        'exclude': args.exclude_topics,
        'exclude_regex': args.exclude_regex,
        'max_bag_size': args.max_bag_size,
        'max_bag_duration': args.max_bag_duration,
        'max_queue_mb': args.max_cache_size // 2**20,
        'use_sim_time': args.use_sim_time,
    }
    # ROS can't tell the type of an empty list, and such a parameter stays what it is by default.
    given = {name: value for name, value in parameters.items() if value != []}
    return {_NODE: {'ros__parameters': given}}


def _check(args: argparse.Namespace, topics: Sequence[str]) -> None:
    if not (args.all or topics or args.regex or args.per_episode):
        raise ConfigError('which topics? Name them, or give --all or --regex')
    if args.all and (topics or args.regex):
        raise ConfigError('--all and chosen topics exclude one another')
    _checks.number('--max-bag-size', args.max_bag_size, 0, 2**62)
    _checks.number('--max-bag-duration', args.max_bag_duration, 0, 2**62)
    _checks.number('--max-cache-size', args.max_cache_size, 2**20, 2**40)
    output = args.output
    if not args.per_episode and output.exists():
        raise ConfigError(f'{output} exists already, bags are not overwritten')
    if not (args.per_episode or NAME.fullmatch(output.name)):
        raise ConfigError(f'bag name {output.name!r}: {NAME_RULE}')
    for pattern in (args.regex, args.exclude_regex):
        try:
            re.compile(pattern)
        except re.error as error:
            raise ConfigError(f'{pattern!r} is no regular expression: {error}') from error


def _pair(text: str) -> tuple[str, str]:
    key, separator, value = text.partition('=')
    if not (key and separator):
        raise ConfigError(f'--custom-data {text!r}: must be KEY=VALUE')
    return key, value
