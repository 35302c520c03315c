"""A nominal load for a guard: a tool that works over a table, its commands and its chunks."""

from chunkpilot_core import spaces
from chunkpilot_core.clearance.runtime.bodies import Obstacle, ObstacleList, Shape
from chunkpilot_core.robot import Robot
from chunkpilot_core.types import (
    ActionChunk,
    Command,
    CommandGroup,
    F64,
    Id,
    JointState,
    Kind,
    nanoseconds,
    NS_PER_S,
)
import numpy as np

PERIOD_S, ROW_S, ROWS = 0.01, 0.04, 16
START_S = 1000.0
STEP_M, MAX_WIDTH = 0.05, 0.08
SPACE = spaces.ee_delta_space(step_m=STEP_M, max_width=MAX_WIDTH)


def tool_at(time_s: float) -> F64:
    """Return where the tool is, shape (3,) [m]: over most of the table, down to 2 cm, 0.4 m/s."""
    height = 0.12 + 0.10 * np.cos(1.7 * time_s)
    return np.array([0.02 + 0.12 * np.sin(1.3 * time_s), 0.16 * np.sin(0.9 * time_s), height])


def width_at(time_s: float) -> float:
    """Return the opening of the gripper [m]: it grasps and lets go."""
    return 0.04 + 0.03 * float(np.sign(np.sin(1.1 * time_s)))


def obstacles(now_ns: int) -> ObstacleList:
    """Return what stands around: a box, a ball and a post."""
    upright = np.array([0.0, 0.0, 0.0, 1.0])
    return ObstacleList(
        now_ns,
        (
            Obstacle('box', Shape.BOX, (0.1, 0.1, 0.2), np.array([0.05, 0.34, 0.1]), upright),
            Obstacle('ball', Shape.SPHERE, (0.05,), np.array([0.0, -0.36, 0.1]), upright),
            Obstacle('post', Shape.CAPSULE, (0.03, 0.4), np.array([0.3, 0.0, 0.2]), upright),
        ),
        lasting=True,
    )


def command(seq: int, now_ns: int, epoch: int, moving_s: float) -> Command:
    """Return the command of a tick."""
    arm = CommandGroup('arm', Kind.EE_POSE, tool_at(moving_s), np.zeros(3), 'world')
    grip = CommandGroup('gripper', Kind.GRIPPER, np.array([width_at(moving_s)]), np.zeros(1))
    return Command(
        id=Id(7, seq),
        stamp_ns=now_ns,
        arm_epoch=epoch,
        groups=(arm, grip),
        space_hash=SPACE.hash,
        observation_stamp_ns=now_ns,
    )


def chunk(seq: int, now_ns: int, epoch: int, moving_s: float) -> ActionChunk:
    """Return a chunk of the motion from now on."""
    times = moving_s + ROW_S * np.arange(ROWS + 1)
    places = np.array([tool_at(time) for time in times])
    rows = np.empty((ROWS, 4), np.float32)
    rows[:, :3] = np.diff(places, axis=0) / STEP_M
    rows[:, 3] = [width_at(time) * 2.0 / MAX_WIDTH - 1.0 for time in times[:-1]]
    return ActionChunk(
        Id(9, seq), Id(8, seq), epoch, '', Id(7, seq), now_ns, now_ns, ROW_S, rows,
        SPACE.hash, 'bench', 0,
    )  # fmt: skip


def joint_state(robot: Robot, now_ns: int, positions: F64, velocities: F64) -> JointState:
    """Return a measurement of an arm that follows at once."""
    return JointState(now_ns, robot.joints, positions, velocities)


def now_ns_of(tick: int) -> int:
    """Return the time of a tick."""
    return nanoseconds(START_S) + tick * round(PERIOD_S * NS_PER_S)
