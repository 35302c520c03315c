"""
Recordings of topics as episodes: MCAP files and rosbag2 folders, and ROS 1 bags.

A row reaches from one tick of the mapping's rate to the next. What was known is the newest
message up to its start; what was sent is what was commanded until its end: the last target, the
sum of displacements, the mean of rates.
"""

from collections.abc import Iterator, Sequence
from collections.abc import Mapping as AnyMapping
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from chunkpilot_core.bags.imports import fields, images
from chunkpilot_core.bags.imports.mapping import Action, Mapping, Signal
from chunkpilot_core.bags.imports.recording import MAX_ROWS, Names, Picture, Recording
from chunkpilot_core.bags.imports.source import Source
from chunkpilot_core.errors import BagError, UnknownNameError
from chunkpilot_core.types import EpisodeOutcome, F32, F64, Kind, nanoseconds
import numpy as np
from numpy.typing import NDArray

I64 = NDArray[np.int64]
Entry = Signal | Action
JITTER = 0.4  # of a row: actions that are off by more do not come once a row
MAX_MESSAGES = 20_000_000  # of the topics of one file that are numbers


class TopicReader(Protocol):
    """What a file of messages offers, of ROS 1 or 2."""

    topics: AnyMapping[str, str]

    def decoded(self, topics: Sequence[str]) -> Iterator[tuple[str, int, Any]]:
        """Iterate over topic, time of receipt [ns] and message, in the order of receipt."""


class Opener(Protocol):
    """Opens a file of messages."""

    def __call__(self, path: Path) -> AbstractContextManager[TopicReader]:
        """Open it; raises BagError."""


