"""
Core dataclasses to messages and back: the only file that touches message fields of arrays.

Field checks are off by default in rclpy: an int in a float64 field is sent as garbage without an
error, so every scalar is cast here. Lists of numbers go through ``array.array``, which costs a
twentieth of a numpy array.
"""

from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any

from builtin_interfaces.msg import Time
from chunkpilot.msg import (
    ActionChunk,
    ActionGroup,
    ActionSpace,
    ChunkPart,
    ChunkRequest,
    ChunkVerdict,
    Command,
    CommandGroup,
    ExecutedRows,
    ExecutionStats,
    GuardEvent,
    GuardState,
    HorizonDecision,
    Id,
    Intervention,
    LearnerStatus,
    ObjectEstimate,
    Observation,
    Obstacle,
    ObstacleList,
    PolicyInfo,
    PolicyVersion,
    SafetyVerdict,
    SimScene,
    Task,
)
from chunkpilot.srv import MoveTo
from chunkpilot_core import types
from chunkpilot_core.clearance.runtime import bodies
from chunkpilot_core.errors import InvalidDataError
from chunkpilot_core.robot import Robot
from chunkpilot_core.sim.scene import Scene
from geometry_msgs.msg import Pose
import numpy as np
from numpy.typing import NDArray
from sensor_msgs.msg import JointState
from std_msgs.msg import Float64MultiArray, MultiArrayDimension


def to_time(stamp_ns: int) -> Time:
    """Return nanoseconds as a time message."""
    sec, nanosec = divmod(int(stamp_ns), types.NS_PER_S)
    return Time(sec=sec, nanosec=nanosec)


def to_ns(stamp: Time) -> int:
    """Return a time message as nanoseconds."""
    return int(stamp.sec) * types.NS_PER_S + int(stamp.nanosec)


def f32(values: Any) -> array:  # type: ignore[type-arg]
    """Return numbers of any shape as a flat float32 field."""
    return array('f', np.ascontiguousarray(values, np.float32).tobytes())


def f64(values: Any) -> array:  # type: ignore[type-arg]
    """Return numbers of any shape as a flat float64 field."""
    return array('d', np.ascontiguousarray(values, np.float64).tobytes())


def _optional(values: Any) -> array:  # type: ignore[type-arg]
    return array('f') if values is None else f32(values)


def _floats(values: Any) -> types.F32:
    return np.array(values, np.float32)


def _doubles(values: Any) -> types.F64:
    return np.array(values, np.float64)


def _matrix(name: str, values: Any, columns: int, dtype: Any = np.float32) -> NDArray[Any]:
    flat = np.array(values, dtype)
    if columns == 0 and flat.size == 0:
        return flat.reshape(0, 0)
    if columns <= 0 or flat.size % columns:
        raise InvalidDataError(f'{name}: {flat.size} values do not fill rows of {columns}')
    return flat.reshape(-1, columns)


def id_to_msg(value: types.Id) -> Id:
    """Translate an id."""
    return Id(session=int(value.session), seq=int(value.seq))


def id_from_msg(msg: Id) -> types.Id:
    """Translate an id."""
    return types.Id(int(msg.session), int(msg.seq))


def joint_state_to_msg(value: types.JointState) -> JointState:
    """Translate measured joints."""
    msg = JointState(
        name=list(value.names), position=f64(value.positions), velocity=f64(value.velocities)
    )
    msg.header.stamp = to_time(value.stamp_ns)
    return msg


def joint_state_from_msg(msg: JointState) -> types.JointState:
    """
    Translate measured joints; a driver that sends no velocities gives NaN, no efforts none.

    :raises InvalidDataError: arrays of different lengths, empty or doubled names
    """
    names = tuple(msg.name)
    positions = _doubles(msg.position)
    velocities = _doubles(msg.velocity) if len(msg.velocity) else np.full(len(names), np.nan)
    if not names or len(set(names)) != len(names):
        raise InvalidDataError(f'joint state: names {list(names)} are empty or doubled')
    efforts = _doubles(msg.effort)
    if not len(names) == len(positions) == len(velocities) or len(efforts) not in (0, len(names)):
        raise InvalidDataError(
            f'joint state: {len(names)} names, {len(positions)} positions, '
            f'{len(velocities)} velocities, {len(efforts)} efforts'
        )
    return types.JointState(to_ns(msg.header.stamp), names, positions, velocities, efforts)


def positions_to_msg(positions: types.F64, tick_steady_ns: int) -> Float64MultiArray:
    """
    Return joint targets (n,) as ros2_control's forward controller takes them.

    The layout label carries the steady time of the execution tick, from which the receiver on the
    same machine gets the command latency; controllers ignore it.
    """
    size = len(positions)
    msg = Float64MultiArray(data=f64(positions))
    msg.layout.dim = [
        MultiArrayDimension(label=f'tick {int(tick_steady_ns)}', size=size, stride=size)
    ]
    return msg


def command_to_joint_state(value: types.Command) -> JointState:
    """Return a command's target as the message that every viewer plots: a name per column."""
    names: list[str] = []
    for group in value.groups:
        axes = _AXES if group.kind.cartesian else map(str, range(len(group.values)))
        single = (group.name,) if len(group.values) == 1 else ()
        places = (f'{group.name}.{axis}' for axis in axes)
        names += [*(group.names or single or places)][: len(group.values)]
    msg = JointState(name=names)
    msg.position = f64(np.concatenate([group.values for group in value.groups]))
    msg.velocity = f64(
        np.concatenate([np.resize(group.velocity, len(group.values)) for group in value.groups])
    )
    msg.header.stamp = to_time(value.stamp_ns)
    return msg


