"""Small files that people hand in and that are written for them: no waits, no halves."""

from collections.abc import Mapping
import json
import os
from pathlib import Path
import stat
from typing import Any

MAX_BYTES = 2**26  # what is read at control rate, or calibrates that, is small


def read(path: str | Path) -> bytes:
    """
    Return what is in a file; a device or a pipe could go on for ever.

    :raises OSError: missing, or not to be read
    :raises ValueError: no ordinary file, or a huge one
    """
    file = Path(path).expanduser()
    status = file.stat()
    if not stat.S_ISREG(status.st_mode):
        raise ValueError('not an ordinary file')
    if status.st_size > MAX_BYTES:
        raise ValueError(f'{status.st_size} bytes, at most {MAX_BYTES} allowed')
    return file.read_bytes()


def parsed(text: str | bytes) -> Any:
    """
    Return what JSON says.

    :raises ValueError: damaged, or nested beyond what can be read
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError('damaged: nested too deeply') from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f'damaged: {error}') from error
    except ValueError:  # Python's own limit of digits
        raise ValueError('damaged: a number of too many digits') from None


def write(path: str | Path, text: str) -> None:
    """
    Write a text file, whole or not at all.

    :raises OSError: it can't be written
    """
    write_bytes(path, text.encode())


def write_bytes(path: str | Path, content: bytes) -> None:
    """
    Write a file, whole or not at all: a full disk or a power cut must not cost the one there is.

    :raises OSError: it can't be written
    """
    file = Path(path).expanduser()
    if file.exists() and not file.is_file():  # a device can't be replaced
        file.write_bytes(content)
        return
    beside = file.with_name(f'.{file.name}.{os.getpid()}.new')
    try:
        with beside.open('wb') as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        beside.replace(file)
    except OSError:
        beside.unlink(missing_ok=True)
        raise


def sync(path: str | Path) -> None:
    """
    Wait until the disk has a file, or the names in a folder.

    :raises OSError: a delayed write error
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_json(path: str | Path, data: Mapping[str, Any]) -> None:
    """
    Write a JSON file, whole or not at all, and make the folders that lack.

    :raises OSError: it can't be written
    :raises ValueError: NaN or infinity, which JSON lacks
    """
    file = Path(path).expanduser()
    file.parent.mkdir(parents=True, exist_ok=True)
    write(file, json.dumps(data, indent=1, allow_nan=False) + '\n')
