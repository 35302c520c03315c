"""From episodes in simulation to a version that still does the task, with the real parts."""

from chunkpilot_core import robot as robots
from chunkpilot_core.eval.loop import Frame, Loop
from chunkpilot_core.execution.fixed import Fixed
from chunkpilot_core.learning.behaviour_cloning import BehaviourCloning
from chunkpilot_core.learning.runtime.episodes import Episode, EpisodeAssembler
from chunkpilot_core.learning.runtime.trainer import Trainer, TrainerConfig
from chunkpilot_core.learning.runtime.versions import VersionStore
from chunkpilot_core.policies.runtime import checkpoint
from chunkpilot_core.types import EpisodeOutcome, RowSource
import numpy as np
import pytest

BASE = 'mlp_pick_and_place'


def _collect(loop: Loop, seed: int) -> Episode:
    """Run an episode and assemble it as learner_node does from topics."""
    assembler = EpisodeAssembler(robots.load('panda'), loop.policy.spec)
    assembler.start(f'seed-{seed}', 'task', 0)
    last_ns = 0

    def watch(frame: Frame) -> None:
        nonlocal last_ns
        last_ns = frame.now_ns
        if frame.observation is not None:
            assembler.observation(frame.observation)
        for rows in frame.executed:
            assembler.executed(rows)

    success = loop.run(seed, Fixed(), watch).success
    outcome = EpisodeOutcome.SUCCESS if success else EpisodeOutcome.FAILURE
    assembler.outcome(f'seed-{seed}', outcome)
    assembler.end(f'seed-{seed}', last_ns)
    (episode,) = assembler.finished(last_ns + 10**9)
    return episode


def test_an_episode_holds_what_was_seen_and_sent() -> None:
    loop = Loop('pick_and_place', checkpoint.load(BASE))
    episode = _collect(loop, 0)
    loop.close()
    assert episode.success
    assert len(episode.ends_ns) > 20
    assert np.all(np.diff(episode.ends_ns) > 0)
    shares = np.bincount(episode.sources, minlength=6) / len(episode.sources)
    assert shares[RowSource.POLICY] + shares[RowSource.GUARD] == 1.0
    # the tool really was where the rows say, but for its lag
    names = list(loop.policy.spec.input_names)
    tool = episode.inputs[:, [names.index(f'ee.{axis}') for axis in 'xyz']]
    at = np.searchsorted(episode.input_ns, episode.ends_ns).clip(max=len(tool) - 1)
    assert np.abs(tool[at] - episode.targets[:, :3]).max() < 0.04


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_what_was_learned_still_does_the_task(tmp_path) -> None:
    store = VersionStore(tmp_path, BASE)
    learner = BehaviourCloning(BehaviourCloning.Config(), store.policy)
    trainer = Trainer(learner, store, TrainerConfig(min_examples=100))
    loop = Loop('pick_and_place', checkpoint.load(BASE))
    versions = []
    for seed in range(10):
        trainer.add(_collect(loop, seed))
        while not trainer.idle:
            versions += [version for version in [trainer.work()] if version is not None]
    loop.close()
    assert trainer.success.value >= 0.9
    assert versions
    assert versions[0].accepted, versions[0].reason
    better = Loop('pick_and_place', checkpoint.load(versions[-1].path))
    results = [better.run(seed, Fixed()) for seed in range(100, 110)]
    better.close()
    assert sum(result.success for result in results) >= 9
