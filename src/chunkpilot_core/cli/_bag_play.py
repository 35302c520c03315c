"""``chunkpilot bag play``: send what a bag has, by player_node."""

import argparse
import json
from pathlib import Path
import signal
import subprocess
import sys
import tempfile

HELP = 'play a bag: recorded messages at their times, on their topics'


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    from chunkpilot_core.cli._bags import select_arguments

    add = parser.add_argument
    add('bag', type=Path)
    add('--rate', type=float, default=1.0, help='2 = twice as fast (default: %(default)s)')
    add('--from', dest='start', type=float, default=0.0, help='[s] from its start (default: 0)')
    add('--duration', type=float, default=0.0, help='[s] of the bag; default: to its end')
    add('--loop', action='store_true', help='start over at the end, until Ctrl-C')
    select_arguments(parser)
    add('--remap', nargs='+', default=[], metavar='OLD:=NEW', help='send under other names')
    add(
        '--clock',
        nargs='?',
        type=float,
        const=100.0,
        default=0.0,
        metavar='HZ',
        help="send /clock with the bag's time, for nodes with use_sim_time (default: 100 Hz)",
    )
    add('--delay', type=float, default=1.0, help='[s] for subscribers to appear (default: 1)')
    add('--paused', action='store_true', help='wait for the service player/resume')
    add('--json', action='store_true', help='for machines, at the end')


def main(args: argparse.Namespace) -> str | None:
    """Start the node and wait for it."""
    from chunkpilot_core.bags.play import Schedule
    from chunkpilot_core.bags.reader import BagReader
    from chunkpilot_core.bags.selection import Selection
    from chunkpilot_core.cli import _checks

    _checks.number('--rate', args.rate, 0.001, 1000.0)
    _checks.number('--clock', args.clock, 0.0, 1000.0)
    _checks.number('--delay', args.delay, 0.0, 3600.0)
    _checks.number('--from', args.start, 0.0, 1e9)
    _checks.number('--duration', args.duration, 0.0, 1e9)
    end_s = args.start + args.duration if args.duration else float('inf')
    with BagReader(args.bag) as bag:  # what is wrong is told here, not by a node that dies
        chosen = Selection(tuple(args.topics), tuple(args.exclude), args.start, end_s)
        Schedule(bag, chosen, tuple(args.remap), args.clock, args.rate)
    with tempfile.TemporaryDirectory(prefix='chunkpilot-') as folder:
        report = Path(folder) / 'report.json'
        code = _run(command(args, report))
        if code not in (0, -signal.SIGINT):
            return f'player_node ended with exit code {code}; see above'
        if args.json and report.is_file():
            print(report.read_text(encoding='utf-8').rstrip())
    return None


def command(args: argparse.Namespace, report: Path) -> list[str]:
    """Return the command line of the node."""
    given = {
        'bag': str(args.bag.absolute()),
        'rate': float(args.rate),
        'start_s': float(args.start),
        'duration_s': float(args.duration),
        'loop': args.loop,
        'topics': args.topics,
        'exclude': args.exclude,
        'remaps': args.remap,
        'clock_hz': float(args.clock),
        'delay_s': float(args.delay),
        'paused': args.paused,
        'progress': sys.stderr.isatty() and not args.json,
        'report': str(report),
    }
    words = [sys.executable, '-m', 'chunkpilot_nodes.player_node', '--ros-args']
    for name, value in given.items():
        if value not in ([], ''):  # ROS can't tell the type of an empty list
            words += ['-p', f'{name}:={json.dumps(value)}']
    return words


def _run(words: list[str]) -> int:
    """Run the node; Ctrl-C reaches it by itself, and it ends cleanly."""
    node = subprocess.Popen(words)
    while True:
        try:
            return node.wait()
        except KeyboardInterrupt:
            continue
