"""The keys of the terminal that a node runs in, one by one and unseen."""

from collections.abc import Callable
import os
import select
import sys
import termios
import tty

from chunkpilot_core.errors import ConfigError


class Terminal:
    """Raw keys from standard input; signals (Ctrl-C) still work."""

    def __init__(self, hear: Callable[[str], None]) -> None:
        """
        Take over the terminal.

        :param hear: is given what was typed, from :meth:`read`
        :raises ConfigError: standard input is no terminal
        """
        self._hear, self._input = hear, sys.stdin.fileno()
        if not os.isatty(self._input):
            raise ConfigError(
                'keyboard: standard input is no terminal; nodes of a launch file have none, so '
                'run this one in a terminal of its own: chunkpilot teleop keyboard'
            )
        self._before = termios.tcgetattr(self._input)
        tty.setcbreak(self._input)

    def read(self) -> None:
        """Hand on what was typed since the last call; never waits."""
        while select.select([self._input], [], [], 0.0)[0]:
            typed = os.read(self._input, 256)
            if not typed:
                return
            self._hear(typed.decode('utf-8', 'ignore'))

    @staticmethod
    def say(text: str) -> None:
        """Print a line for whoever types."""
        print(text, flush=True)

    def restore(self) -> None:
        """Give the terminal back as it was."""
        termios.tcsetattr(self._input, termios.TCSADRAIN, self._before)
