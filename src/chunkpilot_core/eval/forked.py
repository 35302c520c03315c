"""Goes on in a copy of this process, so that several futures may begin at the same state."""

from collections.abc import Callable
import os
import pickle
import select
import signal
from typing import cast, TypeVar

from chunkpilot_core.errors import ChunkpilotError

T = TypeVar('T')
TIMEOUT_S = 900.0  # an episode takes seconds; on a machine that many share, a minute


def forked(work: Callable[[], T], timeout_s: float = TIMEOUT_S) -> T:
    """
    Return what ``work`` returns in a copy of this process; nothing that it does is seen here.

    Only the thread that calls exists in the copy: a library that waits there for its others (as
    OpenCV does) waits for ever, so it must have none.

    :raises ChunkpilotError: the copy died or takes longer than ``timeout_s``, or what ``work``
        raised
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        _answer(work, writing)
    os.close(writing)
    with os.fdopen(reading, 'rb') as stream:
        in_time = bool(select.select([stream], [], [], timeout_s)[0])
        if not in_time:
            os.kill(child, signal.SIGKILL)
        answer = stream.read()
    _, status = os.waitpid(child, 0)
    if not in_time:
        raise ChunkpilotError(f'a copy of the process took longer than {timeout_s:g} s')
    if not answer:
        raise ChunkpilotError(f'a copy of the process died, wait status {status}')
    done, result = pickle.loads(answer)
    if not done:
        raise result
    return cast('T', result)


def _answer(work: Callable[[], T], writing: int) -> None:
    try:
        try:
            answer: tuple[bool, object] = (True, work())
        except BaseException as error:
            answer = (False, error)
        with os.fdopen(writing, 'wb') as stream:
            stream.write(pickle.dumps(answer))
    finally:
        os._exit(0)  # nothing of the original may be closed or flushed twice
