"""The simulated driver: commands in parts, refusals that name their reason, stop and clear."""

import math

from chunkpilot_core import robot as robots
from chunkpilot_core.errors import ChunkpilotError, InvalidDataError
from chunkpilot_core.sim.driver import Driver
from chunkpilot_core.sim.world import World
import numpy as np
import pytest

PANDA = robots.load('panda')
HOME = np.array([*PANDA.home, 0.0, 0.0])
ARM, FINGERS = PANDA.arm_joints, PANDA.joints[7:]


@pytest.fixture(name='world', scope='module')
def _world():
    world = World('reach', PANDA)
    yield world
    world.close()


@pytest.fixture(name='driver')
def _driver(world):
    world.reset(0)
    return Driver(world)


def run(driver: Driver, world: World, seconds: float = 0.5) -> np.ndarray:
    for _ in range(round(seconds / 0.01)):
        driver.apply()
        world.step()
    return world.joint_state().positions


def test_topics_command_their_joints_only_and_in_their_own_order(driver, world):
    driver.take('arm', ARM[::-1], (HOME[:7] + 0.1 * np.eye(7)[2])[::-1])
    run(driver, world, 0.1)
    driver.take('gripper', FINGERS, np.array([0.02, 0.03]))
    reached = run(driver, world)
    assert np.allclose(reached, [*(HOME[:7] + 0.1 * np.eye(7)[2]), 0.02, 0.03], atol=2e-3)
    assert (driver.commands, driver.refused) == (2, 0)


@pytest.mark.parametrize(
    ('joints', 'values', 'message'),
    [
        (ARM, [0.0] * 6, '6 values, must be 7'),
        (ARM, [0.0, 0.0, math.nan, -1.8, 0.0, 2.2, 0.0], 'panda_joint3 is nan'),
        (FINGERS, [0.0, 0.5], 'panda_finger_joint2 is 0.5'),
        (('panda_joint_1',), [0.0], "Did you mean 'panda_joint1'"),
    ],
)
def test_a_refused_part_changes_nothing(driver, world, joints, values, message):
    with pytest.raises(InvalidDataError, match=message) as caught:
        driver.take('topic', joints, np.array(values))
    assert str(caught.value) == driver.last_refusal
    assert driver.last_refusal.startswith('topic: ')
    assert (driver.commands, driver.refused) == (0, 1)
    assert np.allclose(run(driver, world), HOME, atol=2e-3)


def test_a_stopped_driver_refuses_and_releases_without_a_jump(driver, world):
    driver.take('arm', ARM, HOME[:7] + 0.2 * np.eye(7)[0])
    run(driver, world, 0.05)
    driver.stop()
    frozen = run(driver, world)
    with pytest.raises(ChunkpilotError, match='driver/clear'):
        driver.take('arm', ARM, HOME[:7])
    assert np.allclose(run(driver, world), frozen, atol=2e-3)
    driver.clear()
    assert np.allclose(run(driver, world), frozen, atol=2e-3)
    driver.take('arm', ARM, HOME[:7])
    assert np.allclose(run(driver, world), HOME, atol=3e-3)


def test_a_command_from_before_a_reset_is_forgotten(driver, world):
    driver.take('arm', ARM, HOME[:7] + 0.3 * np.eye(7)[0])
    world.reset(1)
    driver.reset()
    assert np.allclose(run(driver, world), HOME, atol=2e-3)
