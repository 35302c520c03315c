"""Keeps graphs on one machine apart, and cleans up what killed ones leave behind."""

from collections.abc import Iterator
from contextlib import contextmanager
import fcntl
import os
from pathlib import Path
import socket
import stat
import time

from chunkpilot_core.errors import ConfigError

# The protocol of ROS's domain_coordinator, so that its tests and we see each other: who holds the
# port owns the domain.
PORT_BASE = 32768
DOMAINS = range(1, 101)

SHARED_MEMORY = Path('/dev/shm')
# Younger lock files may belong to a process that has made them and not locked them yet.
MIN_AGE_S = 5.0


@contextmanager
def own_domain() -> Iterator[int]:
    """
    Reserve a ROS_DOMAIN_ID that nobody else on this machine has reserved.

    :raises ConfigError: all are taken
    """
    for domain in DOMAINS:
        holder = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            holder.bind(('', PORT_BASE + domain))
        except OSError:
            holder.close()
            continue
        try:
            yield domain
        finally:
            holder.close()
        return
    raise ConfigError(f'every ROS_DOMAIN_ID from {DOMAINS.start} to {DOMAINS.stop - 1} is taken')


def clean_shared_memory(folder: Path = SHARED_MEMORY) -> int:
    """
    Delete Fast DDS segments of processes that were killed.

    Their owner holds a lock on ``NAME_el`` while it lives, so a lock that can be taken marks a
    dead one, of whatever domain. Files of other users are left alone, and so are those of ports:
    they are small, Fast DDS uses them again, and one that is looked at or deleted in the moment
    in which a process opens it cuts that process off without a word.

    :returns: how many segments were deleted
    """
    count = 0
    for lock in folder.glob('fastrtps_*_el'):
        if not lock.name.startswith('fastrtps_port') and _abandoned(lock):
            for file in (lock.with_name(lock.name.removesuffix('_el')), lock):
                file.unlink(missing_ok=True)
            count += 1
    return count


def _abandoned(lock: Path) -> bool:
    try:
        info = lock.stat()
        old = time.time() - info.st_mtime > MIN_AGE_S
        if info.st_uid != os.getuid() or not old or not stat.S_ISREG(info.st_mode):
            return False
        with lock.open('rb') as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
    except OSError:
        return False