_AXES = ('x', 'y', 'z', 'qx', 'qy', 'qz', 'qw')


def numbers_to_array(values: Mapping[str, float]) -> Float64MultiArray:
    """Return numbers as the message that every viewer plots; the layout label names them."""
    size = len(values)
    msg = Float64MultiArray(data=f64(list(values.values())))
    msg.layout.dim = [MultiArrayDimension(label=' '.join(values), size=size, stride=size)]
    return msg


def tick_of(msg: Float64MultiArray) -> int:
    """Return the steady time [ns] that :func:`positions_to_msg` left in a message, 0 for none."""
    label = msg.layout.dim[0].label if msg.layout.dim else ''
    number = label.removeprefix('tick ')
    return int(number) if number != label and number.isdigit() else 0


def object_to_msg(value: types.ObjectEstimate) -> ObjectEstimate:
    """Translate an object estimate."""
    msg = ObjectEstimate(
        name=value.name,
        frame_id=value.frame,
        stamp=to_time(value.stamp_ns),
        status=int(value.status),
        quality=float(value.quality),
    )
    _fill_pose(msg.pose.pose, value.position, value.orientation)
    msg.pose.covariance = np.ascontiguousarray(value.covariance, np.float64).reshape(36)
    return msg


def object_from_msg(msg: ObjectEstimate) -> types.ObjectEstimate:
    """Translate an object estimate."""
    pose = msg.pose.pose
    return types.ObjectEstimate(
        msg.name,
        to_ns(msg.stamp),
        np.array([pose.position.x, pose.position.y, pose.position.z]),
        np.array([pose.orientation.x, pose.orientation.y, pose.orientation.z, pose.orientation.w]),
        _doubles(msg.pose.covariance).reshape(6, 6),
        member(types.ObjectStatus, msg.status),
        float(msg.quality),
        msg.frame_id,
    )


def _fill_pose(pose: Any, position: types.F64, orientation: types.F64) -> None:
    pose.position.x, pose.position.y, pose.position.z = (float(v) for v in position)
    q = pose.orientation
    q.x, q.y, q.z, q.w = (float(v) for v in orientation)


def pose_to_msg(pose: Any, position: types.F64, orientation: types.F64) -> Any:
    """Fill a geometry_msgs/Pose with position (3,) [m] and quaternion (4,) xyzw, and return it."""
    _fill_pose(pose, position, orientation)
    return pose


def observation_to_msg(value: types.Observation, frame: str = 'world') -> Observation:
    """Translate an observation; its images travel on their own topic."""
    msg = Observation(
        id=id_to_msg(value.id),
        oldest=to_time(value.oldest_ns),
        arm_epoch=int(value.arm_epoch),
        task_id=value.task_id,
        state_names=list(value.state_names),
        state=f32(value.state),
        feature_names=list(value.feature_names),
        features=f32(value.features),
        goal_names=list(value.goal_names),
        goal=f32(value.goal),
        objects=[object_to_msg(entry) for entry in value.objects],
        part_names=list(value.ages_s),
        part_ages_s=f32(list(value.ages_s.values())),
        missing=list(value.missing),
        frozen=list(value.frozen),
        dropped=list(value.dropped),
        health=int(value.health),
        health_reason=value.health_reason,
    )
    msg.header.stamp = to_time(value.stamp_ns)
    msg.header.frame_id = frame
    return msg


def observation_from_msg(msg: Observation) -> types.Observation:
    """
    Translate an observation.

    :raises InvalidDataError: names and values of different lengths
    """
    for name in ('state', 'feature', 'goal'):
        names = getattr(msg, f'{name}_names')
        values = getattr(msg, 'features' if name == 'feature' else name)
        if len(names) != len(values):
            raise InvalidDataError(
                f'observation {msg.id.seq}: {len(names)} {name} names, {len(values)} values'
            )
    return types.Observation(
        id=id_from_msg(msg.id),
        stamp_ns=to_ns(msg.header.stamp),
        oldest_ns=to_ns(msg.oldest),
        state_names=tuple(msg.state_names),
        state=_floats(msg.state),
        feature_names=tuple(msg.feature_names),
        features=_floats(msg.features),
        goal_names=tuple(msg.goal_names),
        goal=_floats(msg.goal),
        objects=tuple(object_from_msg(entry) for entry in msg.objects),
        arm_epoch=int(msg.arm_epoch),
        task_id=msg.task_id,
        ages_s=_numbers(msg.part_names, msg.part_ages_s),
        missing=tuple(msg.missing),
        frozen=tuple(msg.frozen),
        dropped=tuple(msg.dropped),
        health=member(types.Health, msg.health),
        health_reason=msg.health_reason,
    )


def health_from_msg(msg: Observation) -> types.Observation:
    """Translate only who an observation is, when, and how healthy: a tenth of the whole's cost."""
    return types.Observation(
        id=id_from_msg(msg.id),
        stamp_ns=to_ns(msg.header.stamp),
        oldest_ns=to_ns(msg.oldest),
        state_names=(),
        state=_floats(msg.state),
        features=_floats(msg.features),
        frozen=tuple(msg.frozen),
        dropped=tuple(msg.dropped),
        health=member(types.Health, msg.health),
        health_reason=msg.health_reason,
    )


def _numbers(names: Sequence[str], values: Iterable[float]) -> dict[str, float]:
    return {name: float(value) for name, value in zip(names, values, strict=False)}


def task_to_msg(value: types.Task, stamp_ns: int, frame: str = 'world') -> Task:
    """Translate a task."""
    msg = Task(
        id=value.id,
        kind=value.kind,
        text=value.text,
        goal_names=list(value.goal_names),
        goal=f32(value.goal),
    )
    msg.header.stamp = to_time(stamp_ns)
    msg.header.frame_id = frame
    return msg


