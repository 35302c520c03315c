"""
What a guard did in a recorded run, and why: verdicts of a bag grouped into spans of one cause.

Times are seconds from the first verdict of the bag.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
import math
from typing import Any

from chunkpilot_core.bags.decode import EPISODE_START, stamp_ns
from chunkpilot_core.bags.reader import BagReader
from chunkpilot_core.errors import BagError
from chunkpilot_core.types import ArmState, Reaction, seconds

VERDICT = 'chunkpilot/msg/SafetyVerdict'
APART = 10  # ticks; what comes back sooner is the same span
HELD = (ArmState.HOLD, ArmState.STOPPED, ArmState.ESTOP)


@dataclass
class Span:
    """Ticks in which the guard did one thing for one cause; the worst of them is told."""

    begin_s: float
    end_s: float
    reaction: str
    check: str
    joint: str
    reason: str
    ticks: int = 1
    value: float = math.nan
    limit: float = math.nan
    margin: float = math.nan
    requested: float = math.nan  # of the joint
    sent: float = math.nan
    slowest: float = 1.0  # speed scale
    before: str = ''
    """What the guard was doing when it began."""
    further: dict[str, str] = field(default_factory=dict)
    """While it held: other checks that came to object, and why."""


@dataclass(frozen=True)
class Moment:
    """A transition, a request, or what became of an irreversible action."""

    at_s: float
    kind: str
    text: str
    suppressed: int = 0


@dataclass
class Story:
    """All that happened; ``spans`` and ``moments`` in order of time."""

    bag: str
    robot: str = ''
    begin_s: float = 0.0
    end_s: float = 0.0
    verdicts: int = 0
    reactions: dict[str, int] = field(default_factory=dict)
    spans: list[Span] = field(default_factory=list)
    moments: list[Moment] = field(default_factory=list)
    suppressed: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


class GuardLog:
    """The guard's topics of one bag."""

    def __init__(self, bag: BagReader) -> None:
        """
        Look for the topics.

        :raises BagError: no guard spoke in this bag
        """
        self._bag = bag
        found = [name for name, kind in bag.topics.items() if kind == VERDICT]
        found = [name for name in found if bag.counts[name]]
        if not found:
            raise BagError(
                f'{bag.path}: no verdicts of a guard in it; topics: {", ".join(bag.topics)}'
            )
        if len(found) > 1:
            raise BagError(f'{bag.path}: verdicts of several guards: {", ".join(found)}')
        self._topic = found[0]
        self._namespace = self._topic.removesuffix('verdict')
        self.first_ns = stamp_ns(next(self._decoded(self._topic)).header.stamp)

    def verdicts(self) -> Iterator[tuple[float, Any]]:
        """Iterate over time [s] and verdict."""
        for verdict in self._decoded(self._topic):
            yield self._at(verdict), verdict

    def events(self) -> Iterator[tuple[float, Any]] | None:
        """Iterate over time [s] and event; None: the bag has no such topic."""
        name = f'{self._namespace}guard/events'
        if name not in self._bag.topics:
            return None
        return ((self._at(event), event) for event in self._decoded(name))

    def robot(self) -> str:
        """Return the robot's name, '' where no message tells it."""
        for topic in ('guard/parameters', 'guard/state'):
            if self._bag.counts.get(self._namespace + topic):
                return str(next(self._decoded(self._namespace + topic)).robot)
        return ''

    def episodes(self) -> list[tuple[float, float, str]]:
        """Return begin, end (inf: not in the bag) and id of each episode."""
        found: list[tuple[float, float, str]] = []
        name = f'{self._namespace}episode'
        for event in self._decoded(name) if name in self._bag.topics else ():
            if event.event == EPISODE_START:
                found.append((self._at(event), math.inf, event.episode_id))
            elif found and found[-1][2] == event.episode_id:
                found[-1] = (found[-1][0], self._at(event), event.episode_id)
        return found

    def _decoded(self, topic: str) -> Iterator[Any]:
        return (self._bag.decode(message) for message in self._bag.messages([topic]))

    def _at(self, message: Any) -> float:
        return seconds(stamp_ns(message.header.stamp) - self.first_ns)


def tell(log: GuardLog, bag: str, begin_s: float = -math.inf, end_s: float = math.inf) -> Story:
    """Return what happened between two times."""
    story = Story(bag, log.robot())
    counts: Counter[str] = Counter()
    teller = _Teller(story)
    for at_s, verdict in log.verdicts():
        if begin_s <= at_s <= end_s:
            counts[Reaction(int(verdict.reaction)).name] += 1
            teller.see(at_s, verdict)
    story.reactions = {name: counts[name] for name in Reaction.__members__ if counts[name]}
    events = log.events()
    if events is None:
        story.notes.append('no guard/events in the bag: requests are not known')
        story.moments += teller.changes
        return story
    for at_s, event in events:
        if begin_s <= at_s <= end_s:
            _add_event(story, at_s, event)
    return story


def at(log: GuardLog, moment_s: float) -> tuple[float, Any]:
    """
    Return the verdict in force at a time, and when it was said.

    :raises BagError: the bag has none before
    """
    found: tuple[float, Any] | None = None
    for entry in log.verdicts():
        if entry[0] > moment_s + 1e-9:
            break
        found = entry
    if found is None:
        raise BagError(f'no verdict before {moment_s:g} s; times count from the first one')
    return found


