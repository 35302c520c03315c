"""
PyBullet through panda-gym's wrapper: without the noise that both print, and with a coarse robot.
"""

from collections.abc import Iterator
from contextlib import contextmanager
import ctypes
import os
from pathlib import Path
import sys
import tempfile
from typing import Any

from chunkpilot_core.errors import ConfigError
from chunkpilot_core.robot import Robot
import numpy as np

PHYSICS_DT_S = 1 / 500
"""[s], panda-gym's."""


@contextmanager
def silence() -> Iterator[None]:
    """
    Keep what C code prints from the terminal: PyBullet's ``argv[0]=`` and its build time at
    import.
    """
    libc = ctypes.CDLL(None)
    sys.stdout.flush()
    sys.stderr.flush()
    libc.fflush(None)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    kept = {descriptor: os.dup(descriptor) for descriptor in (1, 2)}
    for descriptor in kept:
        os.dup2(nowhere, descriptor)
    try:
        yield
    finally:
        libc.fflush(None)  # else the buffer would be written after the descriptors are back
        for descriptor, copy in kept.items():
            os.dup2(copy, descriptor)
            os.close(copy)
        os.close(nowhere)


def connect(substeps: int = 5) -> Any:
    """
    Return a new ``panda_gym.pybullet.PyBullet`` without a window, whose step is ``substeps`` of
    1/500 s.
    """
    with silence():
        from panda_gym.pybullet import PyBullet

        return PyBullet(render_mode='rgb_array', renderer='Tiny', n_substeps=substeps)


def load_panda(sim: Any, robot: Robot) -> Any:
    """
    Load panda-gym's robot into a client of :func:`connect`, with coarse visible meshes.

    Physics is the same; loading takes 12 ms instead of 65, a frame 9 ms instead of 30.
    """
    from panda_gym.envs.robots.panda import Panda
    import pybullet_data

    data = pybullet_data.getDataPath()
    with tempfile.TemporaryDirectory(prefix='chunkpilot-') as folder:
        file = Path(folder) / 'franka_panda' / 'panda.urdf'
        file.parent.mkdir()
        file.write_text(coarse_urdf(Path(data) / 'franka_panda'), encoding='utf-8')
        sim.physics_client.setAdditionalSearchPath(folder)
        panda = Panda(sim, base_position=np.array(robot.base_xyz), control_type='joints')
    sim.physics_client.setAdditionalSearchPath(data)
    return panda


def coarse_urdf(folder: Path) -> str:
    """Return the URDF in ``folder`` as text whose visible meshes are the collision meshes."""
    text = (folder / 'panda.urdf').read_text(encoding='utf-8')
    text = text.replace('meshes/visual/', 'meshes/collision/')
    return text.replace('package://', f'{folder}/')


def joint_indices(sim: Any, robot: Robot) -> dict[str, int]:
    """
    Return PyBullet's index of each of the robot's joints.

    :raises ConfigError: the robot's joints are not those of the simulated one
    """
    client, body = sim.physics_client, sim._bodies_idx['panda']
    infos = [client.getJointInfo(body, i) for i in range(client.getNumJoints(body))]
    found = {info[1].decode(): int(info[0]) for info in infos if info[2] != client.JOINT_FIXED}
    if sorted(found) != sorted(robot.joints):
        raise ConfigError(
            f'robot {robot.name!r} has joints {list(robot.joints)}, '
            f'the simulated Panda {list(found)}'
        )
    return {name: found[name] for name in robot.joints}