def task_from_msg(msg: Task) -> types.Task:
    """
    Translate a task.

    :raises InvalidDataError: goal names and values of different lengths
    """
    if len(msg.goal_names) != len(msg.goal):
        raise InvalidDataError(
            f'task {msg.id!r}: {len(msg.goal_names)} goal names, {len(msg.goal)} values'
        )
    return types.Task(msg.id, msg.kind, msg.text, tuple(msg.goal_names), _floats(msg.goal))


def request_to_msg(value: types.ChunkRequest) -> ChunkRequest:
    """Translate a chunk request."""
    msg = ChunkRequest(
        id=id_to_msg(value.id),
        arm_epoch=int(value.arm_epoch),
        task_id=value.task_id,
        reason=value.reason,
        start=to_time(value.start_ns),
        not_before=to_time(value.not_before_ns),
        delay_s=float(value.delay_s),
        n_samples=int(value.n_samples),
        action_size=int(value.prefix.shape[1]) if value.prefix.size else 0,
        prefix=f64(value.prefix),
        prefix_velocity=f64(value.prefix_velocity),
        prefix_start=to_time(value.prefix_start_ns),
        prefix_dt=float(value.prefix_dt_s),
        committed_rows=int(value.committed_rows),
        guidance=value.guidance,
        guidance_weights=f32(value.guidance_weights),
        guidance_limit=float(value.guidance_limit),
        state_at_start=value.state_at_start,
        mode=value.mode,
        space_hash=value.space_hash,
    )
    msg.header.stamp = to_time(value.stamp_ns)
    return msg


def request_from_msg(msg: ChunkRequest) -> types.ChunkRequest:
    """
    Translate a chunk request.

    :raises InvalidDataError: a prefix that does not fill its rows, or other than a weight for each
    """
    prefix = _matrix('prefix', msg.prefix, int(msg.action_size), np.float64)
    weights = _floats(msg.guidance_weights)
    if len(weights) not in (0, len(prefix)):
        raise InvalidDataError(
            f'guidance_weights has {len(weights)} values, expected one for each of the '
            f'{len(prefix)} rows of prefix'
        )
    return types.ChunkRequest(
        id=id_from_msg(msg.id),
        stamp_ns=to_ns(msg.header.stamp),
        arm_epoch=int(msg.arm_epoch),
        task_id=msg.task_id,
        reason=msg.reason,
        start_ns=to_ns(msg.start),
        not_before_ns=to_ns(msg.not_before),
        delay_s=float(msg.delay_s),
        n_samples=int(msg.n_samples),
        prefix=prefix,
        prefix_velocity=_matrix(
            'prefix_velocity',
            msg.prefix_velocity,
            int(msg.action_size) if len(msg.prefix_velocity) else 0,
            np.float64,
        ),
        prefix_start_ns=to_ns(msg.prefix_start),
        prefix_dt_s=float(msg.prefix_dt),
        committed_rows=int(msg.committed_rows),
        space_hash=msg.space_hash,
        guidance=msg.guidance,
        guidance_weights=weights,
        guidance_limit=float(msg.guidance_limit),
        state_at_start=bool(msg.state_at_start),
        mode=msg.mode,
    )


def chunk_to_msg(value: types.ActionChunk) -> ActionChunk:
    """Translate a chunk."""
    parts = value.parts or (
        types.ChunkPart(
            0,
            value.horizon,
            value.observation_id,
            value.observation_stamp_ns,
            executable_rows=value.horizon,
        ),
    )
    expected = value.expected_features
    msg = ActionChunk(
        id=id_to_msg(value.id),
        request_id=id_to_msg(value.request_id),
        arm_epoch=int(value.arm_epoch),
        task_id=value.task_id,
        observation_id=id_to_msg(value.observation_id),
        observation_stamp=to_time(value.observation_stamp_ns),
        observation_oldest=to_time(value.observation_oldest_ns or value.observation_stamp_ns),
        start=to_time(value.start_ns),
        dt=float(value.dt_s),
        horizon=value.horizon,
        action_size=int(value.actions.shape[1]),
        actions=f32(value.actions),
        parts=[_part_to_msg(part) for part in parts],
        confidence=_optional(value.confidence),
        waypoint=_optional(value.waypoint),
        n_samples=0 if value.samples is None else len(value.samples),
        samples=_optional(value.samples),
        residual=_optional(value.residual),
        residual_bound=_optional(value.residual_bound),
        feature_size=0 if expected is None else int(expected.shape[1]),
        expected_features=_optional(expected),
        diagnostic_names=list(value.diagnostics),
        diagnostic_values=f32(list(value.diagnostics.values())),
        space_hash=value.space_hash,
        policy=value.policy,
        policy_version=int(value.policy_version),
        answered_by=value.answered_by or value.policy,
        inference_s=float(value.inference_s),
        max_row_age_s=float(value.max_row_age_s),
    )
    msg.header.stamp = to_time(value.stamp_ns)
    return msg