class _Teller:
    """Joins ticks into spans."""

    def __init__(self, story: Story) -> None:
        self._story = story
        self._open: dict[tuple[str, str, str], tuple[Span, int]] = {}  # and its newest tick
        self._held: Span | None = None
        self._last: tuple[float, Any] | None = None
        self.changes: list[Moment] = []

    def see(self, at_s: float, verdict: Any) -> None:
        """Take the next verdict."""
        story, last = self._story, self._last
        if last is None:
            story.begin_s = at_s
        elif verdict.session != last[1].session:
            story.notes.append(f'{at_s:.3f} s: another guard speaks: it was restarted')
        elif verdict.tick != last[1].tick + 1:
            lost = int(verdict.tick) - int(last[1].tick) - 1
            story.notes.append(f'{at_s:.3f} s: {lost} verdicts are not in the bag')
        if verdict.state != self._last_state and last is not None:
            names = ArmState(int(last[1].state)).name, ArmState(int(verdict.state)).name
            text = f'{names[0]} -> {names[1]}: {verdict.reason or "no reason told"}'
            self.changes.append(Moment(at_s, 'transition', text))
        story.end_s, story.verdicts = at_s, story.verdicts + 1
        if int(verdict.state) in HELD:
            self._hold(at_s, verdict)
        else:
            self._held = None
            if verdict.reaction:
                self._add(at_s, verdict)
        self._last = at_s, verdict

    def _hold(self, at_s: float, verdict: Any) -> None:
        """Take a tick of a hold or stop, which is one span from its begin to its end."""
        span = self._held
        if span is None or verdict.state != self._last_state:
            span = self._held = self._span(at_s, verdict)
        span.end_s, span.ticks = at_s, span.ticks + 1
        if verdict.check not in (span.check, ''):
            span.further[verdict.check] = verdict.reason

    def _add(self, at_s: float, verdict: Any) -> None:
        key = (Reaction(int(verdict.reaction)).name, verdict.check, verdict.joint)
        span, tick = self._open.get(key, (None, 0))
        if span is None or verdict.tick - tick > APART:
            span = self._span(at_s, verdict)
        self._open[key] = span, int(verdict.tick)
        span.end_s, span.ticks = at_s, span.ticks + 1
        span.slowest = min(span.slowest, float(verdict.speed_scale))
        if span.ticks > 1 and verdict.margin < span.margin:
            self._measure(span, verdict)

    def _span(self, at_s: float, verdict: Any) -> Span:
        reaction = Reaction(int(verdict.reaction)).name
        before = in_a_word(self._last[1]) if self._last else ''
        span = Span(
            at_s, at_s, reaction, verdict.check, verdict.joint, verdict.reason, 0, before=before
        )
        self._measure(span, verdict)
        self._story.spans.append(span)
        return span

    def _measure(self, span: Span, verdict: Any) -> None:
        """Let a span tell the numbers of this tick."""
        span.reason, span.margin = verdict.reason, float(verdict.margin)
        span.value, span.limit = float(verdict.value), float(verdict.limit)
        names = list(verdict.joint_names)
        if verdict.joint in names:
            place = names.index(verdict.joint)
            span.requested = float(verdict.requested[place])
            span.sent = float(verdict.sent[place])

    @property
    def _last_state(self) -> int:
        return int(self._last[1].state) if self._last else -1


def in_a_word(verdict: Any) -> str:
    """Return what the guard is doing in a tick."""
    state = ArmState(int(verdict.state))
    speed = float(abs(verdict.sent_velocity).max()) if len(verdict.sent_velocity) else 0.0
    words = [state.name]
    if state is not ArmState.DISARMED:
        words.append(f'moving at up to {speed:.3f} rad/s' if speed > 1e-6 else 'at rest')
    if verdict.source:
        words.append(f'driven by {verdict.source}')
    if verdict.command_id.seq:
        words.append(f'command {verdict.command_id.seq}')
    if verdict.chunk_id.seq:
        words.append(f'row {verdict.row} of chunk {verdict.chunk_id.seq}')
    if verdict.reaction and verdict.check:
        words.append(f'{Reaction(int(verdict.reaction)).name} by {verdict.check}')
    return ', '.join(words)


def _add_event(story: Story, at_s: float, event: Any) -> None:
    if event.suppressed:
        name = ' '.join(word for word in (event.kind, event.check, event.joint) if word)
        story.suppressed[name] = story.suppressed.get(name, 0) + int(event.suppressed)
    text = _worded(event)
    if text:
        story.moments.append(Moment(at_s, event.kind, text, int(event.suppressed)))


def _worded(event: Any) -> str:
    """Return an event in words, '' for one that verdicts tell better."""
    if event.kind == 'transition':
        names = ArmState(int(event.from_state)).name, ArmState(int(event.to_state)).name
        return f'{names[0]} -> {names[1]}: {event.reason} ({event.check})'
    if event.kind == 'request':
        done = 'done' if event.limit else 'refused'
        what = f'{event.check} {event.joint}' if event.joint else event.check
        return f'asked to {what}: {done}, {event.reason}'
    if event.kind in ('reaction', 'rejection'):
        return ''
    return f'{event.kind}, {event.check}: {event.reason}'


def timeline(story: Story) -> Sequence[tuple[float, Span | Moment]]:
    """Return spans and moments, in order of time."""
    entries: list[tuple[float, Span | Moment]] = [(span.begin_s, span) for span in story.spans]
    entries += [(moment.at_s, moment) for moment in story.moments]
    return sorted(entries, key=lambda entry: (entry[0], isinstance(entry[1], Span)))
