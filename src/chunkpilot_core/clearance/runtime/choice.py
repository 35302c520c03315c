"""Which computation of distances a robot gets."""

from importlib.util import find_spec

from chunkpilot_core import registry
from chunkpilot_core.clearance.base import Clearance
from chunkpilot_core.clearance.runtime.meshes import find_urdf
from chunkpilot_core.errors import ConfigError
from chunkpilot_core.robot import Robot

AUTO = 'auto'


def resolve(name: str, robot: Robot) -> str:
    """
    Return the name of the plug-in that a choice means, '' for a robot whose shape is not known.

    :param name: a plug-in, or 'auto': the meshes' where there are some and PyBullet, else capsules
    """
    if robot.collision is None:
        return ''
    if name != AUTO:
        return name
    if find_spec('pybullet') is None:
        return 'capsules'
    try:
        find_urdf(robot.collision.urdf)
    except ConfigError:
        return 'capsules'
    return 'pybullet'


def make(name: str, robot: Robot) -> Clearance | None:
    """
    Return the distances of a robot, None where its shape is not known.

    :raises UnknownNameError: no such plug-in
    :raises ConfigError: the plug-in can't be used here
    """
    resolved = resolve(name, robot)
    if not resolved:
        return None
    clearance: Clearance = registry.get('clearance', resolved)(robot)
    return clearance
