"""Finds ROS packages and their executables the way ``ros2 run`` does: in AMENT_PREFIX_PATH."""

from collections.abc import Iterator
import os
from pathlib import Path

from chunkpilot_core.errors import ConfigError, UnknownNameError


def prefixes() -> list[Path]:
    """
    Return the folders of AMENT_PREFIX_PATH, nearest first.

    :raises ConfigError: no environment is open
    """
    found = [
        Path(entry) for entry in os.environ.get('AMENT_PREFIX_PATH', '').split(os.pathsep) if entry
    ]
    if not found:
        raise ConfigError(
            'AMENT_PREFIX_PATH is empty: run "source env.sh" (or your ROS set-up) first'
        )
    return found


def share(package: str) -> Path:
    """
    Return a package's share folder.

    :raises UnknownNameError: no such package
    """
    return _prefix(package) / 'share' / package


def executable(package: str, name: str) -> Path:
    """
    Return an executable of a package.

    :raises UnknownNameError: no such package, or it has no such executable
    """
    folder = _prefix(package) / 'lib' / package
    found = folder / name
    if not (found.is_file() and os.access(found, os.X_OK)):
        known = (entry.name for entry in folder.glob('*') if os.access(entry, os.X_OK))
        raise UnknownNameError(f'executable of package {package!r}:', name, known)
    return found


def _prefix(package: str) -> Path:
    for prefix in prefixes():
        if (prefix / _INDEX / package).is_file():
            return prefix
    raise UnknownNameError('ROS package', package, set(_packages()))


def _packages() -> Iterator[str]:
    for prefix in prefixes():
        yield from (entry.name for entry in (prefix / _INDEX).glob('*'))


_INDEX = Path('share/ament_index/resource_index/packages')
