"""The corners of a link's collision meshes, read from a URDF and its Wavefront files."""

from importlib.util import find_spec
from pathlib import Path
import xml.etree.ElementTree as ElementTree

from chunkpilot_core import rotations
from chunkpilot_core.errors import ConfigError, UnknownNameError
from chunkpilot_core.types import F64
import numpy as np


def find_urdf(name: str) -> Path:
    """
    Return a URDF given by its path, or by its path within pybullet_data.

    :raises ConfigError: no name, or no such file in either place
    """
    spec = find_spec('pybullet_data')
    folders = [
        Path(),
        *(Path(place) for place in (spec and spec.submodule_search_locations) or ()),
    ]
    for folder in folders if name else ():
        if (folder / name).is_file():
            return folder / name
    raise ConfigError(f'collision.urdf: {name!r} is no file, neither here nor in pybullet_data')


def link_points(urdf: ElementTree.Element, folder: Path, name: str) -> F64:
    """
    Return the corners of a link's collision meshes in the link's frame, shape (N, 3) [m].

    :param urdf: its root
    :param folder: where its meshes are found
    :raises UnknownNameError: the URDF has no such link
    :raises ConfigError: a link without collision meshes, or one that is no readable .obj file
    """
    links = {str(link.get('name')): link for link in urdf.iter('link')}
    if name not in links:
        raise UnknownNameError('link of the URDF', name, links)
    points = [
        _moved(collision, read_obj(folder / _file(mesh)))
        for collision in links[name].iter('collision')
        for mesh in collision.iter('mesh')
    ]
    if not points:
        raise ConfigError(f'link {name!r} of the URDF has no collision mesh')
    return np.concatenate(points)


def read_obj(file: Path) -> F64:
    """
    Return the corners in a Wavefront file, shape (N, 3).

    :raises ConfigError: not readable, or without corners
    """
    try:
        lines = file.read_text(encoding='utf-8').splitlines()
        points = [[float(x) for x in line.split()[1:4]] for line in lines if line[:2] == 'v ']
    except (OSError, ValueError) as error:
        raise ConfigError(f'{file}: {error}') from error
    corners = np.array(points)
    if corners.ndim != 2 or corners.shape[1] != 3 or not np.isfinite(corners).all():
        raise ConfigError(f'{file}: no corners of a mesh (lines "v x y z")')
    return corners


def _file(mesh: ElementTree.Element) -> str:
    name = str(mesh.get('filename'))
    if not name.endswith('.obj'):
        raise ConfigError(f'mesh {name!r} of the URDF: only .obj files are read')
    return name.removeprefix('package://')


def _moved(collision: ElementTree.Element, points: F64) -> F64:
    origin = collision.find('origin')
    if origin is None:
        return points
    xyz, rpy = ([float(x) for x in (origin.get(key) or '0 0 0').split()] for key in ('xyz', 'rpy'))
    moved: F64 = points @ rotations.from_rpy((rpy[0], rpy[1], rpy[2])).T + np.array(xyz)
    return moved
