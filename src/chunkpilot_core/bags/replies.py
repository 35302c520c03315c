"""
A recorded policy and a recorded perception as stand-ins for the live ones: what they said, made
out to whoever asks now.

A recorded message answers another request, epoch, task and time: played as it is, everybody would
refuse it. Everything that says so is replaced, everything that was decided is kept.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from chunkpilot_core.bags import decode, episodes
from chunkpilot_core.bags.reader import BagReader
from chunkpilot_core.errors import BagError, ConfigError
from chunkpilot_core.types import ActionChunk, ChunkRequest, Id, Observation, PolicySpec


@dataclass(frozen=True, slots=True)
class Reply:
    """One answer, in as many messages as it had; ``after_ns`` (one each): since the request."""

    parts: tuple[ActionChunk, ...]
    after_ns: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RecordedEpisode:
    """
    What one bag says of an episode; ``observations`` begin with the newest before the start.
    """

    path: Path
    id: str
    seed: int
    task_kind: str
    start_ns: int
    replies: tuple[Reply, ...]
    observations: tuple[Observation, ...]
    policy: PolicySpec | None
    inference_s: float
    """Of the policy's warm-up."""


def paths(where: str | Path) -> list[Path]:
    """
    Return the bags meant by a path: a bag, or a folder of bags.

    :raises BagError: there is none
    """
    path = Path(where)
    found = episodes.bags(path) if not (path / 'metadata.yaml').is_file() else [path]
    if not found:
        raise BagError(f'{path}: neither a bag nor a folder with bags in it')
    return found


def load(path: Path) -> RecordedEpisode:
    """
    Read one bag.

    :raises BagError: it can't be read, or no episode starts in it
    """
    try:
        return _load(path)
    except (ValueError, TypeError, AttributeError, OverflowError, ConfigError) as error:
        raise BagError(f'{path}: messages that make no sense: {error}') from error


def _load(path: Path) -> RecordedEpisode:
    starts: dict[str, Any] = {}
    ends_ns: dict[str, int] = {}
    policy: Any = None
    spec: PolicySpec | None = None
    asked_ns: dict[Id, int] = {}
    chunks: dict[Id, list[ActionChunk]] = {}
    observations: list[Observation] = []
    with BagReader(path) as bag:
        kinds = {
            topic: kind.rsplit('/', 1)[-1]
            for topic, kind in bag.topics.items()
            if kind.startswith('chunkpilot/')
        }
        for message in bag.messages([topic for topic, kind in kinds.items() if kind in _KINDS]):
            kind, msg = kinds[message.topic], bag.decode(message)
            if kind == 'EpisodeEvent' and msg.event == decode.EPISODE_START:
                starts[msg.episode_id] = msg
            elif kind == 'EpisodeEvent':
                ends_ns[msg.episode_id] = decode.stamp_ns(msg.header.stamp)
            elif kind == 'PolicyInfo' and msg.ready:
                policy, spec = msg, decode.policy_spec(msg)
            elif kind == 'ChunkRequest':
                asked_ns[decode.identity(msg.id)] = decode.stamp_ns(msg.header.stamp)
            elif kind == 'ActionChunk':
                chunk = decode.chunk(msg)
                chunks.setdefault(chunk.request_id, []).append(chunk)
            elif kind == 'Observation':
                observations.append(decode.observation(msg))
        named = bag.metadata.get('episode_id')
    if not starts:
        raise BagError(f'{path}: no episode starts in it')
    # a bag is closed a moment after its episode, and the next one may have started by then
    start = starts.get(named or '') or next(reversed(starts.values()))
    end_ns = ends_ns.get(start.episode_id, 2**63)
    observations = [seen for seen in observations if seen.stamp_ns <= end_ns]
    start_ns = decode.stamp_ns(start.header.stamp)
    first = max((i for i, seen in enumerate(observations) if seen.stamp_ns <= start_ns), default=0)
    return RecordedEpisode(
        path,
        start.episode_id,
        int(start.seed),
        start.task_kind,
        start_ns,
        tuple(_replies(asked_ns, chunks, start_ns, end_ns)),
        tuple(observations[first:]),
        spec,
        float(policy.warm_inference_s) if policy is not None else 0.0,
    )


_KINDS = ('EpisodeEvent', 'PolicyInfo', 'ChunkRequest', 'ActionChunk', 'Observation')


def _replies(
    asked_ns: Mapping[Id, int],
    chunks: Mapping[Id, list[ActionChunk]],
    start_ns: int,
    end_ns: int,
) -> Iterator[Reply]:
    for request, parts in chunks.items():
        since_ns = asked_ns.get(request, parts[0].stamp_ns - round(parts[0].inference_s * 1e9))
        if start_ns <= since_ns <= end_ns:
            after = tuple(max(part.stamp_ns - since_ns, 0) for part in parts)
            yield Reply(tuple(parts), after)


class Library:
    """Recorded episodes, chosen one by one for live ones."""

    def __init__(self, where: str | Path) -> None:
        """
        Look what there is; bags are read when they are needed.

        :raises BagError: there is no bag
        """
        self._paths = paths(where)
        self._seeds: dict[int, Path] = {}
        self._next = 0
        self.first = load(self._paths[0])
        self._seeds[self.first.seed] = self._paths[0]
        self._unread = list(self._paths[1:])

    def choose(self, seed: int) -> RecordedEpisode:
        """Return the episode of a seed if there is one, else the next in the order of names."""
        while seed not in self._seeds and self._unread:
            path = self._unread.pop(0)
            self._seeds.setdefault(load(path).seed, path)
        if seed in self._seeds:
            return load(self._seeds[seed])
        self._next += 1
        return load(self._paths[(self._next - 1) % len(self._paths)])


def answer(
    reply: Reply, request: ChunkRequest, observation: Observation, ids: Iterator[Id]
) -> list[tuple[int, ActionChunk]]:
    """
    Return a recorded answer made out to a live request, with when each part is due [ns].

    Rows keep their distance to the observation that they rest on.

    :param ids: of the chunks, new ones
    """
    due = []
    for part, after_ns in zip(reply.parts, reply.after_ns, strict=True):
        moved_ns = observation.stamp_ns - part.observation_stamp_ns
        rows = tuple(
            replace(
                entry,
                observation_id=observation.id,
                observation_stamp_ns=min(
                    entry.observation_stamp_ns + moved_ns, observation.stamp_ns
                ),
            )
            for entry in part.parts
        )
        chunk = replace(
            part,
            id=next(ids),
            request_id=request.id,
            arm_epoch=request.arm_epoch,
            task_id=request.task_id,
            observation_id=observation.id,
            observation_stamp_ns=observation.stamp_ns,
            observation_oldest_ns=min(part.observation_oldest_ns + moved_ns, observation.stamp_ns),
            start_ns=part.start_ns + moved_ns,
            parts=rows,
        )
        due.append((request.stamp_ns + after_ns, chunk))
    return due


def observe(seen: Observation, new: Id, moved_ns: int, epoch: int, task_id: str) -> Observation:
    """
    Return a recorded observation made out to a live graph.

    :param moved_ns: from recorded to live time
    """
    return replace(
        seen,
        id=new,
        stamp_ns=seen.stamp_ns + moved_ns,
        oldest_ns=seen.oldest_ns + moved_ns,
        objects=tuple(
            replace(entry, stamp_ns=entry.stamp_ns + moved_ns if entry.stamp_ns else 0)
            for entry in seen.objects
        ),
        arm_epoch=epoch,
        task_id=task_id,
    )
