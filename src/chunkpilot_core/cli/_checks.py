"""What a verb refuses before its work begins: numbers out of range, places, policies."""

from pathlib import Path
import tempfile

from chunkpilot_core.errors import ConfigError

MAX_EPISODES = 1_000_000
MAX_SEED = 2**31 - 1


def number(option: str, value: float, low: float, high: float) -> None:
    """
    Check the value of an option.

    :raises ConfigError: NaN, or outside of ``low`` to ``high``
    """
    if not low <= value <= high:
        raise ConfigError(f'{option} {value}: allowed {low} to {high}')


def policy(name: str, task: str) -> str:
    """
    Return the folder of a checkpoint: given by path, by name, or by plug-in and task.

    :raises CheckpointError: there is none; names those that there are
    """
    from chunkpilot_core import registry
    from chunkpilot_core.policies.runtime import checkpoint

    if name in registry.names('policies'):
        name = f'{name}_{task}'
    return str(checkpoint.find(name))


def destination(option: str, path: Path) -> None:
    """
    Check that a file can be written where an option says, and make the folders that lack.

    :raises ConfigError: a folder is there, or its parent can't be made or written
    """
    if path.is_dir():
        raise ConfigError(f'{option} {path}: is a folder, must be the name of a file')
    writable(option, path)


def writable(option: str, path: Path) -> None:
    """
    Check that something can be made beside ``path``, and make the folders that lack.

    :raises ConfigError: the parent can't be made or written
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:  # asked by trying: permissions don't tell of full or odd disks
        raise ConfigError(f'{option} {path}: can not be written: {error.strerror}') from error
