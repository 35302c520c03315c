"""Tasks are panda-gym's: same seeds, same success; experts solve them."""

from chunkpilot_core import registry
from chunkpilot_core import robot as robots
from chunkpilot_core.errors import ChunkpilotError, ConfigError
from chunkpilot_core.sim import bullet
from chunkpilot_core.sim.drive import RowDriver
from chunkpilot_core.sim.world import World
import numpy as np
import pytest

PANDA = robots.load('panda')
GYM = {
    'reach': 'PandaReach-v3',
    'push': 'PandaPush-v3',
    'push_moving': 'PandaPush-v3',
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


def path_of_the_goal(world: World, seed: int, seconds: float) -> np.ndarray:
    """Return where the goal was, every tenth of a second."""
    world.reset(seed)
    path = [world.definition.goal]
    for _ in range(round(seconds * 10)):
        for _ in range(10):
            world.step()
        path.append(world.definition.goal)
    return np.array(path)


def test_a_moving_goal_moves_straight_at_its_speed_and_turns_back_at_the_edge():
    world = World('push_moving', PANDA)
    path = path_of_the_goal(world, 4, 3.0)
    speeds = np.linalg.norm(np.diff(path, axis=0), axis=1) / 0.1
    assert np.allclose(speeds, speeds[0], atol=1e-6)
    assert 0.01 <= speeds[0] <= 0.04
    assert np.all(path[:, 2] == path[0, 2])  # on the table
    assert np.array_equal(path_of_the_goal(world, 4, 3.0), path)  # of its seed only
    others = [path_of_the_goal(world, seed, 0.1)[1] for seed in (5, 6)]
    assert not np.allclose(*others)
    world.close()
    task = registry.get('tasks', 'push_moving')
    world = World(task(task.Config(min_speed=0.4, max_speed=0.4)), PANDA)
    path = path_of_the_goal(world, 4, 3.0)
    assert np.abs(path[:, :2]).max() <= 0.15 + 0.4 * 0.01 + 1e-9
    assert np.ptp(path[:, 0]) > 0.2 or np.ptp(path[:, 1]) > 0.2
    world.close()


def test_a_moving_goal_is_the_same_task_with_another_goal():
    world = World('push_moving', PANDA)
    task = world.reset(7)
    assert world.task == task
    for _ in range(50):
        world.step()
    moved = world.task
    assert moved.id == task.id
    assert not np.array_equal(moved.goal, task.goal)
    assert np.allclose(moved.goal, world.scene().goal, atol=1e-6)
    world.move_body('object', world.definition.goal)
    assert world.success()
    assert np.allclose(world.reset(7).goal, task.goal)
    world.close()


def test_push_and_push_moving_have_the_same_scenes():
    scenes = []
    for kind in ('push', 'push_moving'):
        world = World(kind, PANDA)
        world.reset(11)
        scenes.append(world.scene())
        world.close()
    assert np.array_equal(scenes[0].goal, scenes[1].goal)
    assert np.array_equal(scenes[0].positions, scenes[1].positions)


def test_a_slowest_goal_is_not_faster_than_the_fastest():
    config = registry.get('tasks', 'push_moving').Config
    with pytest.raises(ConfigError, match='min_speed'):
        config(min_speed=0.05, max_speed=0.04)


def test_the_expert_keeps_hold_at_the_goal():
    world = World('pick_and_place', PANDA)
    driver, expert = RowDriver(world), world.definition.expert(PANDA)
    world.reset(3)
    driver.reset()
    for _ in range(100):
        driver.run(expert(world.scene(), driver.commanded))
    assert np.linalg.norm(world.scene().position('object') - world.definition.goal) < 0.02
    world.close()
