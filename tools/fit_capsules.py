"""
Fit capsules to the meshes of a URDF: prints the `capsules:` of config/robots/*.yaml per link.

`python tools/fit_capsules.py URDF panda_link5=2 panda_hand=3`: how many for which link. Needs
scipy. The capsules of a link cover its convex hull up to 1 mm and stand out as little as possible.
"""

from pathlib import Path
import sys
from typing import Any
import xml.etree.ElementTree as ElementTree

from chunkpilot_core.clearance.runtime.meshes import link_points
import numpy as np
from scipy.optimize import least_squares
from scipy.spatial import ConvexHull

COVER = 30.0  # weight of a point of the mesh that is left out, against one that stands out
ROUNDS = 12


def surface(hull: ConvexHull, count: int, rng: np.random.Generator) -> np.ndarray:
    """Return points on a hull, shape (count, 3), and its corners."""
    corners = hull.points[hull.simplices]
    edges = corners[:, 1:] - corners[:, :1]
    area = np.linalg.norm(np.cross(edges[:, 0], edges[:, 1]), axis=1)
    chosen = rng.choice(len(area), count, p=area / area.sum())
    u, v = rng.random((2, count))
    u, v = np.where(u + v > 1, 1 - u, u), np.where(u + v > 1, 1 - v, v)
    base = corners[chosen, 0] + u[:, None] * edges[chosen, 0] + v[:, None] * edges[chosen, 1]
    return np.vstack((base, hull.points[hull.vertices]))


def outside(points: np.ndarray, capsules: np.ndarray) -> np.ndarray:
    """Return how far points (N, 3) are outside of capsules (K, 7), the nearest counts."""
    a, b, radius = capsules[:, :3], capsules[:, 3:6], capsules[:, 6]
    axis = b - a
    along = np.einsum('nkd,kd->nk', points[:, None] - a, axis)
    share = np.clip(along / np.maximum((axis * axis).sum(1), 1e-12), 0.0, 1.0)
    nearest = a + share[..., None] * axis
    return (np.linalg.norm(points[:, None] - nearest, axis=2) - radius).min(axis=1)


def fit(points: np.ndarray, count: int, seed: int = 0) -> np.ndarray:
    """Return capsules (count, 7): both ends and the radius [m]."""
    rng = np.random.default_rng(seed)
    hull = ConvexHull(points)
    on_mesh = surface(hull, 400, rng)
    directions = rng.normal(size=(80, 3))
    directions /= np.linalg.norm(directions, axis=1)[:, None]

    def residuals(flat: np.ndarray) -> np.ndarray:
        capsules = flat.reshape(count, 7)
        a, b, radius = capsules[:, None, :3], capsules[:, None, 3:6], capsules[:, None, 6:]
        ends = np.where((directions @ (b - a)[:, 0].T).T[..., None] > 0, b, a)
        skin = ends + np.abs(radius) * directions
        beyond = (skin.reshape(-1, 3) @ hull.equations[:, :3].T + hull.equations[:, 3]).max(axis=1)
        left_out = np.maximum(outside(on_mesh, capsules), 0.0)
        return np.concatenate(
            (
                np.maximum(beyond, 0.0) / np.sqrt(len(beyond)),
                COVER * left_out / np.sqrt(len(left_out)),
            )
        )

    best: Any = None
    for _ in range(ROUNDS):
        centres = on_mesh[rng.choice(len(on_mesh), (2, count))]
        middle = points.mean(axis=0)
        start = np.concatenate(
            (0.5 * (centres[0] + middle), 0.5 * (centres[1] + middle), np.full((count, 1), 0.05)),
            axis=1,
        )
        found = least_squares(residuals, start.ravel(), max_nfev=60)
        if best is None or found.cost < best.cost:
            best = found
    capsules = best.x.reshape(count, 7)
    capsules[:, 6] += max(float(outside(surface(hull, 4000, rng), capsules).max()) - 0.001, 0.0)
    return capsules


def main() -> None:
    """Print the capsules of each link that was asked for."""
    urdf = Path(sys.argv[1])
    root = ElementTree.parse(urdf).getroot()
    for word in sys.argv[2:]:
        name, _, count = word.partition('=')
        points = link_points(root, urdf.parent, name)
        capsules = fit(points, int(count or 1))
        hull = ConvexHull(points)
        skin = np.vstack([c[:3] + (c[3:6] - c[:3]) * t for c in capsules for t in (0.0, 0.5, 1.0)])
        deep = -(skin @ hull.equations[:, :3].T + hull.equations[:, 3]).max(axis=1)
        bulge = (np.repeat(capsules[:, 6], 3) - deep).max()
        print(f'# {name}: stands out by up to about {bulge * 1000:.0f} mm')
        for c in capsules:
            a, b = (', '.join(f'{x:.4f}' for x in end) for end in (c[:3], c[3:6]))
            print(f'        - {{from: [{a}], to: [{b}], radius: {c[6]:.4f}}}')


if __name__ == '__main__':
    main()
