"""A bag of one episode as core dataclasses: what was seen, wanted and really done."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from chunkpilot_core.bags import decode
from chunkpilot_core.bags.reader import BagReader
from chunkpilot_core.bags.writer import UNFINISHED
from chunkpilot_core.errors import BagError, ConfigError
from chunkpilot_core.types import (
    ActionChunk,
    ActionSpace,
    EpisodeOutcome,
    ExecutedRows,
    Observation,
    Task,
)

_TOPICS = ('episode', 'outcome', 'task', 'observation', 'chunk', 'executed_rows', 'policy_info')


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
    spaces: Mapping[str, ActionSpace] = field(default_factory=dict)
    """Action spaces that policies announced, by hash."""


def bags(folder: str | Path) -> list[Path]:
    """List the finished bags directly below a folder, by name."""
    found = Path(folder).glob('*/metadata.yaml')
    return sorted(file.parent for file in found if UNFINISHED not in file.parent.name)


def load(path: str | Path, without: Collection[str] = ()) -> Episode:
    """
    Read the bag of an episode; topics are found by the end of their names, in any namespace.

    :param without: topics that are not read, e.g. ``('chunk',)``, which are large
    :raises BagError: it can't be read, or has no start of an episode
    """
    found: dict[str, list[Any]] = {name: [] for name in _TOPICS if name not in without}
    with BagReader(path) as bag:
        names = {topic: _short(topic, kind) for topic, kind in bag.topics.items()}
        chosen = [topic for topic, name in names.items() if name in found]
        for message in bag.messages(chosen):
            found[names[message.topic]].append(bag.decode(message))
        metadata = bag.metadata
    try:
        return _episode(path, found, metadata)
    except (ValueError, TypeError, AttributeError, OverflowError, ConfigError) as error:
        raise BagError(f'{path}: messages that make no sense: {error}') from error


def _short(topic: str, type_name: str) -> str:
    if type_name == 'chunkpilot/msg/PolicyInfo':
        return 'policy_info'
    return topic.rsplit('/', 1)[-1]


def _episode(
    path: str | Path, found: Mapping[str, Sequence[Any]], metadata: Mapping[str, str]
) -> Episode:
    starts = [event for event in found['episode'] if event.event == decode.EPISODE_START]
    if not starts:
        raise BagError(f'{path}: no episode starts in it')
    start = _own(starts, metadata, found['executed_rows'])
    # latched outcomes and tasks of the episode before are in the bag, too
    outcome = next((o for o in found['outcome'] if o.episode_id == start.episode_id), None)
    tasks = [task for task in found['task'] if task.id == start.task_id]
    return Episode(
        start.episode_id,
        decode.task(tasks[-1]) if tasks else None,
        {**dict(zip(start.keys, start.values, strict=True)), **metadata},
        tuple(decode.observation(msg) for msg in found['observation']),
        tuple(decode.chunk(msg) for msg in found.get('chunk', ())),
        tuple(decode.executed_rows(msg) for msg in found['executed_rows']),
        *_ending(outcome),
        {
            info.space.hash: decode.action_space(info.space)
            for info in found['policy_info']
            if len(info.space.groups)  # none while the policy is loading
        },
    )


def _own(starts: Sequence[Any], metadata: Mapping[str, str], rows: Sequence[Any]) -> Any:
    """
    Return the start of the episode that the bag is of.

    A bag that is closed late on a busy machine has the start of the next episode in it, too.
    """
    ids = [event.episode_id for event in starts]
    counts = Counter(batch.episode_id for batch in rows if batch.episode_id in ids)
    own = metadata.get('episode_id')
    if own not in ids:
        own = counts.most_common(1)[0][0] if counts else ids[-1]
    return starts[len(ids) - 1 - ids[::-1].index(own)]


def _ending(outcome: Any) -> tuple[EpisodeOutcome, float, str, float]:
    if outcome is None:
        return EpisodeOutcome.UNKNOWN, 0.0, '', 0.0
    return (
        EpisodeOutcome(int(outcome.outcome)),
        float(outcome.reward),
        outcome.reason,
        float(outcome.duration_s),
    )
