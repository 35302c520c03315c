"""Processes in which episodes run: they give way to other work, and end when their parent does."""

from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
import ctypes
import multiprocessing
import os
import signal
import sys
from typing import Any

NICE = 5
_PR_SET_PDEATHSIG = 1


def pool(
    workers: int, start: Callable[..., None] | None = None, arguments: tuple[Any, ...] = ()
) -> ProcessPoolExecutor:
    """
    Return processes for episodes.

    :param start: called in each of them once, with ``arguments``
    """
    context = multiprocessing.get_context('spawn')  # torch and PyBullet do not survive a fork
    return ProcessPoolExecutor(workers, context, _start, (os.getpid(), start, arguments))


def _start(parent: int, start: Callable[..., None] | None, arguments: tuple[Any, ...]) -> None:
    os.nice(NICE)
    if sys.platform == 'linux':  # a parent that is killed can't tell its workers
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)
    if start is not None:
        start(*arguments)
