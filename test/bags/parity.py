"""
A recorded run of the graph, told once more to the objects of the core.

A bag keeps the order within a topic, not the one in which a node took messages of several. That
order is read from what the node said: an observation names its joint state and its image, a
decision the tick that published it. What the guard heard it says itself: see
:mod:`chunkpilot_nodes.guard_replay`.
"""

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from chunkpilot.msg import EpisodeEvent
from chunkpilot_core import camera as cameras
from chunkpilot_core import registry, spaces, types
from chunkpilot_core import robot as robots
from chunkpilot_core.bags.reader import BagReader
from chunkpilot_core.config import build
from chunkpilot_core.execution.runtime.executor import Executor
from chunkpilot_core.execution.runtime.settings import ExecutionConfig
from chunkpilot_core.execution.runtime.surprise import Surprise
from chunkpilot_core.execution.runtime.surprise_config import SurpriseConfig
from chunkpilot_core.perception.runtime.pipeline import Perception
from chunkpilot_core.timing import DelayEstimator
from chunkpilot_nodes import convert, images
import numpy as np
from rclpy.serialization import deserialize_message

ROBOT = robots.load('panda')
PERIOD_NS = 10_000_000  # of joint states


@dataclass
class Run:
    """Messages of a bag by topic: (time of sending [ns], message), in order."""

    path: Path
    messages: dict[str, list[tuple[int, Any]]] = field(default_factory=dict)

    @classmethod
    def load(cls, path: Path) -> 'Run':
        run = cls(path)
        with BagReader(path) as bag:
            wanted = [topic for topic in bag.topics if topic in TOPICS]
            for message in bag.messages(wanted):
                package, _, name = message.type_name.partition('/msg/')
                kind = getattr(import_module(f'{package}.msg'), name)
                at_ns = message.published_ns or message.stamp_ns  # a busy recorder hears late
                entry = at_ns, deserialize_message(message.cdr, kind)
                run.messages.setdefault(message.topic, []).append(entry)
        return run

    @property
    def whole(self) -> bool:
        """Whether no chunk or image is missing, and nothing held the arm: a calm machine."""
        held = {'HOLD', 'STOPPED', 'ESTOP'}
        verdicts = [v for v in self.all('/verdict') if v.check != 'disarm']
        states = {types.ArmState(verdict.state).name for verdict in verdicts}
        chunks = {message.id.seq for message in self.all('/chunk')}
        chosen = {message.chunk_id.seq for message in self.all('/horizon')}
        shown = {convert.to_ns(m.header.stamp) for m in self.all('/camera/front/image/compressed')}
        seen = [convert.observation_from_msg(message) for message in self.all('/observation')]
        used = {one.oldest_ns for one in seen if 'front' in one.ages_s}
        pictures = bool(shown) and {ns for ns in used if ns >= min(shown)} <= shown
        return bool(chosen) and chosen <= chunks and pictures and not states & held

    def all(self, topic: str) -> list[Any]:
        return [message for _, message in self.messages.get(topic, ())]


TOPICS = (
    *('/joint_states', '/camera/front/image/compressed', '/task', '/observation', '/episode'),
    *('/command', '/verdict', '/guard/state'),
    *('/policy/info', '/chunk', '/chunk_request', '/horizon'),
)


class Feed:
    """Hands on what is stamped up to a time, each entry once."""

    def __init__(self, entries: list[tuple[int, Any]]) -> None:
        self.entries = sorted(entries, key=lambda entry: entry[0])
        self._stamps = [stamp for stamp, _ in self.entries]
        self._next = 0

    def until(self, stamp_ns: int) -> Iterator[tuple[int, Any]]:
        end = bisect_right(self._stamps, stamp_ns)
        while self._next < end:
            self._next += 1
            yield self.entries[self._next - 1]


def stamped(run: Run, topic: str) -> list[tuple[int, Any]]:
    return [(convert.to_ns(message.header.stamp), message) for message in run.all(topic)]


def received(run: Run, topic: str) -> list[tuple[int, Any]]:
    return list(run.messages.get(topic, ()))


# ---- perception ---------------------------------------------------------------------------------


def observations(
    run: Run, shift_ns: int = 0
) -> Iterator[tuple[types.Observation, types.Observation]]:
    """
    Yield what the node observed, and what the core observes from the same inputs.

    From the first task in the bag on, at which perception forgets what it saw: an estimate rests
    on all images of its object, and the recorder may have found the camera later than the node.

    :param shift_ns: a task, of which no observation says when it came, came so much later than it
        was sent
    """
    perception = Perception(ROBOT, {'front': cameras.load('front')})
    joints, frames = (
        Feed(stamped(run, '/joint_states')),
        Feed(stamped(run, '/camera/front/image/compressed')),
    )
    tasks: dict[str, tuple[int, Any]] = {}
    for sent_ns, message in received(run, '/task'):
        tasks.setdefault(message.id, (sent_ns, message))
    task_id = ''
    for at_ns, message in received(run, '/observation'):
        said = convert.observation_from_msg(message)
        if said.task_id != task_id and said.task_id in tasks:
            task_id = said.task_id
            told_ns, task = tasks[task_id]  # what was seen before it is forgotten
            for _, state in joints.until(min(told_ns + shift_ns, said.stamp_ns - 1)):
                perception.on_joint_state(convert.joint_state_from_msg(state))
            perception.on_task(convert.task_from_msg(task))
        for _, state in joints.until(said.stamp_ns - 1):
            perception.on_joint_state(convert.joint_state_from_msg(state))
        used_ns = said.oldest_ns if 'front' in said.ages_s else 0
        for _, image in frames.until(used_ns):
            perception.on_image(images.from_compressed('front', image))
        for _, state in joints.until(said.stamp_ns):
            perception.on_joint_state(convert.joint_state_from_msg(state))
        again = perception.observe(max(at_ns, said.stamp_ns), said.arm_epoch)
        if again is not None and task_id:
            yield said, again