def chunk_from_msg(msg: ActionChunk) -> types.ActionChunk:
    """
    Translate a chunk.

    :raises InvalidDataError: an array that does not have the size that horizon and action_size
        promise
    """
    size, horizon = int(msg.action_size), int(msg.horizon)
    actions = _matrix('actions', msg.actions, size)
    if len(actions) != horizon:
        raise InvalidDataError(
            f'chunk {msg.id.seq}: {len(msg.actions)} numbers, '
            f'expected horizon {horizon} x action size {size}'
        )
    return types.ActionChunk(
        id=id_from_msg(msg.id),
        request_id=id_from_msg(msg.request_id),
        arm_epoch=int(msg.arm_epoch),
        task_id=msg.task_id,
        observation_id=id_from_msg(msg.observation_id),
        observation_stamp_ns=to_ns(msg.observation_stamp),
        start_ns=to_ns(msg.start),
        dt_s=float(msg.dt),
        actions=actions,
        space_hash=msg.space_hash,
        policy=msg.policy,
        policy_version=int(msg.policy_version),
        stamp_ns=to_ns(msg.header.stamp),
        observation_oldest_ns=to_ns(msg.observation_oldest),
        parts=tuple(_part_from_msg(part) for part in msg.parts),
        confidence=_sized('confidence', msg.confidence, (horizon,)),
        waypoint=_sized('waypoint', msg.waypoint, (horizon,)),
        samples=_sized('samples', msg.samples, (int(msg.n_samples), horizon, size)),
        residual=_sized('residual', msg.residual, (horizon, size)),
        residual_bound=_sized('residual_bound', msg.residual_bound, (size,)),
        expected_features=_sized(
            'expected_features', msg.expected_features, (horizon, int(msg.feature_size))
        ),
        diagnostics=_numbers(msg.diagnostic_names, msg.diagnostic_values),
        answered_by=msg.answered_by,
        inference_s=float(msg.inference_s),
        max_row_age_s=float(msg.max_row_age_s),
    )


def _sized(name: str, values: Any, shape: tuple[int, ...]) -> types.F32 | None:
    if not len(values):
        return None
    flat = _floats(values)
    if flat.size != int(np.prod(shape)):
        raise InvalidDataError(f'chunk: {name} has {flat.size} values, expected shape {shape}')
    return flat.reshape(shape)


def _part_to_msg(part: types.ChunkPart) -> ChunkPart:
    return ChunkPart(
        first_row=part.first_row,
        n_rows=part.n_rows,
        revision=part.revision,
        final=part.final,
        executable_rows=part.executable_rows,
        observation_id=id_to_msg(part.observation_id),
        observation_stamp=to_time(part.observation_stamp_ns),
        noise_level=float(part.noise_level),
    )


def _part_from_msg(msg: ChunkPart) -> types.ChunkPart:
    return types.ChunkPart(
        int(msg.first_row),
        int(msg.n_rows),
        id_from_msg(msg.observation_id),
        to_ns(msg.observation_stamp),
        int(msg.revision),
        bool(msg.final),
        int(msg.executable_rows),
        float(msg.noise_level),
    )


def command_to_msg(value: types.Command) -> Command:
    """Translate a command."""
    msg = Command(
        id=id_to_msg(value.id),
        arm_epoch=int(value.arm_epoch),
        source=value.source,
        chunk_id=id_to_msg(value.chunk_id),
        row=int(value.row),
        row_time=to_time(value.row_ns),
        observation_stamp=to_time(value.observation_stamp_ns),
        max_row_age_s=float(value.max_row_age_s),
        starved=bool(value.starved),
        groups=[
            CommandGroup(
                name=group.name,
                kind=group.kind.value,
                frame=group.frame,
                rotation=group.rotation.value,
                names=list(group.names),
                values=f64(group.values),
                velocity=f64(group.velocity),
            )
            for group in value.groups
        ],
        space_hash=value.space_hash,
        speed_scale=float(value.speed_scale),
        tick_steady_ns=int(value.tick_steady_ns),
    )
    msg.header.stamp = to_time(value.stamp_ns)
    return msg


def command_from_msg(msg: Command) -> types.Command:
    """
    Translate a command; the guard checks its numbers.

    :raises InvalidDataError: an unknown kind or rotation
    """
    return types.Command(
        id=id_from_msg(msg.id),
        stamp_ns=to_ns(msg.header.stamp),
        arm_epoch=int(msg.arm_epoch),
        groups=tuple(
            types.CommandGroup(
                group.name,
                member(types.Kind, group.kind),
                _doubles(group.values),
                _doubles(group.velocity),
                group.frame,
                member(types.Rotation, group.rotation),
                tuple(group.names),
            )
            for group in msg.groups
        ),
        source=msg.source,
        chunk_id=id_from_msg(msg.chunk_id),
        row=int(msg.row),
        row_ns=to_ns(msg.row_time),
        observation_stamp_ns=to_ns(msg.observation_stamp),
        max_row_age_s=float(msg.max_row_age_s),
        starved=bool(msg.starved),
        space_hash=msg.space_hash,
        speed_scale=float(msg.speed_scale),
        tick_steady_ns=int(msg.tick_steady_ns),
    )


def member(cls: Any, value: Any) -> Any:
    """
    Return the member of an enumeration that a message names.

    :raises InvalidDataError: there is none; the message lists the allowed values
    """
    try:
        return cls(value)
    except ValueError:
        allowed = ', '.join(str(entry.value) for entry in cls)
        raise InvalidDataError(f'{cls.__name__} {value!r} is not one of: {allowed}') from None


