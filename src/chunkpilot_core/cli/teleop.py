"""``chunkpilot teleop``: drive the arm of a running graph by hand, from this terminal."""

import argparse
import os

from chunkpilot_core import registry
from chunkpilot_core.cli.up import assignments
from chunkpilot_core.errors import UnknownNameError
from chunkpilot_core.launching import packages

HELP = 'drive the arm of a running graph by hand: keyboard, gamepad or leader arm'


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's arguments."""
    parser.add_argument(
        'source',
        nargs='?',
        default='keyboard',
        help='keyboard, joy, leader, scripted, or package.module:Class (default: %(default)s)',
    )
    parser.add_argument(
        '--announce-space',
        action='store_true',
        help='no policy is in the graph: tell the action space that rows are recorded in',
    )
    parser.add_argument(
        'parameters', nargs='*', metavar='NAME:=VALUE', help='parameters of teleop_node'
    )


def main(args: argparse.Namespace) -> str | None:
    """Become the node, so that it has this terminal and its signals."""
    known = registry.names('teleop')
    if args.source not in known and ':' not in args.source:
        raise UnknownNameError('source', args.source, known)
    given = {'source': args.source, **assignments(args.parameters)}
    if args.announce_space:
        given['announce_space'] = 'true'
    command = [str(packages.executable('chunkpilot', 'teleop_node')), '--ros-args']
    for name, value in given.items():
        command += ['-p', f'{name}:={value}']
    os.execv(command[0], command)
