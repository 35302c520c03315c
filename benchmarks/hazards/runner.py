"""Episodes of a scene, one for each guard, in a process of its own."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from benchmarks.hazards.scenes import Scenes
from chunkpilot_core import registry
from chunkpilot_core import robot as robots
from chunkpilot_core.errors import ConfigError
from chunkpilot_core.eval.latency import LatencyModel
from chunkpilot_core.eval.loop import EpisodeResult, Loop, Surroundings
from chunkpilot_core.eval.prediction import Prediction
from chunkpilot_core.execution.upcycling import Upcycling
from chunkpilot_core.policies.runtime import checkpoint

VERDICT_S = 0.05  # from a chunk to its verdict: detours take longer to look at than one path
CUBE_M = (0.04, 0.04, 0.04)

Scene = tuple[str, int]
"""Kind of thing, and seed."""


class Runner:
    """Runs episodes of one policy in one process."""

    def __init__(self, policy: str, latency_s: float) -> None:
        """Load world and policy."""
        self._loop = Loop('pick_and_place', checkpoint.load(policy), LatencyModel(latency_s))
        self._clearance = registry.get('clearance', 'capsules')(robots.load('panda'))

    def scene(self, kind: str, seed: int, guards: Sequence[str]) -> dict[str, Any]:
        """Return an episode per guard, nothing where the thing has no place."""
        scenes = Scenes(kind, self._clearance)
        try:
            return {guard: self._run(scenes, seed, guard) for guard in guards}
        except ConfigError as error:
            if 'no place' not in str(error):
                raise
            return {}

    def _run(self, scenes: Scenes, seed: int, guard: str) -> dict[str, Any]:
        surroundings = Surroundings(scenes, known=guard != 'ignorant', held=CUBE_M)
        parts: dict[str, Any] = {'surroundings': surroundings}
        if guard in ('judged', 'predictive'):
            detours = guard == 'predictive'
            parts['prediction'] = Prediction(delay_s=VERDICT_S, detours=detours)
        return short(self._loop.run(seed, Upcycling(Upcycling.Config()), None, parts))


_runner: Runner


def short(result: EpisodeResult) -> dict[str, Any]:
    """Return what the summary needs, and why things happened."""
    names = ('success', 'touched', 'duration_s', 'cuts', 'reactions', 'interrupts', 'notes')
    return {name: value for name, value in asdict(result).items() if name in names}


def start(policy: str, latency_s: float) -> None:
    """Prepare a worker."""
    global _runner
    _runner = Runner(policy, latency_s)


def work(scene: Scene, guards: Sequence[str]) -> tuple[Scene, dict[str, Any]]:
    """Run a scene in a worker."""
    return scene, _runner.scene(*scene, guards)
