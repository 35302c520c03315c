"""Decoded messages of a bag as core dataclasses; duck-typed, so that bags are read without ROS."""

from typing import Any

from chunkpilot_core import spaces
from chunkpilot_core.types import (
    ActionChunk,
    ActionSpace,
    ChunkPart,
    ExecutedRows,
    F32,
    Health,
    Id,
    NS_PER_S,
    ObjectEstimate,
    ObjectStatus,
    Observation,
    PolicySpec,
    RowSource,
    Task,
)
import numpy as np

EPISODE_START = 1  # EpisodeEvent.START


def stamp_ns(stamp: Any) -> int:
    """Return a builtin_interfaces/Time in nanoseconds."""
    return int(stamp.sec) * NS_PER_S + int(stamp.nanosec)


def identity(msg: Any) -> Id:
    """Translate an Id."""
    return Id(int(msg.session), int(msg.seq))


def task(msg: Any) -> Task:
    """Translate a Task."""
    goal = np.array(msg.goal, np.float32)
    return Task(msg.id, msg.kind, msg.text, tuple(msg.goal_names), goal)


def observation(msg: Any) -> Observation:
    """Translate an Observation."""
    return Observation(
        identity(msg.id),
        stamp_ns(msg.header.stamp),
        stamp_ns(msg.oldest),
        tuple(msg.state_names),
        np.array(msg.state, np.float32),
        tuple(msg.feature_names),
        np.array(msg.features, np.float32),
        tuple(msg.goal_names),
        np.array(msg.goal, np.float32),
        tuple(_object(entry) for entry in msg.objects),
        int(msg.arm_epoch),
        msg.task_id,
        dict(zip(msg.part_names, (float(age) for age in msg.part_ages_s), strict=True)),
        tuple(msg.missing),
        tuple(msg.frozen),
        tuple(msg.dropped),
        Health(int(msg.health)),
        msg.health_reason,
    )


def _object(msg: Any) -> ObjectEstimate:
    pose = msg.pose.pose
    turn = pose.orientation
    return ObjectEstimate(
        msg.name,
        stamp_ns(msg.stamp),
        np.array([pose.position.x, pose.position.y, pose.position.z]),
        np.array([turn.x, turn.y, turn.z, turn.w]),
        np.array(msg.pose.covariance, np.float64).reshape(6, 6),
        ObjectStatus(int(msg.status)),
        float(msg.quality),
        msg.frame_id,
    )


def chunk(msg: Any) -> ActionChunk:
    """Translate an ActionChunk."""
    shape = (int(msg.horizon), int(msg.action_size))
    return ActionChunk(
        identity(msg.id),
        identity(msg.request_id),
        int(msg.arm_epoch),
        msg.task_id,
        identity(msg.observation_id),
        stamp_ns(msg.observation_stamp),
        stamp_ns(msg.start),
        float(msg.dt),
        np.array(msg.actions, np.float32).reshape(shape),
        msg.space_hash,
        msg.policy,
        int(msg.policy_version),
        stamp_ns(msg.header.stamp),
        stamp_ns(msg.observation_oldest),
        tuple(_part(entry) for entry in msg.parts),
        _optional(msg.confidence, (shape[0],)),
        _optional(msg.samples, (int(msg.n_samples), *shape)),
        _optional(msg.residual, shape),
        _optional(msg.residual_bound, (shape[1],)),
        _optional(msg.expected_features, (shape[0], int(msg.feature_size))),
        dict(zip(msg.diagnostic_names, map(float, msg.diagnostic_values), strict=True)),
        msg.answered_by,
        float(msg.inference_s),
        float(msg.max_row_age_s),
        _optional(getattr(msg, 'waypoint', ()), (shape[0],)),  # bags from before it lack it
    )


def _part(msg: Any) -> ChunkPart:
    return ChunkPart(
        int(msg.first_row),
        int(msg.n_rows),
        identity(msg.observation_id),
        stamp_ns(msg.observation_stamp),
        int(msg.revision),
        bool(msg.final),
        int(msg.executable_rows),
        float(msg.noise_level),
    )


def action_space(msg: Any) -> ActionSpace:
    """
    Translate an ActionSpace.

    :raises ConfigError: it is not allowed, or is not what its hash says
    :raises ValueError: an unknown kind, reference or rotation
    """
    return spaces.from_json(
        {
            'hash': msg.hash,
            'groups': [
                {
                    **{name: getattr(group, name) for name in _GROUP_TEXTS},
                    'start': int(group.start),
                    'stop': int(group.stop),
                    'scale': [float(value) for value in group.scale],
                    'offset': [float(value) for value in group.offset],
                }
                for group in msg.groups
            ],
            **{name: [float(value) for value in getattr(msg, name)] for name in _BOUNDS},
            'irreversible': [bool(flag) for flag in msg.irreversible],
        }
    )


_GROUP_TEXTS = ('name', 'kind', 'frame', 'reference', 'rotation', 'names', 'unit')
_BOUNDS = ('lower', 'upper', 'max_velocity', 'max_acceleration', 'max_jerk')


def _optional(values: Any, shape: tuple[int, ...]) -> F32 | None:
    return np.array(values, np.float32).reshape(shape) if len(values) else None


def executed_rows(msg: Any) -> ExecutedRows:
    """Translate ExecutedRows."""
    count = len(msg.sources)
    return ExecutedRows(
        identity(msg.id),
        stamp_ns(msg.header.stamp),
        int(msg.arm_epoch),
        identity(msg.chunk_id),
        int(msg.first_row),
        float(msg.dt),
        np.array(msg.rows, np.float32).reshape(count, int(msg.action_size)),
        tuple(RowSource(int(source)) for source in msg.sources),
        tuple(stamp_ns(stamp) for stamp in msg.stamps),
        tuple(msg.joint_names),
        np.array(msg.joints, np.float64).reshape(count, len(msg.joint_names)),
        msg.space_hash,
        msg.task_id,
        msg.episode_id,
    )


def policy_spec(msg: Any) -> PolicySpec:
    """
    Translate a PolicyInfo.

    :raises ConfigError: its action space is not allowed, or is not what its hash says
    """
    return PolicySpec(
        msg.policy,
        msg.name,
        int(msg.version),
        action_space(msg.space),
        int(msg.horizon),
        float(msg.dt),
        tuple(msg.input_names),
        tuple(msg.cameras),
        msg.task_kind,
        msg.starts_at,
        tuple(msg.capabilities),
        float(msg.max_row_age_s),
        msg.manifest_sha256,
    )
