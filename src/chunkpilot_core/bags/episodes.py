"""A bag of one episode as core dataclasses: what was seen, wanted and really done."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chunkpilot_core.bags import decode
from chunkpilot_core.bags.reader import BagReader
from chunkpilot_core.bags.writer import UNFINISHED
from chunkpilot_core.errors import BagError
from chunkpilot_core.types import ActionChunk, EpisodeOutcome, ExecutedRows, Observation, Task

_START = 1  # EpisodeEvent.START
_TOPICS = ('episode', 'outcome', 'task', 'observation', 'chunk', 'executed_rows')


@dataclass(frozen=True, slots=True)
class Episode:
    """One episode; everything in the order of receipt."""

    id: str
    task: Task | None
    metadata: Mapping[str, str]
    observations: tuple[Observation, ...]
    chunks: tuple[ActionChunk, ...]
    rows: tuple[ExecutedRows, ...]
    outcome: EpisodeOutcome = EpisodeOutcome.UNKNOWN
    reward: float = 0.0
    reason: str = ''
    duration_s: float = 0.0


def bags(folder: str | Path) -> list[Path]:
    """List the finished bags directly below a folder, by name."""
    found = Path(folder).glob('*/metadata.yaml')
    return sorted(file.parent for file in found if UNFINISHED not in file.parent.name)


def load(path: str | Path) -> Episode:
    """
    Read the bag of an episode; topics are found by the end of their names, in any namespace.

    :raises BagError: it can't be read, or has no start of an episode
    """
    found: dict[str, list[Any]] = {name: [] for name in _TOPICS}
    with BagReader(path) as bag:
        names = {topic: topic.rsplit('/', 1)[-1] for topic in bag.topics}
        chosen = [topic for topic, name in names.items() if name in found]
        for message in bag.messages(chosen):
            found[names[message.topic]].append(bag.decode(message))
        metadata = bag.metadata
    starts = [event for event in found['episode'] if event.event == _START]
    if not starts:
        raise BagError(f'{path}: no episode starts in it')
    start = starts[-1]
    # latched outcomes and tasks of the episode before are in the bag, too
    outcome = next((o for o in found['outcome'] if o.episode_id == start.episode_id), None)
    tasks = [task for task in found['task'] if task.id == start.task_id]
    return Episode(
        start.episode_id,
        decode.task(tasks[-1]) if tasks else None,
        {**dict(zip(start.keys, start.values, strict=True)), **metadata},
        tuple(decode.observation(msg) for msg in found['observation']),
        tuple(decode.chunk(msg) for msg in found['chunk']),
        tuple(decode.executed_rows(msg) for msg in found['executed_rows']),
        *_ending(outcome),
    )


def _ending(outcome: Any) -> tuple[EpisodeOutcome, float, str, float]:
    if outcome is None:
        return EpisodeOutcome.UNKNOWN, 0.0, '', 0.0
    return (
        EpisodeOutcome(int(outcome.outcome)),
        float(outcome.reward),
        outcome.reason,
        float(outcome.duration_s),
    )
