"""
Property tests try the same examples in every run, so that a landing is never a matter of luck.

New ones are tried with ``pytest --hypothesis-profile=explore``.
"""

from collections.abc import Iterator
from pathlib import Path
import subprocess
import sys

from chunkpilot_core.launching import isolation
from hypothesis import settings
import pytest

sys.path.insert(0, str(Path(__file__).parent))  # for ``helpers``

settings.register_profile('repeatable', derandomize=True, deadline=None, print_blob=True)
settings.register_profile('explore', derandomize=False, deadline=None, print_blob=True)
settings.load_profile('repeatable')


@pytest.fixture(autouse=True)
def _no_shared_memory_is_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """Delete the segments of processes that a test has killed: a full /dev/shm loses messages."""
    yield
    if request.node.get_closest_marker('ros'):
        isolation.clean_shared_memory()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Give a file system of 1 MiB."""
    folder = tmp_path / 'disk'
    folder.mkdir()
    words = ['mount', '-t', 'tmpfs', '-o', 'size=1m', 'tmpfs', str(folder)]
    mounted = subprocess.run(words, capture_output=True, check=False)
    if mounted.returncode != 0:
        pytest.skip(f'mount is not possible: {mounted.stderr.decode().strip()}')
    yield folder
    subprocess.run(['umount', '-l', str(folder)], check=True)
