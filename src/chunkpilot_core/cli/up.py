"""``chunkpilot up``: run a ROS 2 YAML launch file without ROS's own launch."""

import argparse
from collections.abc import Sequence
from contextlib import nullcontext
import os

from chunkpilot_core.errors import ConfigError
from chunkpilot_core.launching import interpreter, isolation
from chunkpilot_core.launching.supervisor import Supervisor
from chunkpilot_core.launching.terminal import Terminal

HELP = 'start the nodes of a launch file'


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's arguments."""
    parser.add_argument(
        'file', help='launch file (YAML), or the name of one of chunkpilot\'s: "demo"'
    )
    parser.add_argument(
        'arguments', nargs='*', metavar='NAME:=VALUE', help='arguments of the launch file'
    )
    parser.add_argument(
        '-s', '--show-args', action='store_true', help='list the arguments of the launch file'
    )
    parser.add_argument(
        '--dry-run', action='store_true', help='print the commands and start nothing'
    )
    parser.add_argument(
        '--isolated', action='store_true', help='in a ROS domain that no other graph here uses'
    )


def main(args: argparse.Namespace) -> str | None:
    """Run the verb."""
    file = interpreter.find(args.file)
    if args.show_args:
        print(describe_arguments(interpreter.declared(file)))
        return None
    processes = interpreter.interpret(file, assignments(args.arguments))
    if args.dry_run:
        print('\n'.join(describe_process(process) for process in processes))
        return None
    with isolation.own_domain() if args.isolated else nullcontext() as domain:
        environment = dict(os.environ)
        if domain is not None:
            environment['ROS_DOMAIN_ID'] = str(domain)
            print(f'ROS_DOMAIN_ID={domain}', flush=True)
        isolation.clean_shared_memory()
        terminal = Terminal([process.name for process in processes])
        code = Supervisor(processes, terminal, environment).run()
        isolation.clean_shared_memory()
    return '' if code else None


def assignments(words: Sequence[str]) -> dict[str, str]:
    """
    Read ``name:=value`` words.

    :raises ConfigError: a word of another form, or a name given twice
    """
    values: dict[str, str] = {}
    for word in words:
        name, separator, value = word.partition(':=')
        if not separator or not name:
            raise ConfigError(f'{word!r}: launch arguments have the form NAME:=VALUE')
        if name in values:
            raise ConfigError(f'argument {name!r} is given twice')
        values[name] = value
    return values


def describe_arguments(arguments: dict[str, interpreter.Argument]) -> str:
    """Return the list that ``--show-args`` prints."""
    lines = []
    for argument in arguments.values():
        default = (
            'has to be given' if argument.default is None else f'default: {argument.default!r}'
        )
        lines.append(f'{argument.name}: {argument.description} ({default})')
        if argument.choices:
            lines.append(f'    one of: {", ".join(argument.choices)}')
    return '\n'.join(lines) or 'no arguments'


def describe_process(process: interpreter.Process) -> str:
    """Return a process as ``--dry-run`` prints it: a command, and what goes with it."""
    notes = [f'[{process.name}] {" ".join(process.command)}']
    notes += [f'    {name}={value}' for name, value in process.environment.items()]
    for entry in process.parameters:
        text = entry if isinstance(entry, str) else f'--params-file {entry}'
        notes += [f'    {line}' for line in text.rstrip().splitlines()]
    return '\n'.join(notes)
