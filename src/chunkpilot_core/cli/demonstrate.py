"""``chunkpilot demonstrate``: record demonstrations through the graph, one bag per episode."""

import argparse
from collections.abc import Sequence
from contextlib import ExitStack
import json
import os
from pathlib import Path
import sys
import time
from typing import Any

from chunkpilot_core.bags import decode
from chunkpilot_core.bags import episodes as recorded
from chunkpilot_core.bags.reader import BagReader
from chunkpilot_core.cli import demo
from chunkpilot_core.cli.up import assignments
from chunkpilot_core.errors import BagError, ConfigError
from chunkpilot_core.files import write_json
from chunkpilot_core.launching import interpreter, isolation
from chunkpilot_core.launching.interpreter import Process
from chunkpilot_core.launching.supervisor import Supervisor
from chunkpilot_core.types import EpisodeOutcome

HELP = 'record demonstrations of a scripted or a human operator, one bag per episode'
CLIENT = 'run_client'
LAUNCH = 'teleop.launch.yaml'
NO_EPISODE = ('aborted', 'unreadable')  # outcomes that demonstrate nothing
ROUNDS = 3  # graphs that are started for what is missing


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's arguments."""
    parser.add_argument('--task', default='pick_and_place', help='default: %(default)s')
    parser.add_argument(
        '--episodes',
        type=int,
        default=50,
        help='bags that the folder has in the end, failures too, not aborted ones; interrupted, '
        'the same command goes on (default: %(default)s)',
    )
    parser.add_argument(
        '--seed', type=int, default=1_000_000, help='of the first scene (default: %(default)s)'
    )
    parser.add_argument(
        '--source', default='scripted', help='who drives: scripted, joy, leader, keyboard'
    )
    parser.add_argument(
        '--timeout', type=float, default=0.0, help="[s] per episode; 0: the task's"
    )
    parser.add_argument(
        '--out', type=Path, default=Path('runs/demonstrations'), help='default: %(default)s'
    )
    parser.add_argument('--verbose', action='store_true', help='show what the nodes print')
    parser.add_argument('--json', action='store_true', help='print the summary for machines')
    parser.add_argument('arguments', nargs='*', metavar='NAME:=VALUE', help='for the launch file')


def main(args: argparse.Namespace) -> str | None:
    """Run the verb."""
    from chunkpilot_core.runs.episodes import check_request

    check_request(args.episodes, args.seed, args.timeout)
    out: Path = args.out
    demo.check_writable(out)
    started = time.monotonic()
    failure = None
    for _ in range(ROUNDS):  # an aborted episode leaves no bag that counts
        there = seeds(out, args.task)
        missing = args.episodes - len(there)
        if missing <= 0 or failure:
            break
        failure = record(args, missing, max([args.seed - 1, *there]) + 1)
    summary = summarise(out, args.task, time.monotonic() - started)
    write_json(out / 'summary.json', summary)
    print(json.dumps(summary) if args.json else table(summary), flush=True)
    if failure:
        return failure
    missing = args.episodes - len(seeds(out, args.task))
    if missing > 0:
        return f'{missing} of {args.episodes} are missing, {out}/log says why; run it again'
    return None if summary['outcomes'].get('success') else 'no episode succeeded'


def record(args: argparse.Namespace, episodes: int, seed: int) -> str | None:
    """Run the graph for so many episodes; returns why that failed, None for not at all."""
    out: Path = args.out
    given = {
        'task': args.task,
        'source': args.source,
        'directory': str(out.resolve()),
        'priority': demo.priority(),
        **assignments(args.arguments),
    }
    if given.get('record', 'true') != 'true':
        raise ConfigError('record:=false: there would be no demonstrations')
    nodes = interpreter.interpret(interpreter.find(LAUNCH), given)
    print(
        f'{len(nodes)} nodes, {episodes} episodes from seed {seed}; node output: {out}/log',
        flush=True,
    )
    with ExitStack() as stack:
        environment = dict(os.environ)
        if args.source == 'scripted':  # whoever drives from another terminal has to find the graph
            environment['ROS_DOMAIN_ID'] = str(stack.enter_context(isolation.own_domain()))
            print(f'to look on: export ROS_DOMAIN_ID={environment["ROS_DOMAIN_ID"]}', flush=True)
        logs = demo.Logs(out / 'log', args.verbose, CLIENT)
        stack.callback(logs.close)
        isolation.clean_shared_memory()
        supervisor = Supervisor([*nodes, client(args, nodes, episodes, seed)], logs, environment)
        code = supervisor.run()
        isolation.clean_shared_memory()
    if supervisor.interrupted:
        raise KeyboardInterrupt
    if code:
        restarts = {name: count for name, count in supervisor.restarts.items() if count}
        return f'the run did not go through, restarts: {restarts or "none"}; see {out}/log'
    return None