class TopicSource(Source):
    """Files of messages, each one or several episodes."""

    def __init__(self, paths: Sequence[Path], mapping: Mapping, opener: Opener) -> None:
        """
        Look at the first message of every topic.

        :raises BagError: a topic of the mapping that the first file lacks, or no rate
        """
        if not mapping.rate:
            raise BagError('the mapping needs rate: how many rows per second')
        self.total, self.dt_s = len(paths), 1.0 / mapping.rate
        self._paths, self._mapping, self._open = paths, mapping, opener
        self._entries: list[Entry] = [*mapping.signals, *mapping.action]
        self._widths: dict[int, int] = {}
        self._first_look()

    def _check(self, reader: TopicReader, path: Path) -> None:
        for topic in [*self._mapping.columns, *self._mapping.images.values()]:
            if topic not in reader.topics:
                raise BagError(str(UnknownNameError(f'topic in {path}', topic, reader.topics)))

    def _first_look(self) -> None:
        with self._open(self._paths[0]) as reader:
            self._check(reader, self._paths[0])
            missing = set(range(len(self._entries)))
            for topic, _, message in reader.decoded(self._mapping.columns):
                for i in sorted(missing):
                    if self._entries[i].source == topic:
                        self._widths[i] = len(fields.numbers(message, self._entries[i]))
                        missing.discard(i)
                if not missing:
                    return
            names = sorted({self._entries[i].source for i in missing})
            raise BagError(f'{self._paths[0]}: no messages on {", ".join(names)}')

    def names(self) -> Names:
        """Return the mapping's names, or the joints', or numbers behind the topic's name."""
        found, position = [], 0
        for signals in (self._mapping.state, self._mapping.features, self._mapping.goal):
            names: list[str] = []
            for signal in signals:
                width = self._widths[position]
                own = list(signal.names) or [f'{joint}.position' for joint in signal.joints]
                if not own:
                    base = signal.source.strip('/').replace('/', '.')
                    own = [base] if width == 1 else [f'{base}.{i}' for i in range(width)]
                if len(own) != width:
                    raise BagError(f'{signal.source}: {len(own)} names for {width} numbers')
                names += own
                position += 1
            found.append(tuple(names))
        return Names(*found)

    def widths(self) -> list[int]:
        """Return the number of columns of each entry of action."""
        start = len(self._mapping.signals)
        return [self._widths[start + i] for i in range(len(self._mapping.action))]

    def recordings(self) -> Iterator[Recording]:
        """Iterate over the episodes."""
        for path in self._paths:
            series = self._series(path)
            for number, (start, end) in enumerate(self._episodes(series)):
                found = self._recording(path, number, series, start, end)
                if found is not None:
                    yield found

    def _series(self, path: Path) -> '_Series':
        series = _Series(len(self._entries) + 2)
        entries, mapping = self._entries, self._mapping
        by_topic: dict[str, list[int]] = {}
        for i, entry in enumerate(entries):
            by_topic.setdefault(entry.source, []).append(i)
        for i, topic in enumerate((mapping.outcome_from, mapping.reward_from)):
            if topic:
                by_topic.setdefault(topic, []).append(len(entries) + i)
        with self._open(path) as reader:
            self._check(reader, path)
            for topic, received_ns, message in reader.decoded(list(by_topic)):
                stamp = fields.stamp_ns(message, received_ns, mapping.stamps == 'header')
                for i in by_topic[topic]:
                    entry = entries[i] if i < len(entries) else Signal(topic)
                    values = fields.numbers(message, entry)
                    if i < len(entries) and len(values) != self._widths[i]:
                        raise BagError(
                            f'{path}: {topic} has {len(values)} numbers, {self._widths[i]} before'
                        )
                    series.add(i, stamp, values if i < len(entries) else values[:1])
        return series.sorted(path, [entry.source for entry in entries])

    def _episodes(self, series: '_Series') -> Iterator[tuple[int, int]]:
        """Iterate over start and end [ns] of episodes: between pauses of the actions."""
        first = len(self._mapping.signals)
        count = len(self._mapping.action)
        sent = np.unique(np.concatenate([series.stamps[first + i] for i in range(count)]))
        gap_ns = nanoseconds(self._mapping.split.gap_s)
        borders = np.flatnonzero(np.diff(sent) > gap_ns) + 1 if gap_ns else np.zeros(0, np.int64)
        for part in np.split(sent, borders):
            yield int(part[0]), int(part[-1])

    def _recording(
        self, path: Path, number: int, series: '_Series', start: int, end: int
    ) -> Recording | None:
        mapping, dt_ns = self._mapping, nanoseconds(self.dt_s)
        known = len(mapping.signals)
        start = max([start, *(int(stamps[0]) for stamps in series.stamps[:known])])
        for stamps in series.stamps[known : known + len(mapping.action)]:
            start = min(start, _aligned(start, stamps, dt_ns))
        rows = (end - start) // dt_ns + 1
        if rows > MAX_ROWS:
            raise BagError(f'{path}: {rows} rows from {start} to {end} ns, at most {MAX_ROWS}')
        if rows < mapping.split.min_rows:
            return None
        grid = start + dt_ns * np.arange(rows + 1)
        parts = [self._known(series, i, grid[:-1]) for i in range(known)]
        a, b = len(mapping.state), len(mapping.state) + len(mapping.features)
        actions = [
            self._sent(series, known + i, entry, grid) for i, entry in enumerate(mapping.action)
        ]
        return Recording(
            f'{path.stem}-{number:04d}',
            self.dt_s,
            grid[:-1],
            _joined(parts[:a], rows),
            _joined(parts[a:b], rows),
            _joined(parts[b:], rows),
            np.concatenate(actions, axis=1),
            self._outcome(series, grid),
            self._reward(series, grid),
            mapping.task.text,
            partial(self._images, path, int(grid[0]), int(grid[-1])),
            {'file': path.name},
        )

    def _known(self, series: '_Series', i: int, at: I64) -> F64:
        """Return the newest values (T, n) up to each time; NaN where they are too old."""
        entry = self._entries[i]
        assert isinstance(entry, Signal)
        values, age_ns = series.newest(i, at)
        values = values * entry.scale + entry.offset
        values[age_ns > nanoseconds(self._mapping.max_age_s)] = np.nan
        return values

    def _sent(self, series: '_Series', i: int, entry: Action, grid: I64) -> F64:
        how = entry.combine or _combine(entry)
        stamps, values = series.stamps[i], series.values[i]
        held, age_ns = series.newest(i, grid[1:] - 1)
        if how == 'last':
            held[age_ns < 0] = values[0]  # before the first: where the robot was told to go
            return held
        first = np.searchsorted(stamps, grid[:-1], side='left')
        last = np.searchsorted(stamps, grid[1:], side='left')
        sums = np.concatenate((np.zeros((1, values.shape[1])), np.cumsum(values, axis=0)))
        total = sums[last] - sums[first]
        if how == 'sum':
            return total
        count = (last - first)[:, None]
        old = age_ns > nanoseconds(self._mapping.max_age_s)
        held[old | (age_ns < 0)] = 0.0  # a rate that nobody repeats is none
        return np.where(count > 0, total / np.maximum(count, 1), held)

    def _outcome(self, series: '_Series', grid: I64) -> EpisodeOutcome:
        if not self._mapping.outcome_from:
            return EpisodeOutcome[self._mapping.outcome.upper()]
        values = series.between(len(self._entries), int(grid[0]), int(grid[-1]))
        return EpisodeOutcome.SUCCESS if values.any() else EpisodeOutcome.FAILURE

    def _reward(self, series: '_Series', grid: I64) -> float:
        if not self._mapping.reward_from:
            return 0.0
        return float(series.between(len(self._entries) + 1, int(grid[0]), int(grid[-1])).sum())

    def _images(self, path: Path, start: int, end: int) -> Iterator[Picture]:
        cameras = {topic: camera for camera, topic in self._mapping.images.items()}
        if not cameras:
            return
        with self._open(path) as reader:
            for topic, received_ns, message in reader.decoded(list(cameras)):
                stamp = fields.stamp_ns(message, received_ns, self._mapping.stamps == 'header')
                if start <= stamp < end:
                    yield images.picture(cameras[topic], stamp, message)


