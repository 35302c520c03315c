"""
Ends process groups when the launcher dies without doing it, even by kill -9.

Run as a script of its own, without imports of ours, so that it starts in milliseconds. It reads
``add GROUP`` and ``del GROUP`` from its standard input; ``quit`` ends it; the end of the input
without ``quit`` means that the launcher is dead.
"""

import os
import signal
import sys
import time

WAITS_S = ((signal.SIGINT, 5.0), (signal.SIGTERM, 5.0), (signal.SIGKILL, 1.0))


def alive(group: int) -> bool:
    """Whether any process of the group is left that is not a zombie."""
    for entry in os.listdir('/proc'):
        if entry.isdigit():
            try:
                with open(f'/proc/{entry}/stat', encoding='utf-8', errors='replace') as file:
                    state, _, pgrp = file.read().rsplit(')', 1)[1].split()[:3]
            except OSError:
                continue
            if int(pgrp) == group and state != 'Z':
                return True
    return False


def end(groups: set[int]) -> None:
    """Signal the groups with growing force until nothing of them is left."""
    for number, wait_s in WAITS_S:
        for group in groups:
            try:
                os.killpg(group, number)
            except ProcessLookupError:
                pass
        deadline = time.monotonic() + wait_s
        while time.monotonic() < deadline:
            groups = {group for group in groups if alive(group)}
            if not groups:
                return
            time.sleep(0.1)


def main() -> None:
    """Follow the launcher's messages until it quits or dies."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    groups: set[int] = set()
    for line in sys.stdin:
        verb, _, group = line.strip().partition(' ')
        if verb == 'quit':
            return
        (groups.add if verb == 'add' else groups.discard)(int(group))
    end(groups)


if __name__ == '__main__':
    main()
