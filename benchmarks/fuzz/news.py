"""What else comes in: broken states, observations, obstacles, chunks, verdicts, people."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from benchmarks.fuzz.moods import ODD, SPACE
from chunkpilot_core.clearance.runtime.bodies import Obstacle, ObstacleList, Shape
from chunkpilot_core.safety.runtime.tightening import Tightening
from chunkpilot_core.types import (
    ActionChunk,
    ChunkVerdict,
    Health,
    Id,
    Intervention,
    JointState,
    nanoseconds,
    Observation,
)
import numpy as np

if TYPE_CHECKING:
    from benchmarks.fuzz.attack import Episode


def bring(episode: 'Episode') -> None:
    """Let one piece of news come in."""
    NEWS[int(episode.random.integers(0, len(NEWS)))](episode)


def _broken_state(episode: 'Episode') -> None:
    broken = episode.measured.copy()
    broken[episode.random.integers(0, len(broken))] = episode.random.choice(ODD)
    _state(episode, broken, episode.now_ns)


def _other_time(episode: 'Episode') -> None:
    off_ns = nanoseconds(float(episode.random.uniform(-2.0, 2.0)))
    _state(episode, episode.measured, episode.now_ns + off_ns)


def _permuted_state(episode: 'Episode') -> None:
    order = episode.random.permutation(len(episode.measured))
    names = tuple(episode.robot.joints[i] for i in order)
    state = JointState(episode.now_ns, names, episode.measured[order], episode.velocity[order])
    episode.guard.on_joint_state(state, episode.now_ns)


def _state(episode: 'Episode', positions: np.ndarray, stamp_ns: int) -> None:
    state = JointState(stamp_ns, episode.robot.joints, positions, episode.velocity)
    episode.guard.on_joint_state(state, episode.now_ns)


def _unreadable(episode: 'Episode') -> None:
    episode.guard.on_joint_error('not readable', episode.now_ns)
    episode.guard.on_unreadable('not readable', episode.now_ns)
    episode.guard.on_obstacles('not readable', episode.now_ns)


def _observation(episode: 'Episode') -> None:
    health = Health(int(episode.random.integers(0, 3)))
    nothing = np.zeros(0, np.float32)
    found = Observation(
        episode.new_id(3), episode.now_ns, episode.now_ns, (), nothing, health=health
    )
    episode.guard.on_observation(found, episode.now_ns)


def _episode(episode: 'Episode') -> None:
    episode.guard.set_episode(bool(episode.random.random() < 0.7), 'episode', 'task')


def _hand(episode: 'Episode') -> None:
    source = str(episode.random.choice(['human', 'teleop', 'nobody']))
    active = bool(episode.random.random() < 0.3)
    word = Intervention(episode.now_ns, source, active)
    episode.guard.on_intervention(word, episode.now_ns)


def _approval(episode: 'Episode') -> None:
    random = episode.random
    channel = str(random.choice(['', 'gripper', 'moon']))
    episode.guard.approve(channel, bool(random.random() < 0.5), episode.now_ns)


def _cost(episode: 'Episode') -> None:
    cost_s = float(episode.random.choice([0.001, 0.006, 0.03, np.nan, np.inf]))
    episode.guard.on_cost(cost_s, episode.now_ns)


def _tighten(episode: 'Episode') -> None:
    random = episode.random
    fraction, speed = float(random.choice([1.0, 0.9, 0.5])), float(random.choice([0.0, 0.5, 0.1]))
    episode.guard.tighten(Tightening(fraction, speed), episode.now_ns)


def _chunk(episode: 'Episode') -> None:
    random, now_ns = episode.random, episode.now_ns
    rows = random.normal(0.0, 0.5, (int(random.integers(0, 30)), SPACE.size))
    if rows.size and random.random() < 0.2:
        rows.flat[random.integers(0, rows.size)] = random.choice(ODD)
    with np.errstate(over='ignore'):
        rows = rows.astype(np.float32)
    identity = episode.new_id(9)
    chunk = ActionChunk(
        id=identity,
        request_id=identity,
        arm_epoch=episode.guard.machine.epoch,
        task_id='',
        observation_id=Id(3, 1),
        observation_stamp_ns=now_ns,
        start_ns=now_ns,
        dt_s=float(random.choice([0.04, 0.1, 0.0, np.nan])),
        actions=rows,
        space_hash=SPACE.hash,
        policy='fuzz',
        policy_version=0,
    )
    episode.guard.on_chunk(chunk, now_ns)
    if random.random() < 0.7:
        episode.guard.on_chunk_verdict(_verdict(episode, identity), now_ns)


def _verdict(episode: 'Episode', identity: Id) -> ChunkVerdict:
    random = episode.random
    return ChunkVerdict(
        episode.now_ns,
        identity,
        bool(random.random() < 0.6),
        first_bad_row=int(random.integers(-1, 30)),
        executable_rows=int(random.integers(0, 30)),
        speed_scale=float(random.choice([1.0, 0.3, 0.0])),
        check='clearance',
        reason='too near',
        risk=float(random.random()),
    )


def _obstacles(episode: 'Episode') -> None:
    random, found = episode.random, []
    for number in range(int(random.integers(0, 4))):
        place = random.uniform(-0.5, 0.5, 3)
        if random.random() < 0.05:
            place[0] = random.choice(ODD)
        shape = list(Shape)[int(random.integers(0, 3))]
        count = {Shape.BOX: 3, Shape.SPHERE: 1, Shape.CAPSULE: 2}[shape]
        size = tuple(float(value) for value in random.uniform(0.01, 0.2, count))
        frame = 'tool' if random.random() < 0.2 else 'world'
        upright = np.array([0.0, 0.0, 0.0, 1.0])
        found.append(Obstacle(f'thing{number}', shape, size, place, upright, frame))
    told = ObstacleList(episode.now_ns, tuple(found), bool(random.random() < 0.7))
    episode.guard.on_obstacles(told, episode.now_ns)


NEWS: tuple[Callable[['Episode'], None], ...] = (
    _broken_state, _other_time, _permuted_state, _unreadable, _observation, _episode, _hand,
    _approval, _cost, _tighten, _chunk, _obstacles,
)  # fmt: skip
