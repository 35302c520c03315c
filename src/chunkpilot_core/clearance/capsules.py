"""
Distances of capsules and boxes in numpy alone: needs neither meshes nor another library.

The capsules of the robot's file stand out over the true shape by up to 3 cm, so that distances are
rather too small than too large. Closest points of two segments as in Ericson, Real-Time Collision
Detection (2004), 5.1.9, on the inner products of all of them at once; of a segment and a box as
the zero of the derivative of their distance, which is monotone and piecewise linear along the
segment, so that it is exact as well.
"""

from collections.abc import Iterator
from itertools import product

from chunkpilot_core import rotations
from chunkpilot_core.clearance.base import Clearance
from chunkpilot_core.clearance.runtime.bodies import Frames, Obstacle, Shape, transform
from chunkpilot_core.clearance.runtime.segments import box_distances, Indices, SegmentPairs
from chunkpilot_core.types import F64
import numpy as np

Ends = tuple[F64, F64, float]
"""Start (3,), end (3,) and radius of a capsule [m]."""


class Capsules(Clearance):
    """Everything that moves is a set of capsules, everything else capsules and boxes."""

    def _changed(self) -> None:
        self._frames = Frames(self.robot, self.collision)
        shapes, boxes = self._gather()
        self._compare(shapes, list(boxes))
        self._seat(boxes)

    def _moved(self) -> None:
        self._seat(self._gather()[1])

    def _gather(self) -> tuple['_Shapes', dict[str, Obstacle]]:
        """Return everything as capsules, but boxes that stand as they are."""
        index, shapes = self._frames.index, _Shapes()
        for body in self.collision.bodies:
            mount = transform(body.xyz, body.rpy)
            for capsule in body.capsules:
                start, end = np.array([capsule.start, capsule.end]) @ mount[:3, :3].T
                ends = start + mount[:3, 3], end + mount[:3, 3], capsule.radius
                shapes.add(body.name, index[body.frame], ends)
        boxes: dict[str, Obstacle] = {}
        for other in self.surroundings:
            if other.shape is Shape.BOX and not other.held:
                boxes[other.name] = other
                continue
            for ends in covering(other):
                shapes.add(other.name, index[other.frame], ends)
            if other.shape is Shape.BOX:
                for ends in _edges(other):
                    shapes.add(other.name, index[other.frame], ends, shapes.edges_of)
        self._local, self._where = np.array(shapes.local), np.array(shapes.where)
        return shapes, boxes

    def _compare(self, shapes: '_Shapes', boxes: list[str]) -> None:
        """Say which shapes are compared for which pair."""
        radii, of = np.array(shapes.radii), shapes.of
        numbers = {name: i for i, name in enumerate(boxes)}
        rounded, boxed = _Groups(), _Groups()
        for column, (first, second) in enumerate(self.pairs):
            if second in numbers:
                these = shapes.edges_of.get(first, of[first])
                boxed.add(column, product(these, [numbers[second]]))
            else:
                rounded.add(column, product(of[first], of[second]))
        self._rounded, self._boxed = rounded.frozen(), boxed.frozen()
        one, other = self._rounded.first, self._rounded.second
        lengths = np.linalg.norm(self._local[:, 1, :3], axis=1)
        self._segments = SegmentPairs(one, other, lengths)
        self._thickness = radii[one] + radii[other]
        self._skin = radii[self._boxed.first]

    def _seat(self, boxes: dict[str, Obstacle]) -> None:
        """Take the places of boxes, once for each comparison."""
        which, every = self._boxed.second, list(boxes.values())
        turns = [rotations.from_quaternion(np.asarray(box.orientation)) for box in every]
        self._half = np.array([box.size for box in every]).reshape(-1, 3)[which] / 2.0
        self._place = np.array([box.position for box in every]).reshape(-1, 3)[which]
        self._turn = np.array(turns).reshape(-1, 3, 3)[which]
        self._turned = bool((self._turn != np.eye(3)).any())

    def measure(self, joints: F64, arm: F64, reach: F64) -> F64:
        """Return the distances of all pairs, shape (N, P) [m]."""
        frames = self._frames.at(joints, arm)[:, self._where, :3]
        segments = self._local @ frames.swapaxes(-1, -2)  # start and axis, (N, C, 2, 3)
        out = np.empty((len(joints), len(self.pairs)))
        if len(self._rounded.first):
            self._rounded.put(out, self._segments.distances(segments) - self._thickness)
        if len(self._boxed.first):
            near = segments[:, self._boxed.first]
            near[..., 0, :] -= self._place
            if self._turned:  # rows times R are columns times R transposed: into the box's frame
                near = near @ self._turn
            far = self._skin + reach[..., self._boxed.columns]
            self._boxed.put(out, box_distances(near, self._half, far) - self._skin)
        return out