def verdict_to_msg(
    value: types.SafetyVerdict, session: int, taken: Sequence[types.Input] = ()
) -> SafetyVerdict:
    """
    Translate a verdict.

    :param taken: what the guard took since the one before
    """
    msg = SafetyVerdict(
        session=int(session),
        tick=int(value.tick),
        arm_epoch=int(value.arm_epoch),
        state=int(value.state),
        on_timer=bool(value.on_timer),
        command_id=id_to_msg(value.command_id),
        chunk_id=id_to_msg(value.chunk_id),
        row=int(value.row),
        source=value.source,
        reaction=int(value.reaction),
        escalate=bool(value.escalate),
        check=value.check,
        joint=value.joint,
        value=float(value.value),
        limit=float(value.limit),
        margin=float(value.margin),
        reason=value.reason,
        joint_names=list(value.joint_names),
        requested=f64(value.requested),
        sent=f64(value.sent),
        sent_velocity=f64(value.sent_velocity),
        direction_changed=bool(value.direction_changed),
        speed_scale=float(value.speed_scale),
        state_age_s=float(value.state_age_s),
        command_age_s=float(value.command_age_s),
        row_age_s=float(value.row_age_s),
        clearance_names=list(value.clearances),
        clearances=f32(list(value.clearances.values())),
        period_s=float(value.period_s),
        tick_cpu_s=float(value.tick_cpu_s),
        counters=array('Q', value.counters),
        tick_steady_ns=int(value.tick_steady_ns),
        steady_ns=int(value.steady_ns),
        input_topics=[entry.topic for entry in taken],
        input_stamps=array('q', [entry.stamp_ns for entry in taken]),
        input_times=array('q', [entry.taken_ns for entry in taken]),
    )
    msg.header.stamp = to_time(value.stamp_ns)
    return msg


def verdict_from_msg(msg: SafetyVerdict) -> types.SafetyVerdict:
    """Translate a verdict."""
    return types.SafetyVerdict(
        stamp_ns=to_ns(msg.header.stamp),
        tick=int(msg.tick),
        arm_epoch=int(msg.arm_epoch),
        state=member(types.ArmState, msg.state),
        reaction=member(types.Reaction, msg.reaction),
        joint_names=tuple(msg.joint_names),
        requested=_doubles(msg.requested),
        sent=_doubles(msg.sent),
        sent_velocity=_doubles(msg.sent_velocity),
        on_timer=bool(msg.on_timer),
        command_id=id_from_msg(msg.command_id),
        chunk_id=id_from_msg(msg.chunk_id),
        row=int(msg.row),
        source=msg.source,
        escalate=bool(msg.escalate),
        check=msg.check,
        joint=msg.joint,
        value=float(msg.value),
        limit=float(msg.limit),
        margin=float(msg.margin),
        reason=msg.reason,
        direction_changed=bool(msg.direction_changed),
        speed_scale=float(msg.speed_scale),
        state_age_s=float(msg.state_age_s),
        command_age_s=float(msg.command_age_s),
        row_age_s=float(msg.row_age_s),
        clearances=_numbers(msg.clearance_names, msg.clearances),
        period_s=float(msg.period_s),
        tick_cpu_s=float(msg.tick_cpu_s),
        counters=tuple(int(count) for count in msg.counters),
        tick_steady_ns=int(msg.tick_steady_ns),
        steady_ns=int(msg.steady_ns),
    )


def inputs_from_msg(msg: SafetyVerdict) -> tuple[types.Input, ...]:
    """Return what the guard took before a verdict, in order."""
    columns = msg.input_topics, msg.input_stamps, msg.input_times
    return tuple(types.Input(*entry) for entry in zip(*columns, strict=True))


def guard_state_to_msg(value: types.GuardStatus, session: int) -> GuardState:
    """Translate the guard's state."""
    msg = GuardState(
        session=int(session),
        state=int(value.state),
        ramping=bool(value.ramping),
        arm_epoch=int(value.arm_epoch),
        since=to_time(value.since_ns),
        causes=list(value.causes),
        estop_sources=list(value.estop_sources),
        can_arm=bool(value.can_arm),
        can_reset=bool(value.can_reset),
        why_not=value.why_not,
        moving=bool(value.moving),
        at_target=bool(value.at_target),
        limits_hash=value.limits_hash,
        robot=value.robot,
    )
    msg.header.stamp = to_time(value.stamp_ns)
    return msg


def guard_state_from_msg(msg: GuardState) -> types.GuardStatus:
    """Translate the guard's state."""
    return types.GuardStatus(
        stamp_ns=to_ns(msg.header.stamp),
        state=member(types.ArmState, msg.state),
        arm_epoch=int(msg.arm_epoch),
        since_ns=to_ns(msg.since),
        ramping=bool(msg.ramping),
        causes=tuple(msg.causes),
        estop_sources=tuple(msg.estop_sources),
        can_arm=bool(msg.can_arm),
        can_reset=bool(msg.can_reset),
        why_not=msg.why_not,
        moving=bool(msg.moving),
        at_target=bool(msg.at_target),
        limits_hash=msg.limits_hash,
        robot=msg.robot,
    )


def guard_event_to_msg(value: types.GuardEvent, session: int) -> GuardEvent:
    """Translate a guard event."""
    msg = GuardEvent(
        session=int(session),
        arm_epoch=int(value.arm_epoch),
        kind=value.kind,
        from_state=int(value.from_state),
        to_state=int(value.to_state),
        reaction=int(value.reaction),
        check=value.check,
        joint=value.joint,
        value=float(value.value),
        limit=float(value.limit),
        margin=float(value.margin),
        reason=value.reason,
        command_id=id_to_msg(value.command_id),
        chunk_id=id_to_msg(value.chunk_id),
        requested=f64(value.requested),
        sent=f64(value.sent),
        suppressed=int(value.suppressed),
        keep_rows=int(value.keep_rows),
        escalate=bool(value.escalate),
    )
    msg.header.stamp = to_time(value.stamp_ns)
    return msg


