"""Bags of small made-up episodes, with messages as the nodes send them."""

from dataclasses import dataclass, field
from pathlib import Path
import sys
from typing import Any

from chunkpilot_core import spaces
from chunkpilot_core.bags.definitions import Definitions
from chunkpilot_core.bags.writer import BagWriter, TopicQos
from chunkpilot_core.types import (
    EpisodeOutcome,
    ExecutedRows,
    F32,
    Id,
    Image,
    Observation,
    PolicySpec,
    RowSource,
    Task,
)
import numpy as np
import pytest

SPACE = spaces.ee_delta_space()
DT_NS = 40_000_000
_DEFINITIONS = Definitions()  # parsed once: that is what takes time
START_NS = 10**18
STATE = ('ee.x', 'ee.y', 'ee.z', 'gripper.width')
FEATURES = ('object.x', 'object.y')
GOAL = ('goal.x', 'goal.y')


@dataclass
class Recording:
    """What goes into one bag; arrays have one row per 40 ms, ends may be moved."""

    rows: F32
    state: F32
    features: F32
    goal: F32
    ends_ns: list[int] = field(default_factory=list)
    seen_ns: list[int] = field(default_factory=list)
    sources: list[RowSource] = field(default_factory=list)
    outcome: EpisodeOutcome = EpisodeOutcome.SUCCESS
    reward: float = 1.0
    task: Task = field(default_factory=lambda: Task('t', 'push', 'push it', GOAL, np.zeros(2)))
    images: list[tuple[int, Image]] = field(default_factory=list)
    """Stamp of the observation that each came with."""
    name: str = 'episode'

    def __post_init__(self) -> None:
        count = len(self.rows)
        self.ends_ns = self.ends_ns or [START_NS + DT_NS * (i + 1) for i in range(count)]
        self.seen_ns = self.seen_ns or [START_NS + DT_NS * i for i in range(len(self.state))]
        self.sources = self.sources or [RowSource.HUMAN] * count


def reaching(seed: int, length: int = 60, spread: float = 1.0) -> Recording:
    """Move a tool straight to a goal; ``spread`` of goals and objects over episodes."""
    random = np.random.default_rng(seed)
    goal = (0.3 + spread * random.uniform(-0.1, 0.1, 2)).astype(np.float32)
    place = random.uniform(-0.2, 0.2, 2)
    width = 0.08
    rows, states = [], []
    for _ in range(length):
        row = np.zeros(4)
        row[:2] = 2.0 * (goal - place) + random.normal(0.0, 0.02, 2)
        row[2] = 0.05 * random.normal()
        row[3] = 1.0
        row = np.clip(row, -1.0, 1.0).astype(np.float32)
        states.append([*place, 0.1 + 0.01 * random.normal(), width])
        rows.append(row)
        place = place + 0.05 * row[:2]
    object_xy = 0.15 + spread * random.uniform(-0.15, 0.15, 2)
    features = np.tile(object_xy, (length, 1)).astype(np.float32)
    goals = np.tile(goal, (length, 1))
    return Recording(
        np.array(rows, np.float32), np.array(states, np.float32), features, goals,
        name=f'e{seed}',
    )  # fmt: skip


@pytest.fixture(scope='session')
def made() -> Any:
    """Return this module: test modules can't import it."""
    pytest.importorskip('rclpy')
    return sys.modules[__name__]


def write(path: Path, recording: Recording) -> Path:
    """Record a made-up episode as the recorder would."""
    from rclpy.serialization import serialize_message

    path.parent.mkdir(parents=True, exist_ok=True)
    with BagWriter(path, _DEFINITIONS) as bag:
        for stamp_ns, topic, message in sorted(_messages(recording), key=lambda entry: entry[0]):
            bag.add_topic(topic, f'chunkpilot/msg/{type(message).__name__}', TopicQos())
            bag.write(topic, stamp_ns, bytes(serialize_message(message)))
    return path


def _messages(it: Recording) -> list[tuple[int, str, Any]]:
    from chunkpilot.msg import EpisodeEvent, Outcome
    from chunkpilot_nodes import convert

    spec = PolicySpec('mlp', 'x', 1, SPACE, 16, 0.04)
    start, last = it.seen_ns[0] - 1000, max(it.ends_ns[-1], it.seen_ns[-1]) + 1000
    info = convert.policy_info_to_msg(
        spec, session=1, stamp_ns=start, state='ready', warm_inference_s=0.1
    )
    begin = EpisodeEvent(event=EpisodeEvent.START, episode_id=it.name, task_id=it.task.id)
    outcome = Outcome(episode_id=it.name, outcome=int(it.outcome), reward=it.reward)
    found: list[tuple[int, str, Any]] = [
        (start, '/policy/info', info),
        (start, '/task', convert.task_to_msg(it.task, start)),
        (start, '/episode', begin),
        (last, '/outcome', outcome),
    ]
    for i, stamp_ns in enumerate(it.seen_ns):
        message = convert.observation_to_msg(_observation(it, i, stamp_ns))
        found.append((stamp_ns + 1_000_000, '/observation', message))
    for stamp_ns, image in it.images:
        number = it.seen_ns.index(stamp_ns)
        message = _images(Id(3, number + 1), stamp_ns, image)
        found.append((stamp_ns + 2_000_000, '/observation_images', message))
    for first in range(0, len(it.rows), 8):
        part = slice(first, first + 8)
        ends = it.ends_ns[part]
        batch = ExecutedRows(
            Id(1, first + 1), ends[0], 1, Id(2, first + 1), 0, 0.04, it.rows[part],
            tuple(it.sources[part]), tuple(ends), ('joint',), np.zeros((len(ends), 1)),
            SPACE.hash, it.task.id, it.name,
        )  # fmt: skip
        found.append((ends[-1] + 1_000_000, '/executed_rows', convert.executed_rows_to_msg(batch)))
    return found


def _observation(it: Recording, i: int, stamp_ns: int) -> Observation:
    return Observation(
        Id(3, i + 1), stamp_ns, stamp_ns, STATE, it.state[i], FEATURES, it.features[i], GOAL,
        it.goal[i],
    )  # fmt: skip


def _images(identity: Id, stamp_ns: int, image: Image) -> Any:
    from chunkpilot.msg import ObservationImages
    from chunkpilot_nodes import convert, images

    message = ObservationImages(observation_id=convert.id_to_msg(identity), names=[image.name])
    message.header.stamp = convert.to_time(stamp_ns)
    message.images = [images.to_compressed(image)]
    return message
