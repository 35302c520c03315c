"""Scenes of bench-hazards: hard for who only brakes, possible, and the same by seed."""

from argparse import Namespace

from benchmarks.hazards import __main__ as bench
from benchmarks.hazards.scenes import KINDS, Scenes
from chunkpilot_core import registry
from chunkpilot_core import robot as robots
from chunkpilot_core.errors import ConfigError
import pytest

pytest.importorskip('pybullet')

from chunkpilot_core.sim.world import World

SAFE, UNSAFE = ({'success': True, 'touched': touched} for touched in ([], ['post']))
FAILED = {'success': False, 'touched': []}


@pytest.fixture(name='world', scope='module')
def _world():
    world = World('pick_and_place')
    yield world
    world.close()


@pytest.fixture(name='clearance', scope='module')
def _clearance():
    return registry.get('clearance', 'capsules')(robots.load('panda'))


@pytest.mark.parametrize('kind', KINDS)
def test_a_scene_is_the_same_by_its_seed_and_the_straight_way_leads_into_it(
    world, clearance, kind
) -> None:
    scenes = Scenes(kind, clearance)
    world.reset(3002)
    (thing,), (again,) = scenes(world, 3002), scenes(world, 3002)
    assert (thing.size, thing.position.tolist()) == (again.size, again.position.tolist())
    joints = world.joint_state().positions
    tool = scenes._kinematics.forward(joints[:7]).position
    cube, goal = world.objects()['object'], world.goal()[:3]
    straight = scenes._slack(thing, scenes._poses(joints, (tool, cube, goal)))
    assert straight < 0.0 or kind == 'wall'
    assert scenes._slack(thing, scenes._poses(joints, (tool,))) > 0.0


def test_where_there_is_no_room_there_is_no_scene(world, clearance, monkeypatch) -> None:
    monkeypatch.setattr('benchmarks.hazards.scenes.SLACK_M', 1.0)
    monkeypatch.setattr('benchmarks.hazards.scenes.TRIES', 3)
    world.reset(3002)
    with pytest.raises(ConfigError, match="no place for 'wall' in the scene of seed 3002"):
        Scenes('wall', clearance)(world, 3002)


def test_seeds_without_a_scene_are_passed_over_and_done_ones_not_repeated() -> None:
    done = {'edge/5': {}, 'beside/5': {'reactive': SAFE}, 'wall/5': {'reactive': SAFE}}
    args = Namespace(seed=5, episodes=2)
    coming = list(bench.missing(args, done))
    assert coming == [('edge', 6), ('beside', 6), ('wall', 6), ('edge', 7)]


def test_what_prediction_changes_is_told_by_pairs() -> None:
    done = {
        bench.key(kind, seed): {'reactive': FAILED if seed else UNSAFE, 'predictive': SAFE}
        for kind in KINDS
        for seed in (0, 1)
    }
    seeds = {kind: [0, 1] for kind in KINDS}
    told = bench.summarise(done, seeds, ('reactive', 'predictive'))
    rows = {(row['guard'], row['hazard']): row for row in told['rows']}
    assert rows['reactive', 'all']['unsafe']['value'] == 0.5
    assert rows['predictive', 'edge']['safe_success']['value'] == 1.0
    changes = {(row['hazard'], row['what']): row for row in told['paired']}
    assert changes['all', 'success']['predictive_minus_reactive']['value'] == 0.5
    assert changes['wall', 'unsafe']['predictive_minus_reactive']['value'] == -0.5
    assert changes['all', 'safe_success']['predictive_minus_reactive']['value'] == 1.0