def guard_event_from_msg(msg: GuardEvent) -> types.GuardEvent:
    """Translate a guard event."""
    return types.GuardEvent(
        stamp_ns=to_ns(msg.header.stamp),
        arm_epoch=int(msg.arm_epoch),
        kind=msg.kind,
        from_state=member(types.ArmState, msg.from_state),
        to_state=member(types.ArmState, msg.to_state),
        reaction=member(types.Reaction, msg.reaction),
        check=msg.check,
        joint=msg.joint,
        value=float(msg.value),
        limit=float(msg.limit),
        margin=float(msg.margin),
        reason=msg.reason,
        command_id=id_from_msg(msg.command_id),
        chunk_id=id_from_msg(msg.chunk_id),
        requested=np.array(msg.requested, np.float64),
        sent=np.array(msg.sent, np.float64),
        suppressed=int(msg.suppressed),
        keep_rows=int(msg.keep_rows),
        escalate=bool(msg.escalate),
    )


def chunk_verdict_to_msg(value: types.ChunkVerdict) -> ChunkVerdict:
    """Translate the judgement of a chunk."""
    msg = ChunkVerdict(
        chunk_id=id_to_msg(value.chunk_id),
        revision=int(value.revision),
        ok=bool(value.ok),
        first_bad_row=int(value.first_bad_row),
        executable_rows=int(value.executable_rows),
        speed_scale=float(value.speed_scale),
        check=value.check,
        reason=value.reason,
        risk=float(value.risk),
        risk_end=float(value.risk_end),
        risk_beyond=float(value.risk_beyond),
        min_clearance=float(value.min_clearance),
        clearance_pair=value.clearance_pair,
        best_sample=int(value.best_sample),
        duration_s=float(value.duration_s),
    )
    msg.header.stamp = to_time(value.stamp_ns)
    return msg


def chunk_verdict_from_msg(msg: ChunkVerdict) -> types.ChunkVerdict:
    """Translate the judgement of a chunk."""
    return types.ChunkVerdict(
        stamp_ns=to_ns(msg.header.stamp),
        chunk_id=id_from_msg(msg.chunk_id),
        ok=bool(msg.ok),
        first_bad_row=int(msg.first_bad_row),
        executable_rows=int(msg.executable_rows),
        speed_scale=float(msg.speed_scale),
        revision=int(msg.revision),
        check=msg.check,
        reason=msg.reason,
        risk=float(msg.risk),
        risk_end=float(msg.risk_end),
        risk_beyond=float(msg.risk_beyond),
        min_clearance=float(msg.min_clearance),
        clearance_pair=msg.clearance_pair,
        best_sample=int(msg.best_sample),
        duration_s=float(msg.duration_s),
    )


def intervention_to_msg(value: types.Intervention) -> Intervention:
    """Translate who has control."""
    msg = Intervention(
        source=value.source,
        operator_name=value.operator_name,
        active=bool(value.active),
        priority=int(value.priority),
        reason=value.reason,
    )
    msg.header.stamp = to_time(value.stamp_ns)
    return msg


def intervention_from_msg(msg: Intervention) -> types.Intervention:
    """Translate who has control."""
    return types.Intervention(
        to_ns(msg.header.stamp),
        msg.source,
        bool(msg.active),
        int(msg.priority),
        msg.operator_name,
        msg.reason,
    )


def executed_rows_to_msg(value: types.ExecutedRows) -> ExecutedRows:
    """Translate rows as really sent."""
    msg = ExecutedRows(
        id=id_to_msg(value.id),
        arm_epoch=int(value.arm_epoch),
        task_id=value.task_id,
        episode_id=value.episode_id,
        chunk_id=id_to_msg(value.chunk_id),
        first_row=int(value.first_row),
        dt=float(value.dt_s),
        action_size=int(value.rows.shape[1]),
        rows=f32(value.rows),
        sources=array('B', [int(source) for source in value.sources]),
        stamps=[to_time(stamp) for stamp in value.stamps_ns],
        joint_names=list(value.joint_names),
        joints=f64(value.joints),
        space_hash=value.space_hash,
    )
    msg.header.stamp = to_time(value.stamp_ns)
    return msg


def executed_rows_from_msg(msg: ExecutedRows) -> types.ExecutedRows:
    """
    Translate rows as really sent.

    :raises InvalidDataError: arrays of different lengths
    """
    rows = _matrix('rows', msg.rows, int(msg.action_size))
    joints = _matrix('joints', msg.joints, len(msg.joint_names), np.float64)
    if not len(rows) == len(msg.sources) == len(msg.stamps) == len(joints):
        raise InvalidDataError(
            f'executed rows {msg.id.seq}: {len(rows)} rows, {len(msg.sources)} sources, '
            f'{len(msg.stamps)} stamps, {len(joints)} joint targets'
        )
    return types.ExecutedRows(
        id=id_from_msg(msg.id),
        stamp_ns=to_ns(msg.header.stamp),
        arm_epoch=int(msg.arm_epoch),
        chunk_id=id_from_msg(msg.chunk_id),
        first_row=int(msg.first_row),
        dt_s=float(msg.dt),
        rows=rows,
        sources=tuple(member(types.RowSource, source) for source in msg.sources),
        stamps_ns=tuple(to_ns(stamp) for stamp in msg.stamps),
        joint_names=tuple(msg.joint_names),
        joints=joints,
        space_hash=msg.space_hash,
        task_id=msg.task_id,
        episode_id=msg.episode_id,
    )


