"""How far something is that takes long: a bar on a terminal, elsewhere a line now and then."""

from collections.abc import Iterable
import sys
import time
from typing import Any

from tqdm import tqdm

EVERY_S = 30.0
"""[s] Where no terminal is, lines are at least this far apart, and the first is this late."""


def progress_bar(
    what: str, total: float | None = None, items: Iterable[Any] | None = None, quiet: bool = False,
    **options: Any,
) -> tqdm:  # fmt: skip
    """
    Return a progress bar on standard error, to be told by ``update`` or iterated over.

    :param total: None: as many as ``items`` has, if it knows
    :param quiet: show nothing
    :param options: of tqdm, such as ``unit``, ``initial`` and ``leave``
    """
    kind = tqdm if sys.stderr.isatty() else Lines
    options = {'desc': what, 'total': total, 'disable': quiet, 'file': sys.stderr, **options}
    return kind(items, mininterval=0.5, dynamic_ncols=True, **options)


class Lines(tqdm):
    """A bar for pipes and files, in which nothing can be drawn over."""

    def __init__(self, *args: Any, **options: Any) -> None:
        self._told_s = time.monotonic()
        line = '{desc}: {n_fmt} of {total_fmt} after {elapsed}, {remaining} left{postfix}'
        # gui: tqdm's word for bars that draw themselves, and at the end wipe nothing out
        super().__init__(*args, **options, bar_format=line, gui=True)

    def display(self, *_: Any, **__: Any) -> None:
        """Write a line, if the last one is long enough ago."""
        now_s = time.monotonic()
        if now_s - self._told_s >= EVERY_S:
            self._told_s = now_s
            print(self, file=self.fp, flush=True)

    def clear(self, *_: Any, **__: Any) -> None:
        """Leave what was written."""
