"""``chunkpilot bag info``: what is in bags."""

import argparse
from collections.abc import Mapping
from datetime import datetime, timezone
import json
from pathlib import Path
from typing import Any

HELP = 'show what is in bags: time, topics, rates, metadata'


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument('bags', nargs='+', type=Path, help='bags, or folders of bags')
    parser.add_argument('--json', action='store_true', help='for machines: a list, one per bag')


def main(args: argparse.Namespace) -> str | None:
    """Describe bags; several in one line each."""
    from chunkpilot_core.bags import info
    from chunkpilot_core.cli._bags import expand, told
    from chunkpilot_core.errors import BagError

    found, failed = [], 0
    for path in told(expand(args.bags), 'bags', quiet=args.json):
        try:
            found.append(info.describe(path))
        except BagError as error:  # one damaged bag does not hide the others
            found.append({'bag': str(path), 'error': str(error)})
            failed += 1
    if args.json:
        print(json.dumps(found, indent=1))
    elif len(found) == 1:
        if failed:
            return str(found[0]['error'])
        _show(found[0])
    else:
        _list(found)
    return '' if failed else None


def _show(bag: Mapping[str, Any]) -> None:
    from chunkpilot_core.cli._bags import console
    from rich.table import Table

    out = console()
    out.print(
        f'{bag["bag"]}: {bag["duration_s"]:.3f} s from {_time(bag["start_ns"])}, '
        f'{bag["messages"]} messages, {bag["bytes"] / 1e6:.2f} MB in {len(bag["files"])} '
        f'{bag["storage"]} files, metadata version {bag["version"]} {bag["distro"]}',
        markup=False,
        soft_wrap=True,
    )
    for key, value in bag['metadata'].items():
        out.print(f'  {key}: {value}', markup=False, soft_wrap=True)
    if bag['outcome'] and 'outcome' not in bag['metadata']:
        out.print(f'  outcome: {bag["outcome"]}: recording ended before the episode did')
    table = Table(box=None, header_style='bold')
    for name in ('topic', 'type', 'messages', 'Hz', 'QoS'):
        right = name in ('messages', 'Hz')
        table.add_column(name, justify='right' if right else 'left', overflow='fold')
    for name, topic in bag['topics'].items():
        qos = ('R' if topic['reliable'] else 'B') + (' L' if topic['latched'] else '')
        hz = '' if topic['hz'] is None else f'{topic["hz"]:.1f}'
        kind = topic['type'].replace('/msg/', '/')  # as people write it
        table.add_row(name, kind, str(topic['messages']), hz, f'{qos} {topic["depth"]}')
    out.print(table)


def _list(bags: list[dict[str, Any]]) -> None:
    from chunkpilot_core.cli._bags import console
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None, header_style='bold')
    for name in ('bag', 's', 'messages', 'MB', 'start', 'outcome'):
        right = name in ('s', 'messages', 'MB')
        table.add_column(name, justify='right' if right else 'left', overflow='fold')
    for bag in bags:
        name = escape(Path(bag['bag']).name)
        if 'error' in bag:
            table.add_row(name, '', '', '', '', escape(bag['error']))
            continue
        table.add_row(
            name,
            f'{bag["duration_s"]:.2f}',
            str(bag['messages']),
            f'{bag["bytes"] / 1e6:.2f}',
            _time(bag['start_ns']),
            escape(bag['outcome']),
        )
    console().print(table)


def _time(stamp_ns: int) -> str:
    seconds = stamp_ns / 1e9
    if seconds > 4e9:  # beyond 2096: no clock
        return f'{seconds:.3f} s'
    return datetime.fromtimestamp(seconds, timezone.utc).strftime('%Y-%m-%d %H:%M:%SZ')
