"""What verbs that read bags as data have in common: which bags, the cache of their frames."""

import argparse
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
import hashlib
from pathlib import Path
from typing import Any, TYPE_CHECKING

from chunkpilot_core import config
from chunkpilot_core.cli._bags import expand
from chunkpilot_core.errors import ConfigError
import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from chunkpilot_core.bags.cache import Cache

DEFAULT_CACHE = 'runs/frames'


def add_arguments(parser: Any) -> None:
    """Declare the options of the cache."""
    add = parser.add_argument
    add(
        '--cache',
        type=Path,
        help=f'folder of the frames that are read from the bags once (default: {DEFAULT_CACHE}/'
        '<name>)',
    )
    add('--max-skew', type=float, metavar='S', help='oldest observation of a frame (default: 0.1)')


def add_leave_out(parser: Any) -> None:
    """Declare the options that leave frames out for their quality."""
    add = parser.add_argument
    add(
        '--leave-out',
        nargs='*',
        metavar='KIND',
        help='frames with which something is wrong: idle, frozen, duplicated, saturated, unknown, '
        'gaps, disagrees; without a KIND: idle frozen disagrees (default: nothing)',
    )
    add(
        '--quality',
        type=Path,
        metavar='FILE',
        help='with --leave-out: a report of "chunkpilot bag check --data", instead of a new look',
    )


def left_out(args: argparse.Namespace, cache: 'Cache') -> NDArray[np.bool_] | None:
    """
    Return which frames (N,) of a cache are left out, None for nothing.

    :param args: with the options of :func:`add_leave_out`
    :raises ConfigError: a report without --leave-out, or a kind that there is not
    """
    from chunkpilot_core.bags import quality

    if args.leave_out is None:
        if args.quality is not None:
            raise ConfigError('--quality needs --leave-out')
        return None
    kinds = args.leave_out or quality.DEFAULT_KINDS
    if args.quality is not None:
        return quality.read_left_out(args.quality, cache, kinds)
    with bar('quality', len(cache.episodes)) as progress:
        return quality.report(cache, progress=progress).left_out(cache, kinds)


def cache(args: argparse.Namespace, folders: Sequence[Path], quiet: bool = False) -> 'Cache':
    """
    Bring the cache of some bags up to date; killed on the way, the same command goes on.

    :param args: with the options of :func:`add_arguments`
    """
    from chunkpilot_core.bags import cache as caching

    chosen = expand(folders)
    folder = args.cache or Path(DEFAULT_CACHE) / name(folders)
    given = {}
    if args.max_skew is not None:
        given['max_skew_s'] = args.max_skew
    if getattr(args, 'dt', None) is not None:
        given['dt_s'] = args.dt
    options = config.build(caching.FrameOptions, given, '--')
    with bar('bags', len(chosen), quiet) as progress:
        return caching.build(chosen, folder, options, progress=progress)


def name(folders: Sequence[Path]) -> str:
    """Return a name for the frames of these folders that others do not get."""
    places = '\n'.join(sorted(str(folder.resolve()) for folder in folders))
    return f'{folders[0].resolve().name}-{hashlib.sha256(places.encode()).hexdigest()[:8]}'


@contextmanager
def bar(what: str, total: int, quiet: bool = False) -> Iterator[Callable[[int, int], None]]:
    """Show a progress bar; the body tells it how many are done, of how many."""
    from chunkpilot_core.runs.progress import progress_bar

    with progress_bar(what, total, quiet=quiet) as shown:

        def progress(done: int, total: int) -> None:
            shown.total = total
            shown.update(done - shown.n)

        yield progress


def skipped(found: 'Cache') -> list[str]:
    """Return a line for each of the first bags that are not in a cache, and why."""
    lines = [f'left out: {entry.bag}: {entry.reason}' for entry in found.skipped[:5]]
    if len(found.skipped) > 5:
        lines.append(f'left out: {len(found.skipped) - 5} more bags')
    return lines
