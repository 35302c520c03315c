"""Episodes of a grid on disk, so that a run goes on where it was and costs nothing twice."""

from collections.abc import Sequence
from dataclasses import asdict, fields
import hashlib
import json
import math
import os
from pathlib import Path

from chunkpilot_core import files
from chunkpilot_core.eval import sources
from chunkpilot_core.eval.grid.plan import Cell
from chunkpilot_core.eval.loop import EpisodeResult


class Store:
    """Episodes on disk: a file a cell, a line an episode; several processes may add to it."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._read: dict[str, dict[int, EpisodeResult]] = {}

    def missing(self, one: Cell) -> list[int]:
        """Return the seeds of a cell that have not run."""
        found = self._found(one)
        return [seed for seed in one.seeds if seed not in found]

    def results(self, one: Cell) -> list[EpisodeResult] | None:
        """Return a cell's episodes in the order of seeds, None while some are missing."""
        if self.missing(one):
            return None
        found = self._found(one)
        return [found[seed] for seed in one.seeds]

    def add(self, one: Cell, *results: EpisodeResult) -> None:
        """Keep episodes of a cell."""
        found = self._found(one)
        found.update({result.seed: result for result in results})
        lines = [json.dumps(asdict(result)) + '\n' for result in results]
        if _cut_short(self._file(one)):
            lines.insert(0, '\n')
        with open(self._file(one), 'a', encoding='utf-8') as file:
            file.write(''.join(lines))

    def _found(self, one: Cell) -> dict[int, EpisodeResult]:
        found = self._read.setdefault(one.key(), {})
        if not all(seed in found for seed in one.seeds):
            found |= _episodes_in(self._file(one))
        return found

    def _file(self, one: Cell) -> Path:
        group = one.group
        names = (group.task, group.policy, group.disturbance, f'{1000 * group.latency_s:g}ms')
        rows = one.entry.options.get('horizon', '')
        return self._folder / f'{"-".join(names)}-{one.entry.plugin}@{rows}-{one.key()[:16]}.jsonl'

    def pairs(self, one: Cell) -> list[tuple[float, float]] | None:
        """Return what was measured on overlaps, None if nothing was, or the file is damaged."""
        return _pairs_in(self._overlap_file(one))

    def keep_pairs(self, one: Cell, pairs: Sequence[tuple[float, float]]) -> None:
        """Keep what was measured on overlaps."""
        files.write(self._overlap_file(one), json.dumps(pairs) + '\n')

    def _overlap_file(self, one: Cell) -> Path:
        text = f'{one.settings.key()} {sources.sha256(("eval.overlaps",))}'
        name = f'overlaps-{one.group.task}-{one.group.policy}'
        return self._folder / f'{name}-{hashlib.sha256(text.encode()).hexdigest()[:16]}.json'


def _episodes_in(file: Path) -> dict[int, EpisodeResult]:
    """Return the episodes of a file; a line cut short by a kill, or damaged, is no episode."""
    found = {}
    for line in file.read_bytes().splitlines() if file.exists() else ():
        try:
            result = EpisodeResult.of(json.loads(line))
        except (ValueError, TypeError, KeyError, RecursionError):
            continue
        if _sensible(result):
            found[result.seed] = result
    return found


def _sensible(result: EpisodeResult) -> bool:
    """Return whether the fields are of their kind, and no count is below 0."""
    for entry in fields(EpisodeResult):
        value = getattr(result, entry.name)
        if entry.type in (int, 'int') and (type(value) is not int or value < 0):
            return False
        if entry.type in (float, 'float') and type(value) not in (int, float):
            return False
    texts = (*result.interrupts, *result.notes)
    return type(result.success) is bool and all(isinstance(text, str) for text in texts)


def _pairs_in(file: Path) -> list[tuple[float, float]] | None:
    try:
        pairs = [(float(c), float(d)) for c, d in json.loads(file.read_bytes())]
    except (FileNotFoundError, ValueError, TypeError, RecursionError):
        return None
    return pairs if all(math.isfinite(value) for pair in pairs for value in pair) else None


def _cut_short(file: Path) -> bool:
    """Return whether a file ends within a line: a kill has left it."""
    if not file.exists() or not file.stat().st_size:
        return False
    with open(file, 'rb') as stream:
        stream.seek(-1, os.SEEK_END)
        return stream.read(1) != b'\n'
