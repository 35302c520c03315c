"""What the sub-verbs of ``chunkpilot bag`` share: which bags are meant, options, progress."""

import argparse
from collections.abc import Iterable, Sequence
from pathlib import Path
import shlex
import sys
from typing import Any, TYPE_CHECKING, TypeVar

from chunkpilot_core.errors import BagError

if TYPE_CHECKING:
    from rich.console import Console

T = TypeVar('T')
_MANY = 3
_WIDE = 100_000


def expand(paths: Sequence[Path]) -> list[Path]:
    """
    Return bags for paths of bags and of folders of bags.

    :raises BagError: a folder without any, or an unfinished bag
    """
    from chunkpilot_core.bags import episodes
    from chunkpilot_core.bags.writer import UNFINISHED

    found: list[Path] = []
    for path in paths:
        if path.is_dir() and path.resolve().name.endswith(UNFINISHED):
            raise BagError(unfinished([path]))
        inside = path.is_dir() and not (path / 'metadata.yaml').exists()
        bags = episodes.bags(path) if inside and not list(path.glob('*.mcap')) else [path]
        if not bags:
            left = sorted(path.glob(f'*{UNFINISHED}'))
            more = f'; {unfinished(left)}' if left else ''
            raise BagError(f'{path}: no bag, and no finished bags in it{more}')
        found += bags
    return found


def unfinished(left: Sequence[Path]) -> str:
    """Return what there is to say of bags whose recorder was killed, at least one."""
    told = [
        f'{path}: unfinished, it is still recorded or its recorder was cut off; '
        f'"chunkpilot bag repair {shlex.quote(str(path))}" makes a bag of it'
        for path in left[:_MANY]
    ]
    if len(left) > _MANY:
        told.append(f'{len(left) - _MANY} more unfinished bags')
    return '; '.join(told)


def console() -> 'Console':
    """Return where tables are shown: whole where nobody looks at a terminal of some width."""
    from rich.console import Console

    width = None if sys.stdout.isatty() else _WIDE
    return Console(highlight=False, width=width)


def select_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options that choose topics."""
    add = parser.add_argument
    add('--topics', nargs='+', default=[], metavar='TOPIC', help='only these; patterns like /a/*')
    add('--exclude', nargs='+', default=[], metavar='TOPIC', help='not these')


def told(items: Iterable[T], unit: str, quiet: bool = False, total: int | None = None) -> Any:
    """Return the same to iterate over, with a progress bar."""
    from chunkpilot_core.runs.progress import progress_bar

    return progress_bar(unit, total, items, quiet, leave=False)
