"""``chunkpilot guard replay``: decide a recorded run once more, and compare."""

import argparse
from collections.abc import Mapping, Sequence
import json
from pathlib import Path
import subprocess
import sys
from typing import Any

HELP = 'tell a fresh guard what a bag tells: it has to decide the same, to the last bit'


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument('bags', nargs='+', type=Path, help='bags, or folders of bags')
    parser.add_argument(
        '--robot',
        default='',
        help='your own robot file, where the guard had one: its URDF may be read then',
    )
    parser.add_argument('--json', action='store_true', help='for machines: a list, one per bag')


def main(args: argparse.Namespace) -> str | None:
    """Have the module beside guard_node do it: both have to understand messages the same way."""
    from chunkpilot_core.cli._bags import expand

    found = expand(args.bags)
    told = _run([str(path) for path in found], args.robot)
    if isinstance(told, str):
        return told
    if args.json:
        print(json.dumps(told, indent=1))
    else:
        for entry in told:
            _show(entry)
    bad = [entry for entry in told if not _agrees(entry)]
    if len(told) > 1 and not args.json:
        print(f'{len(told) - len(bad)} of {len(told)} bags: every decision is the same')
    return '' if bad else None


def _run(paths: Sequence[str], robot: str) -> list[dict[str, Any]] | str:
    words = [sys.executable, '-m', 'chunkpilot_nodes.guard_replay', f'--robot={robot}', *paths]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    try:
        told: list[dict[str, Any]] = json.loads(done.stdout)
    except ValueError:
        last = done.stderr.strip().split('\n')[-1]
        if 'ModuleNotFoundError' in last:
            return f'{last}; this needs the built messages: source env.sh'
        return f'guard_replay ended with exit code {done.returncode}: {last}'
    return told


def _agrees(entry: Mapping[str, Any]) -> bool:
    return 'error' not in entry and all(run['agrees'] for run in entry['runs'])


def _show(entry: Mapping[str, Any]) -> None:
    if 'error' in entry:
        print(f'{entry["bag"]}: {entry["error"]}', file=sys.stderr)
        return
    print(f'{entry["bag"]}:')
    for run in entry['runs']:
        what = 'the same' if run['agrees'] else 'NOT the same'
        if not run['followed']:
            what = 'could not be followed: it never rests, nor is it armed, in this bag'
        print(
            f'  guard of {run["robot"]}, from {run["begins_s"]:.3f} s: '
            f'{run["verdicts"]} verdicts, {run["followed"]} decided once more, '
            f'{run["identical"]} to the last bit: {what}'
        )
        places = ', '.join(f'{at_s:.3f} s' for at_s in run['followed_from_s'])
        if places and run['followed'] < run['verdicts']:
            print(f'    followed from {places}')
        for topic, count in run['missing'].items():
            print(f'    the bag lacks {count} messages of {topic} that the guard had taken')
        for note in run['notes']:
            print(f'    {note}')
        for found in run['differences'][:1]:
            _show_difference(found)


def _show_difference(found: Mapping[str, Any]) -> None:
    print(f'    first difference: verdict {found["tick"]} at {found["at_s"]:.3f} s')
    for name, (was, now) in found['fields'].items():
        print(f'      {name}: recorded {was or "nothing"}, decided now {now or "nothing"}')
    if found['reason'][0] and 'reason' not in found['fields']:
        print(f'      its reason: {found["reason"][0]}')
    taken = ', '.join(found['taken']) or 'nothing'
    print(f'      before it was taken: {taken}')