def goal_from_request(request: MoveTo.Request, robot: Robot) -> types.F64 | None:
    """
    Return where a robot shall move: arm joints (n,) or all joints (J,), None for its home pose.

    :raises InvalidDataError: names that are not exactly the arm's or all of the robot's joints
    """
    names, positions = list(request.joint_names), _doubles(request.positions)
    if not names and not positions.size:
        return None
    for known in (robot.arm_joints, robot.joints):
        if sorted(names) == sorted(known) and len(positions) == len(known):
            return positions[[names.index(name) for name in known]]
    raise InvalidDataError(
        f'{len(positions)} positions for {names}, expected each of {list(robot.arm_joints)} once'
    )


def horizon_to_msg(value: types.HorizonDecision, stamp_ns: int) -> HorizonDecision:
    """Translate a horizon decision."""
    msg = HorizonDecision(
        chunk_id=id_to_msg(value.chunk_id),
        strategy=value.strategy,
        base=int(value.base),
        chosen=int(value.chosen),
        reason=value.reason,
        fluctuation=f32(value.fluctuation),
        threshold=float(value.threshold),
        cut=bool(value.cut),
    )
    msg.header.stamp = to_time(stamp_ns)
    return msg


def horizon_from_msg(msg: HorizonDecision) -> types.HorizonDecision:
    """Translate a horizon decision."""
    return types.HorizonDecision(
        id_from_msg(msg.chunk_id),
        msg.strategy,
        int(msg.base),
        int(msg.chosen),
        msg.reason,
        _floats(msg.fluctuation),
        float(msg.threshold),
        bool(msg.cut),
    )


def execution_stats_to_msg(value: types.ExecutionStats) -> ExecutionStats:
    """Translate the counters of the execution; names and order are those of the dataclass."""
    msg = ExecutionStats(since=to_time(value.since_ns))
    msg.header.stamp = to_time(value.stamp_ns)
    for field in fields(value):
        if field.name not in ('stamp_ns', 'since_ns'):
            setattr(msg, field.name, getattr(value, field.name))
    return msg


def execution_stats_from_msg(msg: ExecutionStats) -> types.ExecutionStats:
    """Translate the counters of the execution."""
    names = {field.name for field in fields(types.ExecutionStats)} - {'stamp_ns', 'since_ns'}
    return types.ExecutionStats(
        stamp_ns=to_ns(msg.header.stamp),
        since_ns=to_ns(msg.since),
        **{name: getattr(msg, name) for name in names},
    )


def space_to_msg(value: types.ActionSpace) -> ActionSpace:
    """Translate an action space."""
    return ActionSpace(
        hash=value.hash,
        groups=[
            ActionGroup(
                name=group.name,
                start=group.start,
                stop=group.stop,
                kind=group.kind.value,
                frame=group.frame,
                reference=group.reference.value,
                rotation=group.rotation.value,
                names=list(group.names),
                unit=group.unit,
                scale=f64(group.scale),
                offset=f64(group.offset),
            )
            for group in value.groups
        ],
        lower=f64(value.lower),
        upper=f64(value.upper),
        max_velocity=f64(value.max_velocity),
        max_acceleration=f64(value.max_acceleration),
        max_jerk=f64(value.max_jerk),
        irreversible=[bool(flag) for flag in value.irreversible],
    )


def space_from_msg(msg: ActionSpace) -> types.ActionSpace:
    """
    Translate an action space.

    :raises InvalidDataError: an unknown kind, reference or rotation
    """
    return types.ActionSpace(
        groups=tuple(
            types.ActionGroup(
                group.name,
                int(group.start),
                int(group.stop),
                member(types.Kind, group.kind),
                group.frame,
                member(types.Reference, group.reference),
                member(types.Rotation, group.rotation),
                tuple(group.names),
                group.unit,
                tuple(group.scale),
                tuple(group.offset),
            )
            for group in msg.groups
        ),
        lower=tuple(msg.lower),
        upper=tuple(msg.upper),
        max_velocity=tuple(msg.max_velocity),
        max_acceleration=tuple(msg.max_acceleration),
        max_jerk=tuple(msg.max_jerk),
        irreversible=tuple(bool(flag) for flag in msg.irreversible),
        hash=msg.hash,
    )


def policy_info_to_msg(
    spec: types.PolicySpec, *, session: int, stamp_ns: int, state: str, warm_inference_s: float
) -> PolicyInfo:
    """Translate a policy's description; it is ready exactly when ``state`` is ``'ready'``."""
    msg = PolicyInfo(
        session=int(session),
        policy=spec.policy,
        name=spec.name,
        version=int(spec.version),
        ready=state == 'ready',
        state=state,
        task_kind=spec.task_kind,
        space=space_to_msg(spec.space),
        horizon=int(spec.horizon),
        dt=float(spec.dt_s),
        input_names=list(spec.input_names),
        cameras=list(spec.cameras),
        starts_at=spec.starts_at,
        capabilities=list(spec.capabilities),
        max_row_age_s=float(spec.max_row_age_s),
        warm_inference_s=float(warm_inference_s),
        manifest_sha256=spec.manifest_sha256,
    )
    msg.header.stamp = to_time(stamp_ns)
    return msg


def policy_info_from_msg(msg: PolicyInfo) -> types.PolicySpec:
    """
    Translate a policy's description, checking that its space is what its hash says.

    :raises InvalidDataError: the space does not have the hash that it claims
    """
    space = space_from_msg(msg.space)
    _check_hash(space)
    return types.PolicySpec(
        policy=msg.policy,
        name=msg.name,
        version=int(msg.version),
        space=space,
        horizon=int(msg.horizon),
        dt_s=float(msg.dt),
        input_names=tuple(msg.input_names),
        cameras=tuple(msg.cameras),
        task_kind=msg.task_kind,
        starts_at=msg.starts_at,
        capabilities=tuple(msg.capabilities),
        max_row_age_s=float(msg.max_row_age_s),
        manifest_sha256=msg.manifest_sha256,
    )


