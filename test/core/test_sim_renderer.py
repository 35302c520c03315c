"""What the camera sees agrees with its calibration, without goal markers, and repeats by seed."""

from dataclasses import replace

from chunkpilot_core import camera as cameras
from chunkpilot_core import robot as robots
from chunkpilot_core.sim.deployment import misplaced
from chunkpilot_core.sim.renderer import Renderer
from chunkpilot_core.sim.world import World
import cv2
import numpy as np
import pytest

PANDA = robots.load('panda')
FRONT = cameras.load('front')
CLEAR = (0.05, 0.12, 0.02)  # [m] a place that the arm does not hide


@pytest.fixture(name='world', scope='module')
def _world():
    world = World('pick_and_place', PANDA)
    yield world
    world.close()


@pytest.fixture(name='renderer', scope='module')
def _renderer():
    renderer = Renderer(FRONT, PANDA)
    yield renderer
    renderer.close()


def mask(pixels: np.ndarray, low: int, high: int) -> np.ndarray:
    hsv = cv2.cvtColor(pixels, cv2.COLOR_RGB2HSV)
    return cv2.inRange(hsv, (low, 100, 30), (high, 255, 255)) > 0


def centroid(pixels: np.ndarray, low: int = 50, high: int = 70) -> np.ndarray:
    rows, columns = np.nonzero(mask(pixels, low, high))
    return np.array([columns.mean(), rows.mean()])


@pytest.mark.parametrize('seed', range(12))
def test_a_cube_is_where_the_calibration_projects_it(world, renderer, seed):
    world.reset(seed)
    scene = world.scene()
    seen = centroid(renderer.render(scene).pixels)
    assert np.all(np.abs(seen - FRONT.project(scene.position('object')[None])[0]) < 1.0)


@pytest.mark.parametrize('principal_point', [(80.0, 59.0), (62.0, 75.0)])
def test_any_principal_point_is_drawn(world, principal_point):
    camera = replace(FRONT, cx=principal_point[0], cy=principal_point[1])
    renderer = Renderer(camera, PANDA)
    world.reset(0)
    world.move_body('object', np.array(CLEAR))
    scene = world.scene()
    seen = centroid(renderer.render(scene).pixels)
    renderer.close()
    assert np.all(np.abs(seen - camera.project(scene.position('object')[None])[0]) < 1.0)


def test_the_goal_marker_is_invisible(world, renderer):
    world.reset(0)
    world.move_body('object', np.array(CLEAR))
    scene = world.scene()
    count, _, stats, _ = cv2.connectedComponentsWithStats(
        mask(renderer.render(scene).pixels, 50, 70).astype(np.uint8)
    )
    assert count == 2  # background and one cube
    assert stats[1, cv2.CC_STAT_AREA] > 30


def test_a_misplaced_camera_shifts_what_is_perceived(world):
    offset = np.array([0.0, 0.03, 0.0])
    renderer = Renderer(misplaced(FRONT, offset), PANDA)
    world.reset(0)
    world.move_body('object', np.array(CLEAR))
    scene = world.scene()
    seen = centroid(renderer.render(scene).pixels)
    renderer.close()
    believed = FRONT.project((scene.position('object') + offset)[None])[0]
    assert np.all(np.abs(seen - believed) < 1.0)


def test_the_arm_follows_the_scene(world, renderer):
    world.reset(0)
    before = renderer.render(world.scene()).pixels
    targets = world.targets + np.array([0.3, 0, 0, 0, 0, 0, 0, 0, 0])
    for _ in range(50):
        world.step(targets)
    image = renderer.render(world.scene())
    assert image.stamp_ns == world.time_ns
    changed = np.abs(image.pixels.astype(int) - before).max(axis=2) > 30
    assert 200 < changed.sum() < 0.5 * changed.size


def test_noise_repeats_by_seed_and_has_the_given_size(world, renderer):
    world.reset(0)
    scene = world.scene()
    clean = renderer.render(scene).pixels.astype(int)
    noisy = [renderer.render(scene, np.random.default_rng(seed)).pixels for seed in (1, 1, 2)]
    assert np.array_equal(noisy[0], noisy[1])
    assert not np.array_equal(noisy[0], noisy[2])
    middle = (clean > 20) & (clean < 235)
    assert np.std((noisy[0] - clean)[middle]) == pytest.approx(1.0, abs=0.1)


def test_one_renderer_shows_every_task(renderer):
    for kind, low, high in (('stack', 110, 130), ('push', 50, 70)):
        world = World(kind, PANDA)
        world.reset(2)
        scene = world.scene()
        seen = centroid(renderer.render(scene).pixels, low, high)
        assert np.all(np.abs(seen - FRONT.project(scene.position('object')[None])[0]) < 2.0)
        world.close()
