"""predict_node on a virtual clock: judges each chunk and tells the guard a little later."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from chunkpilot_core.clearance.runtime import choice
from chunkpilot_core.clearance.runtime.bodies import Obstacle
from chunkpilot_core.config import option
from chunkpilot_core.prediction.predictor import Predictor
from chunkpilot_core.robot import Robot
from chunkpilot_core.types import (
    ActionChunk,
    ActionSpace,
    ChunkVerdict,
    JointState,
    nanoseconds,
    SafetyVerdict,
)


@dataclass(frozen=True)
class Prediction(Predictor.Config):
    """
    That chunks are judged before they run, and how; part ``prediction`` of a loop.

    There is none unless one is given: ``chunkpilot eval --set prediction.delay_s=0.01``.
    """

    delay_s: float = option(
        0.01, 'from a chunk to its verdict, sweep and transport', unit='s', min=0.0, max=10.0
    )
    distances: str = option('auto', "a plug-in of the family clearance, or 'auto'")


class VirtualPrediction:
    """Judges the chunks of one episode."""

    def __init__(self, robot: Robot, part: Prediction, space: ActionSpace) -> None:
        self._delay_ns = nanoseconds(part.delay_s)
        self._clearance = choice.make(part.distances, robot)
        self._predictor = Predictor(robot, part, self._clearance)
        self._predictor.space = space
        self._waiting: deque[tuple[int, ChunkVerdict]] = deque()
        self.judged = self.bad = 0

    def set_obstacles(self, obstacles: Sequence[Obstacle]) -> None:
        """Take what stands around beside what the robot's file lists."""
        if self._clearance is not None:
            self._clearance.set_obstacles(obstacles)
            self._predictor.surroundings_changed()

    def take(self, chunk: ActionChunk, present: SafetyVerdict, now_ns: int) -> None:
        """Judge a chunk from the setpoint that the guard told last."""
        state = JointState(now_ns, present.joint_names, present.sent, present.sent_velocity)
        verdict = self._predictor.judge(chunk, state, now_ns)
        self.judged += 1
        self.bad += not verdict.ok
        self._waiting.append((now_ns + self._delay_ns, verdict))

    def due(self, now_ns: int) -> list[ChunkVerdict]:
        """Return the verdicts that are there by now, in order."""
        found = []
        while self._waiting and self._waiting[0][0] <= now_ns:
            found.append(self._waiting.popleft()[1])
        return found
