"""Chunks judged in the closed loop: a quiet scene is as before, what is in the way untouched."""

from chunkpilot_core.clearance.runtime.bodies import Obstacle, Shape
from chunkpilot_core.eval import runner
from chunkpilot_core.eval.loop import Surroundings
from chunkpilot_core.eval.prediction import Prediction
from chunkpilot_core.types import ExecutedRows, RowSource
import numpy as np
import pytest

pytest.importorskip('pybullet')

ENTRY = runner.Entry('fixed', 'fixed', {'horizon': 8})
PREDICTION = {'prediction': Prediction()}


@pytest.fixture(name='loop', scope='module')
def _loop():
    settings = runner.Settings('pick_and_place', 'mlp_pick_and_place', (ENTRY,), 1)
    loop = settings.loop()
    yield loop
    loop.close()


def roof(world, seed):
    """Return a roof over the cube, through which the policy goes down."""
    place = world.objects()['object'] + np.array([0.0, 0.0, 0.07])
    return (Obstacle('roof', Shape.BOX, (0.3, 0.3, 0.02), place, np.array([0.0, 0.0, 0.0, 1.0])),)


@pytest.mark.parametrize('seed', [0, 1])
def test_a_nominal_episode_is_the_same_with_verdicts_that_are_required(loop, seed: int) -> None:
    assert loop.run(seed, ENTRY.build(), None, PREDICTION) == loop.run(seed, ENTRY.build())


def test_late_verdicts_slow_and_do_not_stop(loop) -> None:
    late = loop.run(0, ENTRY.build(), None, {'prediction': Prediction(delay_s=0.3)})
    soon = loop.run(0, ENTRY.build(), None, PREDICTION)
    assert late.success
    assert late.reactions.get('SLOW', 0) > 10
    assert late.duration_s > soon.duration_s
    assert not any(name in late.reactions for name in ('HOLD', 'STOP'))


def test_a_roof_over_the_cube_is_not_touched_and_another_chunk_asked_for(loop) -> None:
    blind = loop.run(0, ENTRY.build(), None, {'surroundings': Surroundings(roof, known=False)})
    assert blind.touched == ('roof',)
    known = {'surroundings': Surroundings(roof), **PREDICTION}
    seeing = loop.run(0, ENTRY.build(), None, known)
    assert seeing.touched == ()
    assert any('clearance' in reason and 'roof' in reason for reason in seeing.interrupts)


def ledge(world, seed):
    """Return a ledge before the cube, across the straight way to it."""
    way = world.objects()['object'] - np.array([0.04, 0.0, 0.0])
    angle = np.arctan2(way[1], way[0])
    ahead = np.array([np.cos(angle), np.sin(angle)])
    place = world.objects()['object'][:2] - 0.11 * ahead
    turn = np.array([0.0, 0.0, np.sin(angle / 2.0), np.cos(angle / 2.0)])
    return (Obstacle('ledge', Shape.BOX, (0.03, 0.1, 0.09), np.array([*place, 0.045]), turn),)


def test_a_detour_leads_over_what_who_only_brakes_rests_in_front_of(loop) -> None:
    known = Surroundings(ledge, held=(0.04, 0.04, 0.04))
    stopped = loop.run(5, ENTRY.build(), None, {'surroundings': known, **PREDICTION})
    assert not stopped.success
    guided = {'surroundings': known, 'prediction': Prediction(detours=True)}
    rows: list[ExecutedRows] = []
    led = loop.run(5, ENTRY.build(), lambda frame: rows.extend(frame.executed), guided)
    assert led.success
    assert led.touched == stopped.touched == ()
    sources = {source for batch in rows for source in batch.sources}
    assert {RowSource.POLICY, RowSource.GUARD} <= sources