def client(
    args: argparse.Namespace, nodes: Sequence[Process], episodes: int, seed: int
) -> Process:
    """Return the process that asks for the episodes; when it ends, everything does."""
    words = {
        '--task': args.task,
        '--episodes': episodes,
        '--seed': seed,
        '--timeout': args.timeout,
        '--bags': args.out,
        '--result': args.out / 'run.json',
    }
    command = [sys.executable, '-m', 'chunkpilot_nodes.run_client']
    command += [str(word) for pair in words.items() for word in pair]
    environment = nodes[0].environment if nodes else {}
    return Process(CLIENT, tuple(command), environment=environment, required=True)


def seeds(folder: Path, task: str) -> list[int]:
    """
    Return the seeds of the demonstrations that a folder holds; aborted episodes are none.

    :raises ConfigError: it holds those of another task
    """
    found = []
    for path in recorded.bags(folder):
        start = _start(path)
        if start is None:
            continue
        if start.task_kind != task:
            raise ConfigError(f'{folder}: holds demonstrations of {start.task_kind!r}')
        found.append(int(start.seed))
    return found


def _start(path: Path) -> Any:
    """Return the message that an episode starts, None where it was aborted or can't be read."""
    try:
        with BagReader(path) as bag:
            if bag.metadata.get('outcome') == EpisodeOutcome.ABORTED.name.lower():
                return None
            chosen = [topic for topic in bag.topics if topic.rsplit('/', 1)[-1] == 'episode']
            for message in bag.messages(chosen):
                event = bag.decode(message)
                if event.event == decode.EPISODE_START:
                    return event
    except BagError:
        return None
    return None


def summarise(folder: Path, task: str, duration_s: float) -> dict[str, Any]:
    """Count what a folder holds."""
    outcomes: dict[str, int] = {}
    sources: dict[str, int] = {}
    recorded_s, size = 0.0, 0
    for path in recorded.bags(folder):
        try:
            episode = recorded.load(path)
        except BagError:
            outcomes['unreadable'] = outcomes.get('unreadable', 0) + 1
            continue
        name = episode.outcome.name.lower()
        outcomes[name] = outcomes.get(name, 0) + 1
        recorded_s += episode.duration_s
        size += sum(file.stat().st_size for file in path.iterdir())
        for batch in episode.rows:
            if batch.episode_id == episode.id:
                for source in batch.sources:
                    sources[source.name.lower()] = sources.get(source.name.lower(), 0) + 1
    return {
        'task': task,
        'folder': str(folder),
        'episodes': sum(count for name, count in outcomes.items() if name not in NO_EPISODE),
        'outcomes': outcomes,
        'rows': sources,
        'episodes_s': round(recorded_s, 1),
        'megabytes': round(size / 1e6, 1),
        'duration_s': round(duration_s, 1),
    }


def table(summary: dict[str, Any]) -> str:
    """Return the summary for people."""
    outcomes = ', '.join(f'{count} {name}' for name, count in summary['outcomes'].items())
    rows = ', '.join(f'{count} {name}' for name, count in summary['rows'].items())
    return (
        f'{summary["folder"]}: {summary["episodes"]} demonstrations of {summary["task"]} '
        f'({outcomes or "none"})\n'
        f'rows: {rows or "none"}; {summary["episodes_s"]} s of motion, '
        f'{summary["megabytes"]} MB, recorded in {summary["duration_s"]} s'
    )
