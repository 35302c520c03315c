"""``chunkpilot bag merge``: several bags as one."""

import argparse
import json
from pathlib import Path

HELP = 'write several bags as one, in the order of time'


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add = parser.add_argument
    add('bags', nargs='+', type=Path, help='bags, or folders of bags')
    add('--out', type=Path, required=True, help='the new bag, a folder that does not exist')
    add('--align', action='store_true', help='let all start together: their clocks disagree')
    add('--json', action='store_true', help='for machines')


def main(args: argparse.Namespace) -> None:
    """Merge."""
    from chunkpilot_core.bags.merge import merge
    from chunkpilot_core.cli._bags import expand, told

    bags = expand(args.bags)
    made = merge(bags, args.out, lambda items: told(items, 'messages', args.json), args.align)
    if args.json:
        print(json.dumps({'bag': str(made.path), 'messages': made.messages}))
    else:
        print(f'{made.path}: {made.messages} messages of {made.topics} topics')
