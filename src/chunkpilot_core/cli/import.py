"""``chunkpilot import``: other people's data as bags of ours."""  # noqa: N999 - the verb's name

import argparse
from dataclasses import asdict
import json
from pathlib import Path
from typing import Any

HELP = 'bring LeRobot datasets, MCAP files or ROS 1 bags in as bags, by a mapping file'


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add = parser.add_argument
    add('format', choices=['lerobot', 'mcap', 'rosbag1'], help='what the data is')
    add('source', type=Path, help='dataset, file, rosbag2 folder, or folder of files')
    add('--map', type=Path, required=True, metavar='FILE', help='says what is what: docs/bags.md')
    add('--out', type=Path, required=True, help='folder of the bags, one for each episode')
    add(
        '--incomplete',
        action='store_true',
        help='lerobot: of a dataset that lacks frames, take the episodes that are whole',
    )
    add('--json', action='store_true', help='what was written, for machines')


def main(args: argparse.Namespace) -> str | None:
    """Write the bags; killed on the way, the same command goes on."""
    from chunkpilot_core.bags.imports.run import bring_in

    with _Bars(quiet=args.json) as progress:
        done = bring_in(
            args.format, args.source, args.map, args.out, progress, incomplete=args.incomplete
        )
    if args.json:
        print(json.dumps({**asdict(done), 'path': str(done.path)}))
        return None
    print(
        f'{done.path}: {done.episodes} episodes ({done.new_episodes} new), {done.rows} rows of '
        f'{done.dt_s:g} s, action space {done.space_hash}'
    )
    return None


class _Bars:
    """A progress bar for each thing that is done, one after the other."""

    def __init__(self, quiet: bool) -> None:
        self._quiet = quiet
        self._what = ''
        self._bar: Any = None

    def __enter__(self) -> '_Bars':
        return self

    def __call__(self, what: str, done: int, total: int) -> None:
        """Show how far it is."""
        from chunkpilot_core.runs.progress import progress_bar

        if what != self._what:
            self.__exit__()
            self._what = what
            self._bar = progress_bar(what, total, quiet=self._quiet)
        self._bar.total = max(total, done)
        self._bar.update(done - self._bar.n)

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()
