"""Looks at the graph and the machine: which nodes were started again, and who uses the CPU."""

from collections.abc import Iterator
import contextlib
from importlib import metadata
import os
import platform
import time

import psutil
from rclpy.node import Node

# Every node publishes there, so that it tells who is in the graph.
EVERYBODY = '/rosout'
PACKAGES = ('rclpy', 'numpy', 'pybullet', 'torch', 'panda-gym')


class Restarts:
    """Counts how often each node came back, by the identity of its endpoints."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._seen: dict[str, set[bytes]] = {}

    def start(self) -> None:
        """Count from now on."""
        self._seen.clear()
        self.look()

    def look(self) -> None:
        """Take notice of who is there; once a second is often enough."""
        for info in self._node.get_publishers_info_by_topic(EVERYBODY):
            name = f'{info.node_namespace.rstrip("/")}/{info.node_name}'
            self._seen.setdefault(name, set()).add(bytes(info.endpoint_gid))

    def counts(self) -> dict[str, int]:
        """Return restarts by node, only of nodes that had any."""
        return {name: len(gids) - 1 for name, gids in sorted(self._seen.items()) if len(gids) > 1}


class Load:
    """CPU use in cores since the last sample: of the launched processes, and of everybody else."""

    def __init__(self) -> None:
        self._used: dict[int, float] = {}
        self._before = (time.monotonic(), self._busy_s())
        self.sample()

    def sample(self) -> tuple[float, float]:
        """Return ours and foreign [cores]."""
        ours_s = 0.0
        used: dict[int, float] = {}
        for process in self._family():
            with contextlib.suppress(psutil.Error):
                times = process.cpu_times()
                used[process.pid] = times.user + times.system
                ours_s += used[process.pid] - self._used.get(process.pid, used[process.pid])
        self._used = used
        now, busy_s = time.monotonic(), self._busy_s()
        passed_s, total_s = now - self._before[0], busy_s - self._before[1]
        self._before = (now, busy_s)
        passed_s = max(passed_s, 1e-3)
        return ours_s / passed_s, max(total_s - ours_s, 0.0) / passed_s

    @staticmethod
    def _busy_s() -> float:
        times = psutil.cpu_times()
        return float(times.user + times.nice + times.system)

    @staticmethod
    def _family() -> Iterator[psutil.Process]:
        """Iterate over what the launcher of this process has started."""
        with contextlib.suppress(psutil.Error):
            yield from psutil.Process(os.getppid()).children(recursive=True)


def versions() -> dict[str, str]:
    """Return what a result may depend on."""
    found = {
        'python': platform.python_version(),
        'ros': os.environ.get('ROS_DISTRO', 'jazzy (wheels)'),
    }
    for package in ('chunkpilot', *PACKAGES):
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[package] = metadata.version(package)
    return found
