"""The part of ``chunkpilot train`` that trains from bags."""

import argparse
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from chunkpilot_core import config
from chunkpilot_core.cli import _frames
from chunkpilot_core.errors import ConfigError
from chunkpilot_core.types import F32, RowSource
import numpy as np

SOURCES = ('policy', 'residual', 'human')  # as in policies/runtime/recorded.py, without torch
CHOICES = ('outcomes', 'sources', 'weights', 'leave_out', 'quality', 'inputs', 'max_skew')
MAX_WEIGHT = 1e12
ONLY_EXPERT = ('episodes', 'demonstrations', 'pace')


def add_arguments(parser: 'argparse._ArgumentGroup') -> None:
    """Declare the arguments."""
    add = parser.add_argument
    add('--bags', type=Path, nargs='+', metavar='DIR', help='bags, or folders of bags')
    _frames.add_arguments(parser)
    add(
        '--outcomes',
        choices=('success', 'all'),
        help='which episodes are learned (default: success)',
    )
    add(
        '--sources',
        nargs='+',
        metavar='NAME[=WEIGHT]',
        help='whose rows are learned and how much each counts, of '
        + ', '.join(source.name.lower() for source in RowSource)
        + f' (default: {" ".join(SOURCES)})',
    )
    add(
        '--weights',
        type=Path,
        help='a .npy file with one weight for each frame of the cache, e.g. from advantages',
    )
    _frames.add_leave_out(parser)
    add('--inputs', nargs='+', metavar='NAME', help="what the policy reads; '*' is any text")


def refuse_options(args: argparse.Namespace) -> None:
    """
    Refuse options that mean nothing without bags.

    :raises ConfigError: naming the first one
    """
    for name in ('cache', *CHOICES):
        if getattr(args, name) is not None:
            raise ConfigError(f'--{name.replace("_", "-")} needs --bags')


def material(args: argparse.Namespace) -> Any:
    """
    Read the bags into the cache and choose what is learned.

    :raises ConfigError: options that do not go together
    """
    from chunkpilot_core.policies.runtime import recorded

    for name in ONLY_EXPERT:
        if getattr(args, name) is not None:
            raise ConfigError(f'--{name} is of the scripted expert and does not go with --bags')
    chosen: dict[str, Any] = {'task': args.task or '', 'inputs': tuple(args.inputs or ())}
    if args.outcomes:
        chosen['outcomes'] = args.outcomes
    if args.sources:
        chosen['sources'], chosen['source_weights'] = _sources(args.sources)
    selection = config.build(recorded.Selection, chosen, '--')
    cache = _frames.cache(args, args.bags)
    weights = _weights(args.weights) if args.weights else None
    left_out = _frames.left_out(args, cache)
    found = recorded.material(cache, args.horizon, selection, weights=weights, left_out=left_out)
    used, source = len(found.source['bags']), found.source
    print(
        f'{used} of {len(cache.episodes)} episodes, {source["rows_learned"]} of {source["rows"]} '
        f'rows are learned, {source["rows_left_out"]} left out for quality; '
        f'frames in {cache.folder}'
    )
    print(f'rows by source: {_by_source(cache, selection.sources)}')
    for line in _frames.skipped(cache):
        print(line)
    return found


def _by_source(cache: Any, learned: Sequence[str]) -> str:
    counts = sum((Counter(episode.sources) for episode in cache.episodes), Counter[str]())
    return ', '.join(
        f'{name} {count}' + ('' if name in learned else ' (not learned)')
        for name, count in counts.most_common()
    )


def words(args: argparse.Namespace) -> list[str]:
    """Return the options as they were given, for the manifest."""
    given = ['--bags', *map(str, args.bags)]
    for option in ('task', *CHOICES):
        value = getattr(args, option)
        if value is not None:
            given.append(f'--{option.replace("_", "-")}')
            given += map(str, value) if isinstance(value, list) else [str(value)]
    return given


def _sources(entries: Sequence[str]) -> tuple[tuple[str, ...], tuple[float, ...]]:
    names, weights = [], []
    for entry in entries:
        name, mark, text = entry.partition('=')
        try:
            weights.append(float(text) if mark else 1.0)
        except ValueError:
            raise ConfigError(f'--sources {entry!r}: must be NAME or NAME=WEIGHT') from None
        names.append(name)
    return tuple(names), tuple(weights)


def _weights(file: Path) -> F32:
    try:
        loaded = np.load(file, mmap_mode='r', allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise ConfigError(f'--weights {file}: {error}') from error
    if not isinstance(loaded, np.ndarray) or loaded.dtype.kind != 'f':
        raise ConfigError(f'--weights {file}: must be one array of floats')
    bad = loaded[~((loaded >= 0.0) & (loaded <= MAX_WEIGHT))]
    if bad.size:
        raise ConfigError(f'--weights {file}: {bad[0]}, allowed 0 to {MAX_WEIGHT:g}')
    return np.asarray(loaded, np.float32)