def observations_as_told(run: Run) -> list[tuple[types.Observation, types.Observation]]:
    """Return the pairs in the order of messages that the observations tell."""
    pairs: list[tuple[types.Observation, types.Observation]] = []
    for shift_ns in (0, PERIOD_NS, -PERIOD_NS):  # before or after which joint state the task came
        pairs = list(observations(run, shift_ns))
        if all(np.array_equal(a.features, b.features, equal_nan=True) for a, b in pairs):
            break
    return pairs


# ---- execution ----------------------------------------------------------------------------------


def decisions(
    run: Run, strategy: str, options: dict[str, Any]
) -> tuple[list[types.HorizonDecision], list[types.HorizonDecision]]:
    """Return which horizons the node chose, and which ones the core chooses when told the same."""
    said = [convert.horizon_from_msg(message) for message in run.all('/horizon')]
    session = int(run.all('/chunk_request')[0].id.session)
    plugin = registry.get('execution', strategy)
    executor = Executor(
        plugin(build(plugin.Config, options)),
        ExecutionConfig(),
        ROBOT,
        session,
        Surprise(SurpriseConfig()),
    )
    spec = convert.policy_info_from_msg(next(m for m in run.all('/policy/info') if m.ready))
    executor._scheduler.delays = ToldDelays(run)
    executor.configure(spec, 1)
    measure = Measure(run, spec)
    again = []
    for now_ns, what, message in moments(run):
        if what == 'chunk':
            executor.receive(convert.chunk_from_msg(message), now_ns)
        elif what == 'guard':
            executor.set_guard(convert.guard_state_from_msg(message), now_ns)
        elif what == 'episode':
            running = message.event == EpisodeEvent.START
            executor.set_episode(running, message.task_id, now_ns, message.episode_id)
        elif what == 'observation':
            executor.observe(convert.observation_from_msg(message), now_ns)
        else:
            if message is not None:
                executor.set_speed_scale(message.speed_scale)
            tick = executor.tick(now_ns, measure(now_ns), now_ns)
            if tick.decision is not None:
                again.append(tick.decision)
    return said, again


class ToldDelays(DelayEstimator):
    """What the node had measured: when a chunk came is in no bag to the millisecond."""

    def __init__(self, run: Run) -> None:
        super().__init__()
        self._told = [float(message.delay_s) for message in run.all('/chunk_request')]
        self._answers = 0

    def add(self, delay_s: float) -> None:
        super().add(delay_s)
        self._answers += 1

    @property
    def value_s(self) -> float:
        return self._told[min(self._answers, len(self._told) - 1)]


def moments(run: Run) -> list[tuple[int, str, Any]]:
    """
    Return what an executor was told, in order: ticks by their stamps, the rest as received.

    A command says by which speed scale it went: when a scale was heard, no bag tells.
    """
    ticks: dict[int, Any] = {}
    for topic in ('/chunk_request', '/horizon'):
        ticks |= dict.fromkeys(stamp for stamp, _ in stamped(run, topic))
    ticks |= dict(stamped(run, '/command'))
    told = [(stamp, 'tick', command) for stamp, command in ticks.items()]
    for topic, what in (
        ('/guard/state', 'guard'),
        ('/episode', 'episode'),
        ('/observation', 'observation'),
        ('/chunk', 'chunk'),
    ):
        told += [(at_ns, what, message) for at_ns, message in received(run, topic)]
    told = [(_heard_ns(run, entry, sorted(ticks)), *entry[1:]) for entry in told]
    return sorted(told, key=lambda entry: entry[0])


def _heard_ns(run: Run, entry: tuple[int, str, Any], ticks: list[int]) -> int:
    """
    Return when a message was taken.

    A chunk between the tick that told its horizon and the one before; the end of the episode, the
    only one of a run, after all decisions of it.
    """
    at_ns, what, message = entry
    if what == 'episode' and message.event != EpisodeEvent.START:
        decided = (convert.to_ns(m.header.stamp) for m in run.all('/horizon'))
        return max(at_ns, 1 + max(decided, default=0))
    if what != 'chunk':
        return at_ns
    chosen = (m for m in run.all('/horizon') if m.chunk_id.seq == message.id.seq)
    decision = next(chosen, None)
    if decision is None:
        return at_ns
    after = ticks.index(convert.to_ns(decision.header.stamp))
    earliest = ticks[after - 1] + 1 if after else at_ns
    return max(earliest, min(at_ns, ticks[after] - 1))


class Measure:
    """Where the robot was measured, in the policy's space."""

    def __init__(self, run: Run, spec: types.PolicySpec) -> None:
        from chunkpilot_core.kinematics import Kinematics

        self._joints = stamped(run, '/joint_states')
        self._stamps = [stamp for stamp, _ in self._joints]
        self._kinematics, self._space = Kinematics(ROBOT), spec.space

    def __call__(self, now_ns: int) -> types.F64 | None:
        index = bisect_right(self._stamps, now_ns) - 1
        if index < 0:
            return None
        state = convert.joint_state_from_msg(self._joints[index][1])
        return spaces.from_joints(self._space, self._kinematics, state)
