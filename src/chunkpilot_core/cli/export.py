"""``chunkpilot export``: recorded episodes in the formats of others."""

import argparse
from dataclasses import asdict
import json
from pathlib import Path
import sys

from chunkpilot_core import config
from chunkpilot_core.cli import _checks, _frames

HELP = 'write recorded episodes as a dataset of another format: lerobot'


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add = parser.add_argument
    add('format', choices=['lerobot'], help='LeRobotDataset v3.0')
    add('bags', type=Path, nargs='+', help='bags, or folders of bags')
    add('--out', type=Path, required=True, help='folder to make')
    _frames.add_arguments(parser)
    add('--dt', type=float, metavar='S', help='time between frames (default: that of the rows)')
    _frames.add_leave_out(parser)
    add('--outcomes', choices=('all', 'success'), help='which episodes (default: all)')
    add('--cameras', nargs='+', metavar='NAME', help='cameras whose images are written, too')
    add('--no-features', action='store_true', help='only the state of the robot, no environment')
    add('--robot-type', metavar='NAME', help="LeRobot's name of the robot")
    add('--min-frames', type=int, metavar='N', help='shorter stretches are left out (default: 2)')
    add('--json', action='store_true', help='what was written, for machines')


def main(args: argparse.Namespace) -> str | None:
    """Read the bags into the cache, write the dataset, say what is in it."""
    from chunkpilot_core.bags.lerobot.export import export, ExportOptions

    given = {
        name: value
        for name in ('outcomes', 'cameras', 'robot_type', 'min_frames')
        if (value := getattr(args, name)) is not None
    }
    options = config.build(ExportOptions, {**given, 'features': not args.no_features}, '--')
    _checks.writable('--out', args.out)
    cache = _frames.cache(args, args.bags, quiet=args.json)
    for line in _frames.skipped(cache):
        print(line, file=sys.stderr)
    left_out = _frames.left_out(args, cache)
    with _frames.bar('episodes', len(cache.episodes), args.json) as progress:
        done = export(cache, args.out, options, left_out=left_out, progress=progress)
    if args.json:
        skipped = [asdict(entry) for entry in cache.skipped]
        print(json.dumps({**asdict(done), 'path': str(done.path), 'skipped': skipped}))
        return None
    print(
        f'{done.path}: {done.episodes} episodes, {done.frames} frames, {done.tasks} tasks; '
        f'{done.frames_left_out} frames and {done.episodes_left_out} episodes left out'
    )
    return None
