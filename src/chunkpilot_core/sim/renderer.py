"""
Camera images of a scene, from an own PyBullet client that mirrors the state.

Goal markers are invisible: drawn opaque, in the cube's own colour, they would mislead every
detector.
"""

from typing import Any

from chunkpilot_core import registry
from chunkpilot_core.camera import Camera
from chunkpilot_core.robot import Robot
from chunkpilot_core.sim import bullet
from chunkpilot_core.sim.scene import Scene
from chunkpilot_core.types import Image
import numpy as np
from numpy.typing import NDArray

NEAR_M, FAR_M = 0.05, 10.0


class Renderer:
    """Renders scenes of any task from one camera; bodies are made anew when the task changes."""

    def __init__(self, camera: Camera, robot: Robot, noise_sd: float = 1.0) -> None:
        """
        Connect; bodies are loaded with the first scene.

        :param camera: where the camera really stands, see :func:`deployment.misplaced`
        :param noise_sd: standard deviation of the sensor noise [grey levels]
        """
        self.camera = camera
        self.robot = robot
        self.noise_sd = noise_sd
        self._view = view_matrix(camera)
        self._projection = projection_matrix(camera)
        self._task_kind = ''
        self._sim: Any = None

    def render(self, scene: Scene, noise_rng: np.random.Generator | None = None) -> Image:
        """
        Return the image of a scene, stamped with the scene's stamp.

        :param noise_rng: source of sensor noise; None = none
        :raises UnknownNameError: a task or joint that is not known
        """
        if scene.task_kind != self._task_kind:
            self._load(scene.task_kind)
        for index, position in zip(
            self._joints.values(), scene.joints(tuple(self._joints)), strict=True
        ):
            self._client.resetJointState(self._body, index, position)
        for name, body in self._objects.items():
            i = scene.bodies.index(name)
            self._client.resetBasePositionAndOrientation(
                body, scene.positions[i], scene.orientations[i]
            )
        pixels = self._shoot()
        if noise_rng is not None and self.noise_sd > 0:
            pixels = add_noise(pixels, self.noise_sd, noise_rng)
        return Image(self.camera.name, scene.stamp_ns, pixels)

    def close(self) -> None:
        """Free the physics client."""
        if self._sim is not None:
            self._sim.close()
            self._sim, self._task_kind = None, ''

    @property
    def _client(self) -> Any:
        return self._sim.physics_client

    def _shoot(self) -> NDArray[np.uint8]:
        camera = self.camera
        _, _, rgba, _, _ = self._client.getCameraImage(
            camera.width,
            camera.height,
            viewMatrix=self._view,
            projectionMatrix=self._projection,
            shadow=0,
            renderer=self._client.ER_TINY_RENDERER,
            flags=self._client.ER_NO_SEGMENTATION_MASK,
        )
        shaped = np.asarray(rgba, np.uint8).reshape(camera.height, camera.width, 4)
        return np.ascontiguousarray(shaped[:, :, :3])

    def _load(self, task_kind: str) -> None:
        definition = registry.get('tasks', task_kind)()
        self.close()
        self._sim = bullet.connect()
        definition.attach(self._sim, bullet.load_panda(self._sim, self.robot))
        self._body = self._sim._bodies_idx['panda']
        self._joints = bullet.joint_indices(self._sim, self.robot)
        self._objects = {
            info.name: self._sim._bodies_idx[info.body] for info in definition.objects
        }
        self._task_kind = task_kind


def view_matrix(camera: Camera) -> list[float]:
    """Return OpenGL's view matrix, column by column: its camera looks along -z with y up."""
    axes = camera.rotation * np.array([1.0, -1.0, -1.0])
    matrix = np.eye(4)
    matrix[:3, :3] = axes.T
    matrix[:3, 3] = -axes.T @ camera.position
    return [float(value) for value in matrix.T.ravel()]


def projection_matrix(camera: Camera) -> list[float]:
    """
    Return OpenGL's projection matrix, column by column, for any principal point.

    PyBullet draws the optical axis at (w / 2, h / 2 - 1), as :func:`camera.orbit` has it.
    """
    w, h = camera.width, camera.height
    matrix = np.zeros((4, 4))
    matrix[0, 0] = 2 * camera.fx / w
    matrix[1, 1] = 2 * camera.fy / h
    matrix[0, 2] = 1 - 2 * camera.cx / w
    matrix[1, 2] = 2 * (camera.cy + 1) / h - 1
    matrix[2, 2] = -(FAR_M + NEAR_M) / (FAR_M - NEAR_M)
    matrix[2, 3] = -2 * FAR_M * NEAR_M / (FAR_M - NEAR_M)
    matrix[3, 2] = -1
    return [float(value) for value in matrix.T.ravel()]


def add_noise(pixels: NDArray[np.uint8], sd: float, rng: np.random.Generator) -> NDArray[np.uint8]:
    """Return pixels with Gaussian noise of ``sd`` grey levels, rounded and clipped."""
    noisy = pixels + np.float32(sd) * rng.standard_normal(pixels.shape, np.float32)
    rounded: NDArray[np.uint8] = np.clip(np.rint(noisy), 0, 255).astype(np.uint8)
    return rounded
