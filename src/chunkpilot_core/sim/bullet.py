"""A PyBullet client through panda-gym's wrapper, without the noise that both print."""

from collections.abc import Iterator
from contextlib import contextmanager
import ctypes
import os
import sys
from typing import Any

PHYSICS_DT_S = 1 / 500
"""[s], panda-gym's."""


@contextmanager
def silence() -> Iterator[None]:
    """
    Keep what C code prints from the terminal: PyBullet's ``argv[0]=`` and its build time at
    import.
    """
    libc = ctypes.CDLL(None)
    sys.stdout.flush()
    sys.stderr.flush()
    libc.fflush(None)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    kept = {descriptor: os.dup(descriptor) for descriptor in (1, 2)}
    for descriptor in kept:
        os.dup2(nowhere, descriptor)
    try:
        yield
    finally:
        libc.fflush(None)  # else the buffer would be written after the descriptors are back
        for descriptor, copy in kept.items():
            os.dup2(copy, descriptor)
            os.close(copy)
        os.close(nowhere)


def connect(substeps: int = 5) -> Any:
    """
    Return a new ``panda_gym.pybullet.PyBullet`` without a window, whose step is ``substeps`` of
    1/500 s.
    """
    with silence():
        from panda_gym.pybullet import PyBullet

        return PyBullet(render_mode='rgb_array', renderer='Tiny', n_substeps=substeps)
