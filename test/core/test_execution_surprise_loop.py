"""The surprise interrupt in the closed loop: an object that jumps cuts, a quiet scene does not."""

from dataclasses import replace

from chunkpilot_core.eval import runner
from chunkpilot_core.eval.loop import Frame
from chunkpilot_core.execution.fixed import Fixed
from chunkpilot_core.execution.runtime.surprise import Surprise
from chunkpilot_core.execution.runtime.surprise_config import SurpriseConfig
import numpy as np
import pytest

pytest.importorskip('pybullet')

ENTRY = runner.Entry('fixed', 'fixed', {'horizon': 16})
PARTS = {'surprise': SurpriseConfig(enabled=True)}


@pytest.fixture(name='loop', scope='module')
def _loop():
    settings = runner.Settings('pick_and_place', 'mlp_pick_and_place', (ENTRY,), 1)
    loop = settings.loop()
    yield loop
    loop.close()


class Hand:
    """Moves the cube aside once, when the tool has come near; notes what was seen and when."""

    def __init__(self, world, distance: float = 0.1) -> None:
        self.world, self.distance = world, distance
        self.moved: int | None = None
        self.shown: list[int] = []  # observations after the move that show it

    def __call__(self, frame: Frame) -> None:
        seen = frame.observation
        cube = self.world.objects()['object']
        if seen is None or frame.sent is None:
            return
        tool = seen.vector(('ee.x', 'ee.y', 'ee.z'))
        if self.moved is None and np.linalg.norm(tool - cube) < self.distance:
            self.world.move_body('object', cube + np.array([-0.03, 0.035 * np.sign(-cube[1]), 0]))
            self.moved = frame.now_ns
            self.before = seen.vector(('object.x', 'object.y'))
        elif self.moved is not None and seen.stamp_ns == frame.now_ns:
            now = seen.vector(('object.x', 'object.y'))
            if np.linalg.norm(now - self.before) > 0.02:
                self.shown.append(seen.stamp_ns)


def test_a_jump_is_cut_for_within_two_observations_and_the_task_still_solved(loop) -> None:
    requests = []
    monitor = Surprise(SurpriseConfig(enabled=True))
    observe = monitor.observe
    monitor.observe = lambda seen, *rest: _note(observe(seen, *rest), seen.stamp_ns, requests)
    hand = Hand(loop._world)
    result = loop.run(3, ENTRY.build(), hand, {'surprise': monitor})
    assert hand.moved is not None
    assert result.success
    assert result.interrupts[0].startswith('surprise: object moved')
    assert requests[0] - hand.shown[0] <= 20_000_000
    assert result.cuts <= 2
    assert not loop.run(3, ENTRY.build(), Hand(loop._world)).interrupts  # off


def _note(reason: str | None, stamp_ns: int, found: list[int]) -> str | None:
    if reason is not None:
        found.append(stamp_ns)
    return reason


def test_a_quiet_scene_is_never_cut_and_runs_as_without(loop) -> None:
    for seed in range(2):
        watched = loop.run(seed, ENTRY.build(), None, PARTS)
        assert (watched.cuts, watched.interrupts) == (0, ())
        assert watched == loop.run(seed, ENTRY.build())


def test_interrupts_are_kept_with_the_results(loop, tmp_path) -> None:
    settings = runner.Settings('pick_and_place', 'mlp_pick_and_place', (ENTRY,), 1)
    result = replace(loop.run(0, Fixed(Fixed.Config(16))), interrupts=('surprise: a', 'age'))
    runner.Progress(tmp_path / 'partial', settings.key()).add('fixed', result)
    kept = runner.Progress(tmp_path / 'partial', settings.key())
    assert kept.results == {('fixed', 0): result}