class _Shapes:
    """Capsules, and which body each belongs to."""

    def __init__(self) -> None:
        self.local: list[F64] = []  # start and axis in homogeneous coordinates, (2, 4)
        self.where: list[int] = []
        self.radii: list[float] = []
        self.of: dict[str, list[int]] = {}
        self.edges_of: dict[str, list[int]] = {}  # of held boxes, against other boxes

    def add(
        self, name: str, frame: int, ends: Ends, into: dict[str, list[int]] | None = None
    ) -> None:
        start, end, radius = ends
        (self.of if into is None else into).setdefault(name, []).append(len(self.radii))
        self.local.append(np.array([[*start, 1.0], [*(end - start), 0.0]]))
        self.where.append(frame)
        self.radii.append(radius)


class _Groups:
    """Comparisons of shapes, several per pair of bodies: the smallest distance counts."""

    def __init__(self) -> None:
        self._first: list[int] = []
        self._second: list[int] = []
        self._columns: list[int] = []
        self._begin: list[int] = []

    def add(self, column: int, shapes: Iterator[tuple[int, int]]) -> None:
        self._columns.append(column)
        self._begin.append(len(self._first))
        for first, second in shapes:
            self._first.append(first)
            self._second.append(second)

    def frozen(self) -> '_Groups':
        self.first: Indices = np.array(self._first, np.intp)
        self.second: Indices = np.array(self._second, np.intp)
        self._begins, self._at = np.array(self._begin), np.array(self._columns)
        ends = [*self._begin[1:], len(self._first)] if self._begin else []
        counts = np.subtract(ends, self._begin) if self._begin else np.zeros(0, np.intp)
        self.columns: Indices = np.repeat(np.array(self._columns, np.intp), counts)
        return self

    def put(self, out: F64, distances: F64) -> None:
        """Write the smallest of each group's ``distances`` (N, M) into ``out`` (N, P)."""
        out[:, self._at] = np.minimum.reduceat(distances, self._begins, axis=1)


def covering(obstacle: Obstacle) -> list[Ends]:
    """Return capsules that together cover an obstacle, in the coordinates of its frame."""
    place = np.asarray(obstacle.position, float)
    turn = rotations.from_quaternion(np.asarray(obstacle.orientation, float))
    if obstacle.shape is Shape.SPHERE:
        return [(place, place, obstacle.size[0])]
    if obstacle.shape is Shape.CAPSULE:
        radius, length = obstacle.size
        reach = turn[:, 2] * length / 2.0
        return [(place - reach, place + reach, radius)]
    # A box: four along its longest edges, each around a quarter of the cross-section.
    half = np.array(obstacle.size) / 2.0
    thin, wide, long = np.argsort(half)
    radius = float(np.hypot(half[thin], half[wide])) / 2.0
    reach = turn[:, long] * half[long]
    middles = [
        place + 0.5 * (u * turn[:, thin] * half[thin] + v * turn[:, wide] * half[wide])
        for u, v in product((-1.0, 1.0), repeat=2)
    ]
    return [(middle - reach, middle + reach, radius) for middle in middles]


def _edges(box: Obstacle) -> list[Ends]:
    """Return the edges of a held box, and a capsule within: exact against larger boxes."""
    place = np.asarray(box.position, float)
    turn = rotations.from_quaternion(np.asarray(box.orientation, float))
    half = np.array(box.size) / 2.0
    arms = turn * half  # columns
    edges: list[Ends] = []
    for i in range(3):
        one, other = (k for k in range(3) if k != i)
        for u, v in product((-1.0, 1.0), repeat=2):
            middle = place + u * arms[:, one] + v * arms[:, other]
            edges.append((middle - arms[:, i], middle + arms[:, i], 0.0))
    thin, _, long = np.argsort(half)
    inner = arms[:, long] * (1.0 - half[thin] / half[long])
    return [*edges, (place - inner, place + inner, float(half[thin]))]