def _aligned(start: int, stamps: I64, dt_ns: int) -> int:
    """
    Return a start a little earlier, so that actions which come once a row stay in their row.

    Without it, one that came early by its jitter would count for the row before.
    """
    off = (stamps[stamps >= start] - start + dt_ns // 2) % dt_ns - dt_ns // 2
    spread = np.quantile(np.abs(off), 0.95) if len(off) else dt_ns
    return start + int(np.quantile(off, 0.02)) if spread < JITTER * dt_ns else start


def _combine(entry: Action) -> str:
    kind = Kind(entry.kind) if entry.kind else Kind.EE_DELTA
    if kind.relative:
        return 'sum'
    return 'mean' if kind in (Kind.JOINT_VELOCITY, Kind.BASE_TWIST) else 'last'


def _joined(parts: Sequence[F64], rows: int) -> F32:
    return np.concatenate([np.zeros((rows, 0)), *parts], axis=1).astype(np.float32)


class _Series:
    """Stamped values of each entry."""

    def __init__(self, count: int) -> None:
        self._raw: list[list[tuple[int, F64]]] = [[] for _ in range(count)]
        self._messages = 0
        self.stamps: list[I64] = []
        self.values: list[F64] = []

    def add(self, i: int, stamp: int, values: F64) -> None:
        """Take one message."""
        self._messages += 1
        if self._messages > MAX_MESSAGES:
            raise BagError(f'more than {MAX_MESSAGES} messages in one file: cut it')
        self._raw[i].append((stamp, values))

    def sorted(self, path: Path, topics: Sequence[str]) -> '_Series':
        """Put all in the order of stamps."""
        for i, entries in enumerate(self._raw):
            if not entries and i < len(topics):
                raise BagError(f'{path}: no messages on {topics[i]}')
            stamps = np.array([stamp for stamp, _ in entries], np.int64)
            order = np.argsort(stamps, kind='stable')
            self.stamps.append(stamps[order])
            values = np.array([value for _, value in entries], np.float64)
            self.values.append(values[order] if len(entries) else np.zeros((0, 1)))
        self._raw = []
        return self

    def newest(self, i: int, at: I64) -> tuple[F64, I64]:
        """Return the newest values (T, n) up to each time and their ages [ns], -1 for none."""
        found = np.searchsorted(self.stamps[i], at, side='right') - 1
        held = np.maximum(found, 0)
        values = self.values[i][held]
        age_ns = np.where(found >= 0, at - self.stamps[i][held], -1)
        values[found < 0] = np.nan
        return values, np.asarray(age_ns, np.int64)

    def between(self, i: int, start: int, end: int) -> F64:
        """Return the values of a span [start, end] of time [ns]."""
        inside = (self.stamps[i] >= start) & (self.stamps[i] <= end)
        return self.values[i][inside]
