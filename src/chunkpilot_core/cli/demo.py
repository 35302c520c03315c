"""``chunkpilot demo``: the whole graph at work, headless; what ``make demo`` runs."""

import argparse
from contextlib import ExitStack, suppress
import json
import os
from pathlib import Path
import sys
from tempfile import TemporaryFile
import time
from typing import Any, TextIO

from chunkpilot_core import files
from chunkpilot_core.cli import _checks
from chunkpilot_core.errors import ConfigError
from chunkpilot_core.launching import interpreter, isolation
from chunkpilot_core.launching.interpreter import Process
from chunkpilot_core.launching.supervisor import Supervisor

HELP = 'run episodes through the whole graph, then show numbers, a plot and a film'
CLIENT = 'demo_client'
CAP_SYS_NICE = 23
LAUNCH = 'demo.launch.yaml'


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's arguments."""
    parser.add_argument('--task', default='pick_and_place', help='default: %(default)s')
    parser.add_argument('--episodes', type=int, default=20, help='default: %(default)s')
    parser.add_argument(
        '--seed', type=int, default=1000, help='of the first (default: %(default)s)'
    )
    parser.add_argument(
        '--timeout', type=float, default=0.0, help="[s] per episode; 0: the task's"
    )
    parser.add_argument('--out', type=Path, default=Path('runs/demo'), help='default: %(default)s')
    parser.add_argument('--launch', default=LAUNCH, help='default: %(default)s')
    parser.add_argument('--verbose', action='store_true', help='show what the nodes print')
    parser.add_argument(
        '--strict',
        action='store_true',
        help='exit code 1 also when an episode was aborted, that is did not run until its task '
        'was solved or its time over; the guard may hold an arm on a busy machine, so that '
        'without this it is 1 only when a node died or nothing was executed. An unsolved task is '
        'a figure, no error',
    )
    parser.add_argument('arguments', nargs='*', metavar='NAME:=VALUE', help='for the launch file')


def main(args: argparse.Namespace) -> str | None:
    """Run the verb."""
    from chunkpilot_core.cli.up import assignments
    from chunkpilot_core.runs.episodes import check_request

    started = time.monotonic()
    out: Path = args.out
    check_request(args.episodes, args.seed, args.timeout)
    check_writable(out)
    given = {'task': args.task, 'priority': priority(), **assignments(args.arguments)}
    if 'policy' in given and args.launch == LAUNCH:  # else its node would die again and again
        given['policy'] = _checks.policy(given['policy'], given['task'])
    nodes = interpreter.interpret(interpreter.find(args.launch), given)
    for name in ('summary.json', 'run.json', 'episode.npz', 'episode.gif', 'episode.png'):
        (out / name).unlink(missing_ok=True)  # of the run before
    print(f'{len(nodes)} nodes, {args.episodes} episodes; node output: {out}/log', flush=True)
    with ExitStack() as stack:
        domain = stack.enter_context(isolation.own_domain())
        logs = Logs(out / 'log', args.verbose)
        stack.callback(logs.close)
        isolation.clean_shared_memory()
        environment = {**os.environ, 'ROS_DOMAIN_ID': str(domain)}
        supervisor = Supervisor([*nodes, client(args, nodes)], logs, environment)
        code = supervisor.run()
        isolation.clean_shared_memory()
    if supervisor.interrupted:
        raise KeyboardInterrupt
    if not (out / 'run.json').is_file():
        return f'nothing came of it; see above and {out}/log'
    restarts = {name: count for name, count in supervisor.restarts.items() if count}
    known = {'node_restarts': restarts, 'priority': int(given['priority'])}
    summary = conclude(out, known, time.monotonic() - started)
    if restarts or code:
        return f'a node died: {restarts or "see above"}; see {out}/log'
    if not summary['executed_rows']:
        return 'nothing was executed'
    if args.strict and summary['aborted']:
        return f'{summary["aborted"]} of {summary["episodes"]} episodes were aborted, see above'
    return None


def check_writable(out: Path) -> None:
    """
    Make the folder of the results, and try to write there: before the graph runs for minutes.

    :raises ConfigError: if that can't be done, with the reason
    """
    try:
        for folder in (out, out / 'log'):
            folder.mkdir(parents=True, exist_ok=True)
            with TemporaryFile(dir=folder):
                pass
    except OSError as error:
        raise ConfigError(f'--out {out}: must be a folder to write to: {error}') from error


def client(args: argparse.Namespace, nodes: list[Process]) -> Process:
    """Return the process that asks for the episodes; when it ends, everything does."""
    command = (sys.executable, '-m', 'chunkpilot_nodes.demo_client')
    options = ('task', 'episodes', 'seed', 'timeout', 'out')
    words = [word for name in options for word in (f'--{name}', str(getattr(args, name)))]
    environment = nodes[0].environment if nodes else {}
    return Process(CLIENT, (*command, *words), environment=environment, required=True)


def priority() -> str:
    """
    Return the niceness to ask for: a machine shared with others delays ticks otherwise.

    Only where the process may (CAP_SYS_NICE), so that nothing has to be refused.
    """
    for line in Path('/proc/self/status').read_text(encoding='utf-8').splitlines():
        if line.startswith('CapEff:') and int(line.split()[1], 16) & 1 << CAP_SYS_NICE:
            return '-10'
    return '0'


def conclude(out: Path, known: dict[str, Any], duration_s: float) -> dict[str, Any]:
    """Write summary and pictures, and print the table; returns the summary."""
    from chunkpilot_core import robot
    from chunkpilot_core.runs import report, trace

    summary: dict[str, Any] = json.loads((out / 'run.json').read_text(encoding='utf-8'))
    summary |= known
    summary['duration_s'] = round(duration_s, 1)
    made = ['summary.json']
    if (out / 'episode.npz').is_file():
        episode = trace.load(out / 'episode.npz')
        report.plot(episode, out / 'episode.png')
        report.film(episode, robot.load('panda'), out / 'episode.gif')
        made += ['episode.gif', 'episode.png']
    (out / 'run.json').unlink()
    files.write_json(out / 'summary.json', summary)
    print(f'\n{report.table(summary)}\n\n{out}: {", ".join(made)}', flush=True)
    return summary


class Logs:
    """A sink that keeps each node's output in a file and shows what concerns people."""

    def __init__(self, folder: Path, verbose: bool, client: str = CLIENT) -> None:
        self.folder = folder
        self.verbose = verbose
        self.client = client
        self._files: dict[str, TextIO] = {}
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.glob('*.log'):
            old.unlink()

    def __call__(self, name: str, line: str) -> None:
        """Keep and perhaps show a line; ``name`` is empty where the launcher speaks."""
        key = name or 'up'
        if key not in self._files:
            self._files[key] = (self.folder / f'{key}.log').open(
                'w', buffering=1, encoding='utf-8'
            )
        self._files[key].write(line + '\n')
        if name == self.client:
            print(line, flush=True)
        elif self.verbose or self._concerns(name, line):
            print(f'[{key}] {line}', flush=True)

    def _concerns(self, name: str, line: str) -> bool:
        """Return whether people see a line: what the launcher says, and errors of nodes."""
        if name:
            return line.startswith(('[ERROR]', '[FATAL]'))
        return not line.startswith((self.client, 'SIG'))

    def close(self) -> None:
        """Close the files."""
        for file in self._files.values():
            with suppress(OSError):  # the full disk was told when a line did not fit
                file.close()
