"""
Distances of line segments to each other and to boxes, many at once.

A segment is a start and an axis: its points are ``start + share * axis``, share 0 to 1.
"""

from chunkpilot_core.types import F64
import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.intp]
TINY = 1e-12  # [m2] shorter squared segments are points
PARALLEL = 1e-9  # squared sine of the angle


class SegmentPairs:
    """Which of C segments are compared with which others, M pairs, at N poses."""

    def __init__(self, first: Indices, second: Indices, lengths: F64) -> None:
        """
        Prepare.

        :param first: of each pair, shape (M,), like ``second``
        :param lengths: of the segments, shape (C,)
        """
        squares = np.maximum(lengths * lengths, TINY)
        self._one, self._other = squares[first], squares[second]
        self._area = self._one * self._other
        # Where in the matrix of inner products of starts and axes the numbers of a pair are.
        i, j = 2 * first, 2 * second
        rows = np.array([i + 1, i + 1, i + 1, j + 1, j + 1, i, i, j])
        columns = np.array([j + 1, i, j, i, j, i, j, j])
        self._where = rows * (2 * len(lengths)) + columns

    def distances(self, segments: F64) -> F64:
        """
        Return the distances of the pairs, shape (N, M) [m].

        :param segments: start and axis, shape (N, C, 2, 3)
        """
        vectors = segments.reshape(len(segments), -1, 3)
        products = vectors @ vectors.swapaxes(1, 2)
        flat = products.reshape(len(segments), -1).take(self._where, axis=1).swapaxes(0, 1)
        both, along, across = flat[0], flat[1] - flat[2], flat[3] - flat[4]
        gap2 = flat[5] - 2.0 * flat[6] + flat[7]
        one, other = self._one, self._other
        slant = self._area - both * both  # 0 where parallel: any point is as good as another
        slant[slant <= PARALLEL * self._area] = np.inf
        s = np.minimum(np.maximum((both * across - along * other) / slant, 0.0), 1.0)
        t = np.minimum(np.maximum((both * s + across) / other, 0.0), 1.0)
        s = np.minimum(np.maximum((both * t - along) / one, 0.0), 1.0)
        squared = gap2 + s * (s * one + 2.0 * (along - t * both)) + t * (t * other - 2.0 * across)
        distance: F64 = np.sqrt(np.maximum(squared, 0.0))
        return distance


def box_distances(segments: F64, half: F64, far: F64) -> F64:
    """
    Return the distances of segments to boxes, in the boxes' frames, shape (N, M) [m].

    A segment that enters its box has minus the shortest way out, to whatever side.

    :param segments: start and axis, shape (N, M, 2, 3)
    :param half: half edge lengths, shape (M, 3)
    :param far: from where on nobody wants to know exactly, shape (M,) [m]
    """
    starts, axes = segments[..., 0, :], segments[..., 1, :]
    ends = starts + axes
    low, high = np.minimum(starts, ends), np.maximum(starts, ends)
    # Of the boxes around them: never more than the distance, and mostly the distance itself.
    distance = _length(np.maximum(np.maximum(low - half, -half - high), 0.0))
    row, column = np.nonzero(distance < far)
    if len(row):
        near = starts[row, column], axes[row, column], half[column]
        distance[row, column] = _near(distance[row, column], *near)
    return distance


def _near(least: F64, start: F64, axis: F64, half: F64) -> F64:
    """Return the distances of segments to boxes, shape (K,), that are at least ``least`` (K,)."""
    first = _length(np.maximum(np.abs(start) - half, 0.0))
    distance = np.minimum(first, _length(np.maximum(np.abs(start + axis) - half, 0.0)))
    unsure = np.flatnonzero(distance > least + 1e-9)
    if len(unsure):
        distance[unsure] = _exactly(start[unsure], axis[unsure], half[unsure])
    inside = np.flatnonzero(distance < 1e-9)
    if len(inside):
        distance[inside] = -_depths(start[inside], axis[inside], half[inside])
    return distance


def _exactly(start: F64, axis: F64, half: F64) -> F64:
    """Return the distances of segments to boxes, shape (K,), 0 for those that enter them."""
    safe = np.where(np.abs(axis) < 1e-9, 1e-9, axis)
    faces = np.concatenate(((-half - start) / safe, (half - start) / safe), axis=-1)
    knots = np.empty((len(start), 8))
    knots[:, 0], knots[:, 1] = 0.0, 1.0
    knots[:, 2:] = np.minimum(np.maximum(faces, 0.0), 1.0)
    knots.sort(axis=-1)
    points = start[:, None] + knots[..., None] * axis[:, None]
    beyond = points - np.minimum(np.maximum(points, -half[:, None]), half[:, None])
    slopes = (beyond * axis[:, None]).sum(axis=-1)  # of the squared distance, halved
    nearest = start + _zero(knots, slopes)[:, None] * axis
    return _length(np.maximum(np.abs(nearest) - half, 0.0))


def _depths(start: F64, axis: F64, half: F64) -> F64:
    """Return by how much segments would have to move to leave their boxes, shape (K,)."""
    end = start + axis
    faces = half - np.maximum(np.minimum(start, end), -np.maximum(start, end))
    # Past an edge of the box: across the segment and that edge.
    across = np.cross(axis[:, None], np.eye(3))
    length = np.maximum(_length(across), 1e-9)
    edges = (np.abs(across) @ half[..., None])[..., 0] - np.abs(across @ start[..., None])[..., 0]
    edges = np.where(length > 1e-6, edges / length, np.inf)
    depth: F64 = np.maximum(np.minimum(faces.min(axis=1), edges.min(axis=1)), 0.0)
    return depth


def _zero(knots: F64, slopes: F64) -> F64:
    """Return where the rising, piecewise linear ``slopes`` (K, 8) at ``knots`` are zero."""
    row = np.arange(len(knots))
    after = np.minimum((slopes < 0.0).sum(axis=-1), 7)
    before = np.maximum(after - 1, 0)
    low, rise = slopes[row, before], slopes[row, after] - slopes[row, before]
    share = np.where(rise > 0.0, -low / np.where(rise > 0.0, rise, 1.0), 1.0)
    start, end = knots[row, before], knots[row, after]
    found: F64 = start + np.minimum(np.maximum(share, 0.0), 1.0) * (end - start)
    return found


def _length(vectors: F64) -> F64:
    length: F64 = np.sqrt(np.einsum('...i,...i->...', vectors, vectors))
    return length
