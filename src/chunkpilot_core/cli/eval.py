"""``chunkpilot eval``: strategies against each other on the same seeds, on a virtual clock."""

import argparse
from dataclasses import asdict
import os
from pathlib import Path
from typing import Any

from chunkpilot_core import config, files, registry
from chunkpilot_core.cli import _checks
from chunkpilot_core.errors import ConfigError, UnknownNameError
import yaml

HELP = 'compare execution strategies in simulation, without ROS'
MAX_WORKERS = 1024
MAX_LATENCY_S = 59.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add = parser.add_argument
    add('--task', default='pick_and_place', help='default: %(default)s')
    add(
        '--policy',
        default='mlp',
        help='checkpoint folder, or short for <name>_<task> in config/policies (default: mlp)',
    )
    add(
        '--strategies',
        default='fixed,upcycling',
        help='plug-ins, the first is the reference; NAME@ROWS sets its horizon, NAME+WORD is '
        'another row of the same plug-in (default: %(default)s)',
    )
    add('--episodes', type=int, default=100, help='default: %(default)s')
    add('--seed', type=int, default=0, help='first seed, the same for all (default: 0)')
    add('--horizon', type=int, default=8, help='base horizon h [rows] (default: 8)')
    add('--ratio', type=float, default=1.5, help='r of upcycling (default: 1.5)')
    add('--latency', type=float, default=0.05, help='of an inference [s] (default: 0.05)')
    add('--jitter', type=float, default=0.0, help='standard deviation of it [s] (default: 0)')
    add('--trace', default='', help='file of latencies, one a line [s], instead')
    add(
        '--measured',
        action='store_true',
        help='add the measured time of inference; results are then not reproducible',
    )
    add(
        '--set',
        nargs='+',
        default=[],
        metavar='PART.NAME=VALUE',
        help='option of a strategy or of task, policy, world, disturbance, loop, perception, '
        'executor, surprise, guard, gate, prediction; e.g. upcycling.ratio=2 policy.flow_steps=2 '
        'disturbance.kind=object_jump; with a strategy before it, for its row alone: '
        'upcycling.executor.margin=0.5',
    )
    add('--workers', type=int, default=os.cpu_count() or 1, help='processes (default: cores)')
    add('--json', type=Path, help='write everything here; interrupted, the same command goes on')


def main(args: argparse.Namespace) -> str | None:
    """Run, print the table, write the file."""
    from chunkpilot_core.cli._bags import console
    from chunkpilot_core.eval import runner, summary
    from chunkpilot_core.eval.table import table

    _checks.number('--episodes', args.episodes, 1, _checks.MAX_EPISODES)
    _checks.number('--seed', args.seed, 0, _checks.MAX_SEED)
    _checks.number('--workers', args.workers, 1, MAX_WORKERS)
    _checks.number('--latency', args.latency, 0.0, MAX_LATENCY_S)
    _checks.number('--jitter', args.jitter, 0.0, MAX_LATENCY_S)
    settings = _settings(args)
    if args.json:
        _checks.destination('--json', args.json)
    partial = args.json.with_name(f'.{args.json.name}.partial') if args.json else None
    results = runner.run(settings, args.workers, partial)
    rows = summary.summarise(results, settings.seed)
    title = f'{settings.task}, {Path(settings.policy).name}, latency {_latency(settings)}'
    console().print(table(rows, title))
    if args.json:
        for row, episodes in zip(rows, results.values(), strict=True):
            row['results'] = list(episodes)
        document = {**_describe(settings), 'rows': rows}
        files.write_json(args.json, summary.plain(document))
        print(f'written: {args.json}')
    return None


def _settings(args: argparse.Namespace) -> Any:
    from chunkpilot_core.eval import runner

    entries, parts = _entries(args), {}
    names = {entry.label for entry in entries} | {entry.plugin for entry in entries}
    given = _assignments(args.set)
    task_options, policy_options = given.pop('task', {}), given.pop('policy', {})
    for part, values in given.items():
        if part in runner.PARTS:
            parts[part] = values
        elif part not in names and part.rpartition('.')[0] not in names:
            raise UnknownNameError(
                'part in --set', part, ['task', 'policy', *runner.PARTS, *names]
            )
    return runner.Settings(
        task=args.task,
        policy=_checks.policy(args.policy, args.task),
        entries=entries,
        episodes=args.episodes,
        seed=args.seed,
        latency_s=args.latency,
        jitter_s=args.jitter,
        trace=args.trace,
        measured_inference=args.measured,
        parts=parts,
        task_options=task_options,
        policy_options=policy_options,
    )


def _entries(args: argparse.Namespace) -> 'tuple[Any, ...]':
    from chunkpilot_core.eval.runner import Entry

    given = _assignments(args.set)
    entries = []
    for label in filter(None, args.strategies.split(',')):
        plugin, _, rows = label.partition('+')[0].partition('@')
        known = {info.name for info in config.options(registry.get('execution', plugin).Config)}
        common = {'horizon': _rows(label, rows) if rows else args.horizon, 'ratio': args.ratio}
        values = {name: value for name, value in common.items() if name in known}
        values |= given.get(plugin, {}) | given.get(label, {})
        parts: dict[str, dict[str, Any]] = {}
        for name, options in given.items():
            whose, _, part = name.rpartition('.')
            if whose in (plugin, label):
                parts[part] = parts.get(part, {}) | options
        entries.append(Entry(label, plugin, values, parts))
    return tuple(entries)


def _rows(label: str, text: str) -> int:
    if not text.isdigit():
        raise ConfigError(f'--strategies {label!r}: after @ comes a number of rows')
    return int(text)


def _assignments(words: list[str]) -> dict[str, dict[str, Any]]:
    values: dict[str, dict[str, Any]] = {}
    for word in words:
        name, mark, text = word.partition('=')
        part, dot, option = name.rpartition('.')
        if not (mark and dot):
            raise ConfigError(f'--set {word!r}: must be PART.NAME=VALUE')
        try:
            values.setdefault(part, {})[option] = yaml.safe_load(text)
        except yaml.YAMLError as error:
            raise ConfigError(f'--set {word!r}: {error}') from error
    return values


def _latency(settings: Any) -> str:
    if settings.trace:
        return f'from {settings.trace}'
    jitter = f' +- {1000 * settings.jitter_s:.0f}' if settings.jitter_s else ''
    return f'{1000 * settings.latency_s:.0f}{jitter} ms'


def _describe(settings: Any) -> dict[str, Any]:
    from chunkpilot_core.policies.runtime import checkpoint

    manifest = checkpoint.read_manifest(settings.policy)
    return {
        'settings': {**asdict(settings), 'policy': Path(settings.policy).name},
        'policy': {
            'name': manifest['spec']['name'],
            'version': manifest['spec']['version'],
            'weights_sha256': manifest['weights_sha256'],
        },
    }
