"""Brings a cache of frames up to date with bags; see :mod:`chunkpilot_core.bags.cache`."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
import fcntl
import hashlib
import json
from pathlib import Path
import shutil
from typing import Any

from chunkpilot_core.bags import frames as framing
from chunkpilot_core.bags.cache_index import CachedEpisode, check_camera, Index, Layout, Skipped
from chunkpilot_core.bags.frames import FrameOptions, Frames
from chunkpilot_core.bags.growing import GrowingArray, mapped
from chunkpilot_core.errors import BagError
from numpy.typing import NDArray

COMMIT_EVERY = 50  # bags between two indices: what a kill costs
COPY_ROWS = 65536  # rows that are copied together
Progress = Callable[[int, int], None]
"""Called with the number of bags that are done, and of all."""


class Build:
    """One run; the caller makes sure that it is the only one."""

    def __init__(
        self, folder: Path, options: FrameOptions, strict: bool, progress: Progress | None
    ) -> None:
        for name in options.cameras:
            check_camera(name)
        self._folder, self._options, self._strict = folder, options, strict
        self._progress = progress or (lambda done, total: None)
        self._index = Index(options)
        self._arrays: dict[str, GrowingArray] = {}

    def run(self, bags: Sequence[Path]) -> Index:
        """Read what is new and write the index; returns it."""
        old = Index.read(self._folder)
        known = old.known if old is not None else {}
        wanted = self._hashes(bags, known)
        try:
            self._start(old, wanted)
            cached = {entry.sha256 for entry in self._index.episodes}
            new = [(digest, bag) for digest, bag in wanted.items() if digest not in cached]
            done = len(bags) - len(new)
            self._progress(done, len(bags))
            for number, (digest, bag) in enumerate(new, start=1):
                self._read(bag, digest)
                if number % COMMIT_EVERY == 0:
                    self._commit()
                self._progress(done + number, len(bags))
            self._commit()
        finally:
            for array in self._arrays.values():
                array.close()
        self._tidy()
        return self._index

    def _hashes(self, bags: Sequence[Path], known: dict[str, list[str]]) -> dict[str, Path]:
        """Return the bags by hash; one that did not change since is not hashed again."""
        wanted: dict[str, Path] = {}
        for bag in bags:
            name, state = str(bag.resolve()), state_of(bag)
            before = known.get(name, ['', ''])
            digest = before[1] if before[0] == state else sha256(bag)
            self._index.known[name] = [state, digest]
            if digest in wanted:
                self._skip(bag, f'the same as {wanted[digest]}')
            else:
                wanted[digest] = bag
        return wanted

    def _start(self, old: Index | None, wanted: dict[str, Path]) -> None:
        """Go on with the arrays that there are, or begin new ones with what is still wanted."""
        index = self._index
        if old is None:
            return
        kept = [entry for entry in old.episodes if entry.sha256 in wanted]
        if old.options != self._options:
            kept = []  # frames that were made otherwise are of no use
        index.generation = old.generation
        if kept:
            index.layout = old.layout
        if len(kept) == len(old.episodes):
            index.episodes = kept
            return
        index.generation += 1
        sources = {
            name: mapped(old.data(self._folder) / f'{name}.npy', dtype, tail, old.frames)
            for name, (dtype, tail) in (old.layout.arrays() if old.layout else {}).items()
        }
        for entry in kept:
            self._copy(entry, sources)

    def _copy(self, entry: CachedEpisode, sources: dict[str, NDArray[Any]]) -> None:
        start = self._index.frames
        for name, array in self._open_arrays().items():
            for row in range(entry.start, entry.stop, COPY_ROWS):
                array.append(sources[name][row : min(row + COPY_ROWS, entry.stop)])
        self._index.episodes.append(replace(entry, start=start, stop=start + entry.length))

    def _read(self, bag: Path, digest: str) -> None:
        index = self._index
        options = self._options
        if index.layout is not None:
            options = replace(options, dt_s=index.layout.dt_s)
        try:
            frames = framing.load(bag, options)
            layout = Layout.of(frames)
            difference = index.layout.difference(layout) if index.layout is not None else ''
            if difference:
                raise BagError(f'{bag}: {difference}')
        except BagError as error:
            if self._strict:
                raise
            self._skip(bag, str(error).removeprefix(f'{bag}: '))
            return
        if index.layout is None:
            index.layout = layout
        self._append(frames)
        start = index.frames
        index.episodes.append(CachedEpisode.of(frames, str(bag.resolve()), digest, start))

    def _append(self, frames: Frames) -> None:
        for name, array in self._open_arrays().items():
            camera = name.removeprefix('images.')
            array.append(frames.images[camera] if camera != name else getattr(frames, name))

    def _open_arrays(self) -> dict[str, GrowingArray]:
        index = self._index
        if not self._arrays and index.layout is not None:
            folder = index.data(self._folder)
            if not index.episodes:
                shutil.rmtree(folder, ignore_errors=True)  # of a build that was killed early
            folder.mkdir(exist_ok=True)
            for name, (dtype, tail) in index.layout.arrays().items():
                self._arrays[name] = GrowingArray(
                    folder / f'{name}.npy', dtype, tail, index.frames
                )
        return self._arrays

    def _skip(self, bag: Path, reason: str) -> None:
        self._index.skipped.append(Skipped(str(bag.resolve()), reason))

    def _commit(self) -> None:
        for array in self._arrays.values():
            array.commit()
        self._index.write(self._folder)

    def _tidy(self) -> None:
        for folder in self._folder.glob('data-*'):
            if folder.is_dir() and folder != self._index.data(self._folder):
                shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """
    Let only one process build a cache at a time.

    :raises BagError: another one is at it
    """
    with (folder / '.lock').open('w') as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BagError(f'{folder}: another process is building this cache') from None
        yield


def sha256(bag: Path) -> str:
    """Return the hash of a bag: names and contents of its files."""
    digest = hashlib.sha256()
    for file in _files(bag):
        own = hashlib.sha256()
        with file.open('rb') as stream:
            while block := stream.read(1 << 20):
                own.update(block)
        digest.update(f'{file.name}\n{own.hexdigest()}\n'.encode())
    return digest.hexdigest()


def state_of(bag: Path) -> str:
    """Return what changes when a bag is written: sizes and times of its files."""
    found = [(file.name, file.stat()) for file in _files(bag)]
    return json.dumps([[name, status.st_size, status.st_mtime_ns] for name, status in found])


def _files(bag: Path) -> list[Path]:
    found = bag.iterdir() if bag.is_dir() else [bag]  # a single file may be a bag, too
    return sorted(file for file in found if file.is_file())
