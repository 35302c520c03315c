"""Tasks are panda-gym's: same seeds, same success; experts solve them."""

from chunkpilot_core import registry
from chunkpilot_core import robot as robots
from chunkpilot_core.errors import ChunkpilotError
from chunkpilot_core.sim import bullet
from chunkpilot_core.sim.drive import RowDriver
from chunkpilot_core.sim.world import World
import numpy as np
import pytest

PANDA = robots.load('panda')
GYM = {
    'reach': 'PandaReach-v3',
    'push': 'PandaPush-v3',
    'pick_and_place': 'PandaPickAndPlace-v3',
    'stack': 'PandaStack-v3',
}


@pytest.fixture(name='kind', params=sorted(GYM), scope='module')
def _kind(request):
    return request.param


@pytest.fixture(name='world', scope='module')
def _world(kind):
    world = World(kind, PANDA)
    yield world
    world.close()


def solve(world: World, driver: RowDriver, seed: int, noise: float = 0.0) -> float | None:
    """Return how long the expert took [s], None if it failed."""
    rng = np.random.default_rng(seed)
    expert = world.definition.expert(world.robot)
    world.reset(seed)
    driver.reset()
    row = np.array((0.0, 0.0, 0.0, 1.0), np.float32)
    for row_index in range(round(world.definition.timeout_s / 0.04)):
        row = expert(world.scene(), driver.commanded, row)
        assert np.all(np.isfinite(row))
        assert np.all(np.abs(row) <= 1.0 + 1e-6)
        assert np.linalg.norm(row[:3]) * 0.05 <= 0.012 + 1e-6  # 0.3 m/s
        noisy = row + np.array([*rng.normal(0.0, noise, 3), 0.0], np.float32)
        if driver.run(noisy):
            return (row_index + 1) * 0.04
    return None


def test_every_task_is_registered(kind):
    assert sorted(GYM) == registry.names('tasks')
    definition = registry.get('tasks', kind)
    assert definition.kind == kind
    assert len(definition.goal_names) in (3, 6)


def test_a_seed_means_what_it_means_in_panda_gym(kind, world):
    with bullet.silence():
        import gymnasium
        import panda_gym  # noqa: F401 - registers the environments

        env = gymnasium.make(GYM[kind])
    for seed in (0, 7, 123):
        observation, _ = env.reset(seed=seed)
        task = world.reset(seed)
        assert np.allclose(task.goal, observation['desired_goal'], atol=1e-6)
        assert task.goal.dtype == np.float32
        assert len(task.goal) == len(task.goal_names)
        scene = world.scene()
        if scene.bodies:
            assert np.allclose(scene.positions.ravel(), observation['achieved_goal'], atol=1e-6)
    env.close()


def test_success_is_panda_gyms_definition(kind, world):
    world.reset(1)
    goal, threshold = world.definition.goal, world.definition.config.distance_threshold
    names = [info.name for info in world.definition.objects]
    if not names:
        pytest.skip('there is nothing to put at the goal')
    for share, expected in ((0.9, True), (1.1, False)):
        for i, name in enumerate(names):
            shift = share * threshold if i == 0 else 0.0
            world.move_body(name, goal[3 * i : 3 * i + 3] + np.array((shift, 0.0, 0.0)))
        assert world.success() is expected
        assert world.scene().success is expected


def test_a_tighter_threshold_can_be_asked_for():
    task = registry.get('tasks', 'pick_and_place')
    world = World(task(task.Config(distance_threshold=0.01)), PANDA)
    world.reset(1)
    world.move_body('object', world.definition.goal + np.array((0.02, 0.0, 0.0)))
    assert not world.success()
    world.move_body('object', world.definition.goal + np.array((0.005, 0.0, 0.0)))
    assert world.success()
    world.close()


def test_a_task_without_bodies_says_so():
    with pytest.raises(ChunkpilotError, match='not attached'):
        _ = registry.get('tasks', 'push')().goal


@pytest.mark.parametrize('seed', [0, 1])
def test_the_expert_solves_it(world, seed):
    took = solve(world, RowDriver(world), seed)
    assert took is not None


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize('noise', [0.0, 0.05])
def test_the_expert_solves_nearly_every_seed(kind, world, noise):
    driver = RowDriver(world)
    solved = [solve(world, driver, 1000 + seed, noise) is not None for seed in range(25)]
    assert sum(solved) >= (21 if kind == 'stack' else 24)


def test_the_expert_keeps_hold_at_the_goal():
    world = World('pick_and_place', PANDA)
    driver, expert = RowDriver(world), world.definition.expert(PANDA)
    world.reset(3)
    driver.reset()
    for _ in range(100):
        driver.run(expert(world.scene(), driver.commanded))
    assert np.linalg.norm(world.scene().position('object') - world.definition.goal) < 0.02
    world.close()
