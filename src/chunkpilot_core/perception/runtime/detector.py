"""
Finds a coloured cube in an image: hue mask, blobs, centroid corrected for the cube's outline.
"""

from dataclasses import dataclass

from chunkpilot_core.camera import Camera
from chunkpilot_core.types import F64
import cv2
import numpy as np
from numpy.typing import NDArray

_CORNERS = np.array([[x, y, z] for x in (-0.5, 0.5) for y in (-0.5, 0.5) for z in (-0.5, 0.5)])


@dataclass(frozen=True, slots=True)
class Detection:
    """A blob: centroid (u, v) [pixels] and its number of pixels."""

    u: float
    v: float
    pixels: int


def colour_mask(
    hsv: NDArray[np.uint8], hue: tuple[int, int], saturation: int, value: int
) -> NDArray[np.uint8]:
    """
    Return 255 where the hue lies within ``hue`` (OpenCV's 0 to 180), 0 elsewhere; shape (rows,
    columns).
    """
    mask = cv2.inRange(hsv, (hue[0], saturation, value), (hue[1], 255, 255))
    return np.asarray(mask, np.uint8)


def detect(mask: NDArray[np.uint8], min_pixels: int, reach: float) -> Detection | None:
    """
    Return the largest blob together with the pieces near it, or None.

    A finger in front of the cube cuts it in two; taking only the largest piece would shift the
    centroid.

    :param reach: pieces up to so far from the largest one belong to it [pixels]
    """
    count, _, stats, centroids = cv2.connectedComponentsWithStats(mask, connectivity=8)
    if count < 2:
        return None
    areas = stats[1:, cv2.CC_STAT_AREA].astype(np.float64)
    centres = centroids[1:]
    largest = int(np.argmax(areas))
    if areas[largest] < min_pixels:
        return None
    near = np.linalg.norm(centres - centres[largest], axis=1) <= reach
    near &= areas >= 3  # single pixels are sensor noise
    near[largest] = True
    u, v = np.average(centres[near], axis=0, weights=areas[near])
    return Detection(float(u), float(v), int(areas[near].sum()))


@dataclass(frozen=True, slots=True)
class Outline:
    """
    Silhouette that a cube would have: ``pixels``, and its centroid minus the projected centre
    (2,).
    """

    pixels: float
    shift: F64


def outline(camera: Camera, centre: F64, size: float) -> Outline:
    """
    Return the silhouette of a cube of edge ``size`` [m] at ``centre`` (3,) [m], with edges along
    the world's.
    """
    corners = camera.project(centre + size * _CORNERS)
    hull = cv2.convexHull(corners.astype(np.float32))
    moments = cv2.moments(hull)
    area = moments['m00']
    if not area > 0.0:
        return Outline(float('nan'), np.zeros(2))
    middle = camera.project(centre[None])[0]
    centroid = np.array([moments['m10'], moments['m01']]) / area
    return Outline(float(area), centroid - middle)


def on_plane(camera: Camera, u: float, v: float, height: float) -> F64 | None:
    """
    Return where the ray of pixel (u, v) meets the plane z = ``height`` [m]; None if it does not.
    """
    ray = camera.ray(u, v)
    if ray[2] > -1e-6:
        return None
    return np.asarray(camera.position + (height - camera.position[2]) / ray[2] * ray)


def locate(camera: Camera, detection: Detection, height: float, size: float) -> F64 | None:
    """Return the centre (3,) of a cube that rests with its centre at ``height`` [m]."""
    rough = on_plane(camera, detection.u, detection.v, height)
    if rough is None:
        return None
    shift = outline(camera, rough, size).shift
    return on_plane(camera, detection.u - shift[0], detection.v - shift[1], height)
