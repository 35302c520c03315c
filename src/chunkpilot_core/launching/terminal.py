"""Prints what processes say, each line with its process's name in front."""

from collections.abc import Sequence
import sys
from typing import TextIO

COLOURS = (36, 33, 32, 35, 34, 96, 93, 92, 95, 94)


class Terminal:
    """
    A sink of :class:`~chunkpilot_core.launching.supervisor.Supervisor` that writes to a stream.
    """

    def __init__(self, names: Sequence[str], stream: TextIO | None = None) -> None:
        self.stream = stream or sys.stdout
        self.width = max((len(name) for name in names), default=0)
        colours = self.stream.isatty()
        self._colours = {
            name: COLOURS[index % len(COLOURS)] for index, name in enumerate(names) if colours
        }

    def __call__(self, name: str, line: str) -> None:
        """Write one line; ``name`` is empty where the launcher itself speaks."""
        prefix = f'[{name or "up"}]'.ljust(self.width + 2)
        if name in self._colours:
            prefix = f'\x1b[{self._colours[name]}m{prefix}\x1b[0m'
        self.stream.write(f'{prefix} {line}\n')
        self.stream.flush()
