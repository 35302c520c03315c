"""``chunkpilot bag repair``: a bag from what a killed recorder left."""

import argparse
import json
from pathlib import Path

HELP = 'make a bag of what a killed recorder left, or of a damaged bag'


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add = parser.add_argument
    add('bag', type=Path, help='a bag, NAME.unfinished, or a single .mcap or .db3 file')
    add('--out', type=Path, help='the new bag; default: NAME.repaired')
    add('--json', action='store_true', help='for machines')


def main(args: argparse.Namespace) -> None:
    """Repair; the old files are not touched."""
    from chunkpilot_core.bags.repair import default_out, repair
    from chunkpilot_core.cli._bags import told

    out = args.out or default_out(args.bag)
    made = repair(args.bag, out, lambda items: told(items, 'messages', args.json))
    if args.json:
        print(json.dumps(made.to_json(), indent=1))
        return
    for file in made.files:
        print(f'{file.file}: {file.messages} messages recovered')
        if file.lost_chunks:
            print(
                f'  lost: {file.lost_chunks} damaged chunks, {file.lost_messages} messages known'
            )
        elif file.lost_messages:
            print(f'  lost: {file.lost_messages} messages without a topic')
        if file.lost_bytes:
            print(f'  lost: {file.lost_bytes} bytes that make no sense')
        for reason in file.reasons[:5]:
            print(f'  {reason}')
    print(f'{made.path}: {made.messages} messages; {args.bag} is as it was')
