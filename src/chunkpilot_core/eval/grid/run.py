"""Runs the cells of a grid, in this process or in several."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import as_completed, ProcessPoolExecutor
from dataclasses import replace
import json
import multiprocessing
from typing import Any

from chunkpilot_core.eval import runner
from chunkpilot_core.eval import workers as processes
from chunkpilot_core.eval.grid.plan import Cell
from chunkpilot_core.eval.grid.store import Store
from chunkpilot_core.eval.loop import EpisodeResult, Loop
from chunkpilot_core.eval.overlaps import Overlaps
from chunkpilot_core.eval.runner import Settings
from chunkpilot_core.execution.base import Strategy
from chunkpilot_core.runs.progress import progress_bar


class Runner:
    """Runs what is missing; its processes stay, and keep the last world that they had."""

    def __init__(self, store: Store, workers: int) -> None:
        self._store = store
        self._prepared: dict[str, Strategy] = {}
        self._pool: ProcessPoolExecutor | None = None
        if workers > 1:
            self._pool = processes.pool(workers)

    def run(self, wanted: Sequence[Cell], title: str) -> None:
        """Run what is missing of some cells of one group."""
        missing: dict[int, list[Cell]] = {}
        for one in wanted:
            for seed in self._store.missing(one):
                missing.setdefault(seed, []).append(one)
        self._prepare((one for cells in missing.values() for one in cells), title)
        total = sum(len(cells) for cells in missing.values())
        with progress_bar(title, total) as bar:
            for seed, results in self._each(_seed, self._jobs(missing)):
                for one, result in zip(missing[seed], results, strict=True):
                    self._store.add(one, result)
                bar.update(len(results))

    def overlaps(self, one: Cell) -> None:
        """Measure a cell on overlaps, if that has not been done."""
        if self._store.pairs(one) is None:
            for _, pairs in self._each(_overlaps, [(0, one)]):
                self._store.keep_pairs(one, pairs)

    def close(self) -> None:
        """End the processes; what they are at is lost."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
            for process in multiprocessing.active_children():  # else Python waits for their work
                process.terminate()

    def _prepare(self, wanted: Iterable[Cell], title: str) -> None:
        """Calibrate strategies; the same one serves undisturbed and disturbed episodes."""
        cells = {one.prepared_by(): one for one in wanted}
        new = [(key, one) for key, one in cells.items() if key not in self._prepared]
        with progress_bar(f'{title}: calibrations', len(new)) as bar:
            for key, strategy in self._each(_prepare, new):
                self._prepared[key] = strategy
                bar.update()

    def _jobs(self, missing: Mapping[int, Sequence[Cell]]) -> list[tuple[Any, ...]]:
        return [
            (seed, cells, [self._prepared[one.prepared_by()] for one in cells], seed)
            for seed, cells in sorted(missing.items())
        ]

    def _each(self, work: Any, jobs: Sequence[tuple[Any, ...]]) -> Iterator[tuple[Any, Any]]:
        """Give each job's key and result; a job is its key and what ``work`` takes."""
        if self._pool is None:
            for key, *arguments in jobs:
                yield key, work(*arguments)
            return
        running = {self._pool.submit(work, *arguments): key for key, *arguments in jobs}
        for future in as_completed(running):
            yield running[future], future.result()


_LOOPS: dict[str, Loop] = {}  # of this process: the last one, since cells come in groups


def _loop(settings: Settings) -> Loop:
    lasting = {name: part for name, part in settings.parts.items() if name in runner.LASTING}
    served = (settings.policy, settings.policy_options)
    name = json.dumps([settings.task, settings.task_options, *served, lasting])
    if name not in _LOOPS:
        for old in _LOOPS.values():
            old.close()
        _LOOPS.clear()
        _LOOPS[name] = replace(settings, parts=lasting).loop()
    loop = _LOOPS[name]
    loop.latency = settings.latency()
    return loop


def _prepare(one: Cell) -> Strategy:
    return runner.prepare(_loop(one.settings), one.settings, one.entry)


def _seed(cells: Sequence[Cell], strategies: Sequence[Strategy], seed: int) -> list[EpisodeResult]:
    """Run cells of one group on one seed: together where they begin alike."""
    alike: dict[str, list[int]] = {}
    for number, one in enumerate(cells):
        start = {n: part for n, part in one.entry.parts.items() if n not in runner.EXECUTION}
        alike.setdefault(json.dumps(start, sort_keys=True), []).append(number)
    results: dict[int, EpisodeResult] = {}
    for numbers in alike.values():
        settings = cells[numbers[0]].settings
        runs = [
            (strategies[number], cells[number].settings.built_parts(cells[number].entry))
            for number in numbers
        ]
        found = _loop(settings).run_each(seed, runs)
        results.update(zip(numbers, found, strict=True))
    return [results[number] for number in range(len(cells))]


def _overlaps(one: Cell) -> list[tuple[float, float]]:
    loop, strategy = _loop(one.settings), Overlaps(Overlaps.Config(**one.entry.options))
    for seed in one.seeds:
        loop.run(seed, strategy)
    return strategy.pairs