def policy_version_to_msg(value: types.PolicyVersion, stamp_ns: int) -> PolicyVersion:
    """Translate the announcement of a version."""
    msg = PolicyVersion(
        policy=value.policy,
        version=int(value.version),
        parent=int(value.parent),
        path=value.path,
        sha256=value.sha256,
        normalizer_sha256=value.normalizer_sha256,
        accepted=bool(value.accepted),
        reason=value.reason,
        metric_names=list(value.metrics),
        metric_values=f32(list(value.metrics.values())),
    )
    msg.header.stamp = to_time(stamp_ns)
    return msg


def learner_status_to_msg(value: types.LearnerStatus, stamp_ns: int) -> LearnerStatus:
    """Translate what the learner is doing."""
    msg = LearnerStatus(
        learner=value.learner,
        state=value.state,
        version=int(value.version),
        parent=int(value.parent),
        updates=int(value.updates),
        updates_per_s=float(value.updates_per_s),
        episodes=int(value.episodes),
        rows=int(value.rows),
        buffer_rows=int(value.buffer_rows),
        success_estimate=float(value.success_estimate),
        success_low=float(value.success_low),
        success_high=float(value.success_high),
        since_swap_s=float(value.since_swap_s),
        loss_names=list(value.losses),
        loss_values=f32(list(value.losses.values())),
    )
    msg.header.stamp = to_time(stamp_ns)
    return msg


def scene_to_msg(value: Scene, frame: str = 'world') -> SimScene:
    """Translate the simulator's ground truth; counters are the sender's to fill."""
    msg = SimScene(
        seed=int(value.seed),
        task_kind=value.task_kind,
        joint_names=list(value.joint_names),
        joint_positions=f64(value.joint_positions),
        bodies=list(value.bodies),
        poses=[
            pose_to_msg(Pose(), position, orientation)
            for position, orientation in zip(value.positions, value.orientations, strict=True)
        ],
        goal=f32(value.goal),
        success=bool(value.success),
    )
    msg.header.stamp = to_time(value.stamp_ns)
    msg.header.frame_id = frame
    return msg


def scene_from_msg(msg: SimScene) -> Scene:
    """
    Translate the simulator's ground truth.

    :raises InvalidDataError: names and values of different lengths
    """
    poses = [
        (p.position.x, p.position.y, p.position.z, o.x, o.y, o.z, o.w)
        for p, o in ((pose, pose.orientation) for pose in msg.poses)
    ]
    if len(poses) != len(msg.bodies) or len(msg.joint_positions) != len(msg.joint_names):
        raise InvalidDataError(
            f'scene: {len(msg.bodies)} bodies, {len(poses)} poses, {len(msg.joint_names)} joints, '
            f'{len(msg.joint_positions)} joint positions'
        )
    numbers = np.array(poses, np.float64).reshape(-1, 7)
    return Scene(
        to_ns(msg.header.stamp),
        tuple(msg.joint_names),
        _doubles(msg.joint_positions),
        tuple(msg.bodies),
        numbers[:, :3],
        numbers[:, 3:],
        _doubles(msg.goal),
        bool(msg.success),
        int(msg.seed),
        msg.task_kind,
    )


def _check_hash(space: types.ActionSpace) -> None:
    from chunkpilot_core import spaces

    real = spaces.make(space).hash
    if real != space.hash:
        raise InvalidDataError(
            f'action space claims hash {space.hash!r}, its fields give {real!r}'
        )


def keys_values(metadata: Mapping[str, object]) -> tuple[list[str], list[str]]:
    """Return metadata as the two string lists that messages carry."""
    return list(metadata), [str(value) for value in metadata.values()]


def obstacles_to_msg(value: bodies.ObstacleList, frame_id: str) -> ObstacleList:
    """Return a list of obstacles, in the world frame of that name."""
    msg = ObstacleList(lasting=bool(value.lasting))
    msg.header.stamp, msg.header.frame_id = to_time(value.stamp_ns), frame_id
    msg.obstacles = [
        Obstacle(
            name=one.name,
            shape=one.shape.value,
            size=f64(one.size),
            pose=pose_to_msg(Pose(), one.position, one.orientation),
            held=bool(one.held),
            graspable=bool(one.graspable),
        )
        for one in value.obstacles
    ]
    return msg


def obstacles_from_msg(msg: ObstacleList, frame_id: str) -> bodies.ObstacleList:
    """
    Read a list of obstacles.

    :raises InvalidDataError: another frame, or a shape that is not known
    """
    if msg.header.frame_id not in ('', frame_id):
        raise InvalidDataError(f'obstacles in frame {msg.header.frame_id!r}, must be {frame_id!r}')
    obstacles = tuple(_obstacle(one) for one in msg.obstacles)
    return bodies.ObstacleList(to_ns(msg.header.stamp), obstacles, msg.lasting)


def _obstacle(msg: Obstacle) -> bodies.Obstacle:
    shapes = {shape.value: shape for shape in bodies.Shape}
    if msg.shape not in shapes:
        raise InvalidDataError(
            f'obstacle {msg.name!r}: shape {msg.shape!r}, known: {", ".join(shapes)}'
        )
    place, turn = msg.pose.position, msg.pose.orientation
    return bodies.Obstacle(
        msg.name,
        shapes[msg.shape],
        tuple(msg.size),
        np.array([place.x, place.y, place.z]),
        np.array([turn.x, turn.y, turn.z, turn.w]),
        bodies.TOOL if msg.held else bodies.WORLD,
        bool(msg.graspable),
    )
