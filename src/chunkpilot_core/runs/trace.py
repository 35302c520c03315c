"""One episode as it was commanded and as it looked, for pictures; a file of arrays."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from chunkpilot_core.errors import InvalidDataError
from chunkpilot_core.sim.scene import Scene
from chunkpilot_core.types import F64
import numpy as np


@dataclass
class EpisodeTrace:
    """
    Commands (N ticks) and scenes of one episode.

    Per tick: time since the start [s], targets (T,) [m], sequence number of the chunk (0 = none),
    row of it (-1 = none), whether it starved. ``bases`` has the base horizon of each chunk.
    """

    episode_id: str = ''
    seed: int = 0
    times_s: list[float] = field(default_factory=list)
    targets: list[tuple[float, ...]] = field(default_factory=list)
    chunks: list[int] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    starved: list[bool] = field(default_factory=list)
    bases: dict[int, int] = field(default_factory=dict)
    scenes: list[Scene] = field(default_factory=list)

    def arrays(self) -> dict[str, Any]:
        """Return everything as arrays for :func:`numpy.savez`."""
        first = self.scenes[0]
        return {
            'episode_id': self.episode_id,
            'seed': self.seed,
            'times_s': np.array(self.times_s),
            'targets': np.array(self.targets),
            'chunks': np.array(self.chunks),
            'rows': np.array(self.rows),
            'starved': np.array(self.starved),
            'bases': np.array(sorted(self.bases.items())).reshape(-1, 2),
            'task_kind': first.task_kind,
            'joint_names': np.array(first.joint_names),
            'bodies': np.array(first.bodies),
            'goal': first.goal,
            'stamps_ns': np.array([scene.stamp_ns for scene in self.scenes]),
            'joints': np.array([scene.joint_positions for scene in self.scenes]),
            'positions': np.array([scene.positions for scene in self.scenes]),
            'orientations': np.array([scene.orientations for scene in self.scenes]),
            'success': np.array([scene.success for scene in self.scenes]),
        }

    def save(self, path: Path) -> None:
        """
        Write the trace.

        :raises InvalidDataError: there is nothing in it
        """
        if not self.scenes or not self.times_s:
            raise InvalidDataError(
                f'trace of {self.episode_id!r}: {len(self.scenes)} scenes and '
                f'{len(self.times_s)} commands, at least one of each is needed'
            )
        path.parent.mkdir(parents=True, exist_ok=True)
        np.savez_compressed(path, **self.arrays())


def load(path: Path) -> EpisodeTrace:
    """Read a trace."""
    with np.load(path, allow_pickle=False) as data:
        arrays: dict[str, F64] = {name: data[name] for name in data.files}
    names = tuple(str(name) for name in arrays['joint_names'])
    bodies = tuple(str(name) for name in arrays['bodies'])
    seed, kind = int(arrays['seed']), str(arrays['task_kind'])
    scenes = [
        Scene(
            int(stamp), names, joints, bodies, places, turns, arrays['goal'], bool(won), seed, kind
        )
        for stamp, joints, places, turns, won in zip(
            arrays['stamps_ns'],
            arrays['joints'],
            arrays['positions'],
            arrays['orientations'],
            arrays['success'],
            strict=True,
        )
    ]
    return EpisodeTrace(
        str(arrays['episode_id']),
        seed,
        arrays['times_s'].tolist(),
        [tuple(target) for target in arrays['targets']],
        [int(chunk) for chunk in arrays['chunks']],
        [int(row) for row in arrays['rows']],
        [bool(flag) for flag in arrays['starved']],
        {int(chunk): int(base) for chunk, base in arrays['bases']},
        scenes,
    )
