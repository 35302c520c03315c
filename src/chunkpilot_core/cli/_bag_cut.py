"""``chunkpilot bag cut``: a part of a bag as a new bag."""

import argparse
import json
import math
from pathlib import Path

HELP = 'write a part of a bag as a new bag: a range of time, some topics'


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    from chunkpilot_core.cli._bags import select_arguments

    add = parser.add_argument
    add('bag', type=Path)
    add('--out', type=Path, required=True, help='the new bag, a folder that does not exist')
    add('--from', dest='start', type=float, default=0.0, help='[s] from its start (default: 0)')
    add('--to', dest='end', type=float, default=math.inf, help='[s] from its start; default: end')
    select_arguments(parser)
    add('--json', action='store_true', help='for machines')


def main(args: argparse.Namespace) -> None:
    """Cut."""
    from chunkpilot_core.bags.cut import cut
    from chunkpilot_core.bags.selection import Selection
    from chunkpilot_core.cli._bags import told

    chosen = Selection(tuple(args.topics), tuple(args.exclude), args.start, args.end)
    made = cut(args.bag, args.out, chosen, lambda items: told(items, 'messages', args.json))
    if args.json:
        print(json.dumps({'bag': str(made.path), 'messages': made.messages}))
    else:
        print(f'{made.path}: {made.messages} messages of {made.topics} topics')
