"""How far the bodies of a pair move past each other at most when joints move."""

from collections.abc import Sequence

from chunkpilot_core.clearance.runtime.bodies import Obstacle, transform
from chunkpilot_core.collision import Body, Collision
from chunkpilot_core.robot import Robot
from chunkpilot_core.types import F64
import numpy as np

EXTRA = 0.005  # [m] by which a mesh may stand out over its capsules


def levers(
    robot: Robot,
    collision: Collision,
    surroundings: Sequence[Obstacle],
    pairs: Sequence[tuple[str, str]],
) -> F64:
    """
    Return the way of a pair's bodies past each other per unit of each joint, shape (J, P) [m].

    Joints between the two bodies count, with the way along the chain from the joint's axis to the
    farther body's farthest point; a finger's joint moves it by as much as itself.
    """
    arm, slides = robot.arm_joints, {slide.joint: slide for slide in collision.slides}
    along = np.cumsum([np.linalg.norm(link.xyz) for link in robot.chain])
    opened = np.abs([robot.limit_array(f'{end}_position')[len(arm) :] for end in ('min', 'max')])
    last = len(arm) - 1
    place, size = {}, {}
    for body in collision.bodies:
        slide = slides.get(body.frame)
        place[body.name] = last if slide else arm.index(body.frame) if body.frame in arm else -1
        size[body.name] = _farthest(body)
        if slide:
            size[body.name] += float(np.linalg.norm(slide.xyz) + opened.max(initial=0.0))
    for thing in surroundings:
        place[thing.name] = last if thing.held else -1
        to_middle = np.linalg.norm(robot.tool_xyz) + np.linalg.norm(thing.position)
        size[thing.name] = float(to_middle) + sum(thing.size) + EXTRA
    out = np.zeros((len(robot.joints), len(pairs)))
    for column, (first, second) in enumerate(pairs):
        near, far = sorted((first, second), key=lambda name: place[name])
        for joint in range(place[near] + 1, place[far] + 1):
            out[joint, column] = along[place[far]] - along[joint] + size[far]
        out[len(arm) :, column] = 1.0
    return out


def _farthest(body: Body) -> float:
    """Return how far from its joint's origin a body reaches [m]."""
    mount = transform(body.xyz, body.rpy)
    return EXTRA + max(
        float(np.linalg.norm(mount[:3, :3] @ end + mount[:3, 3])) + capsule.radius
        for capsule in body.capsules
        for end in (capsule.start, capsule.end)
    )
