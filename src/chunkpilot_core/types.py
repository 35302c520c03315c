"""
The data that flows between the nodes, as frozen dataclasses.

Letters: H rows of a chunk, A action size, T target size, S state size, F features, N samples, J
joints. Stamps are ``int`` nanoseconds (``*_ns``), durations float seconds (``*_s``), everything
else SI. Each class mirrors the message of the same name; ``chunkpilot_nodes.convert`` is the only
place that translates.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from typing import NamedTuple

from chunkpilot_core.errors import InvalidDataError, UnknownNameError
import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]

NS_PER_S = 1_000_000_000


def seconds(duration_ns: int) -> float:
    """Return nanoseconds as seconds."""
    return duration_ns / NS_PER_S


def nanoseconds(duration_s: float) -> int:
    """Return seconds as whole nanoseconds."""
    return round(duration_s * NS_PER_S)


class Kind(str, Enum):
    """What a group of action columns moves."""

    JOINT_POSITION = 'joint_position'
    JOINT_VELOCITY = 'joint_velocity'
    JOINT_DELTA = 'joint_delta'
    EE_POSE = 'ee_pose'
    EE_DELTA = 'ee_delta'
    GRIPPER = 'gripper'
    BASE_TWIST = 'base_twist'

    @property
    def relative(self) -> bool:
        """Whether rows are displacements."""
        return self in (Kind.JOINT_DELTA, Kind.EE_DELTA)

    @property
    def cartesian(self) -> bool:
        """Whether columns describe the end effector."""
        return self in (Kind.EE_POSE, Kind.EE_DELTA)


class Reference(str, Enum):
    """What a relative row is relative to."""

    NONE = ''
    MEASURED = 'measured'
    COMMANDED = 'commanded'
    CHUNK_START = 'chunk_start'


class Rotation(str, Enum):
    """How columns of a Cartesian group describe orientation."""

    NONE = 'none'
    QUATERNION = 'quaternion_xyzw'
    VECTOR = 'rotation_vector'


class Health(IntEnum):
    """Whether an observation may be acted on."""

    OK = 0
    DEGRADED = 1
    BAD = 2


class ObjectStatus(IntEnum):
    """Where the estimate of an object comes from."""

    LOST = 0
    VISIBLE = 1
    HELD = 2
    PREDICTED = 3


class Reaction(IntEnum):
    """What the guard did, ascending in severity."""

    PASS = 0
    CLAMP = 1
    SLOW = 2
    REJECT_CHUNK = 3
    REPLAN = 4
    HOLD = 5
    STOP = 6
    ESTOP = 7


class ArmState(IntEnum):
    """The guard's state machine."""

    DISARMED = 0
    ARMED = 1
    HOLD = 2
    STOPPED = 3
    ESTOP = 4


class RowSource(IntEnum):
    """Whose action a row really was."""

    POLICY = 0
    RESIDUAL = 1
    HUMAN = 2
    GUARD = 3
    HOMING = 4
    STARVED = 5
    DISTURBED = 6


class EpisodeOutcome(IntEnum):
    """How an episode ended."""

    UNKNOWN = 0
    SUCCESS = 1
    FAILURE = 2
    ABORTED = 3


@dataclass(frozen=True, slots=True, order=True)
class Id:
    """One message of one sender; comparable within a session only."""

    session: int = 0
    seq: int = 0

    def __bool__(self) -> bool:
        return self.seq != 0

    def newer_than(self, other: 'Id') -> bool:
        """Whether this came after ``other``; always true across sessions."""
        return self.session != other.session or self.seq > other.seq


@dataclass(frozen=True, slots=True)
class ActionGroup:
    """One slice of an action vector; see ActionGroup.msg."""

    name: str
    start: int
    stop: int
    kind: Kind
    frame: str = ''
    reference: Reference = Reference.NONE
    rotation: Rotation = Rotation.NONE
    names: tuple[str, ...] = ()
    unit: str = 'm'
    scale: tuple[float, ...] = ()
    offset: tuple[float, ...] = ()

    @property
    def size(self) -> int:
        """Columns of a row."""
        return self.stop - self.start

    @property
    def target_size(self) -> int:
        """Columns of the absolute target: a rotation vector becomes a quaternion."""
        return 7 if self.rotation is Rotation.VECTOR else self.size


@dataclass(frozen=True, slots=True)
class ActionSpace:
    """Definition of an action vector of size A; bounds in row units, rates in physical units."""

    groups: tuple[ActionGroup, ...]
    lower: tuple[float, ...]
    upper: tuple[float, ...]
    max_velocity: tuple[float, ...]
    max_acceleration: tuple[float, ...]
    max_jerk: tuple[float, ...]
    irreversible: tuple[bool, ...]
    hash: str = ''

    @property
    def size(self) -> int:
        """A, columns of a row."""
        return len(self.lower)

    @property
    def target_size(self) -> int:
        """T, columns of a resolved target."""
        return sum(group.target_size for group in self.groups)


@dataclass(frozen=True, slots=True)
class JointState:
    """
    Measured joints. ``positions`` and ``velocities`` (J,) [rad, m; per second], ``efforts`` (J,)
    [Nm, N] or empty where a driver sends none.
    """

    stamp_ns: int
    names: tuple[str, ...]
    positions: F64
    velocities: F64
    efforts: F64 = field(default_factory=lambda: np.zeros(0))


@dataclass(frozen=True, slots=True)
class ObjectEstimate:
    """
    Believed pose of an object: ``position`` (3,) [m], ``orientation`` (4,) xyzw, ``covariance``
    (6, 6).
    """

    name: str
    stamp_ns: int
    position: F64
    orientation: F64
    covariance: F64
    status: ObjectStatus
    quality: float = float('nan')
    frame: str = 'world'


@dataclass(frozen=True, slots=True)
class Image:
    """One camera frame: ``pixels`` (rows, columns, 3) uint8 RGB."""

    name: str
    stamp_ns: int
    pixels: NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Task:
    """What is to be done; ``goal`` (G,) [m]."""

    id: str
    kind: str
    text: str = ''
    goal_names: tuple[str, ...] = ()
    goal: F32 = field(default_factory=lambda: np.zeros(0, np.float32))


@dataclass(frozen=True, slots=True)
class Observation:
    """
    Robot and scene at ``stamp_ns``: state (S,), features (F,) with NaN for unknown, goal (G,).
    """

    id: Id
    stamp_ns: int
    oldest_ns: int
    state_names: tuple[str, ...]
    state: F32
    feature_names: tuple[str, ...] = ()
    features: F32 = field(default_factory=lambda: np.zeros(0, np.float32))
    goal_names: tuple[str, ...] = ()
    goal: F32 = field(default_factory=lambda: np.zeros(0, np.float32))
    objects: tuple[ObjectEstimate, ...] = ()
    arm_epoch: int = 0
    task_id: str = ''
    ages_s: Mapping[str, float] = field(default_factory=dict)
    missing: tuple[str, ...] = ()
    frozen: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()
    health: Health = Health.OK
    health_reason: str = ''
    images: tuple[Image, ...] = ()

    def vector(self, names: Sequence[str]) -> F32:
        """
        Collect named numbers from state, features and goal.

        :param names: e.g. ``('ee.x', 'object.x', 'goal.x')``
        :returns: shape (len(names),); NaN where the value is unknown
        :raises UnknownNameError: a name that this observation does not have
        """
        values: dict[str, np.float32] = {}
        for keys, numbers in (
            (self.state_names, self.state),
            (self.feature_names, self.features),
            (self.goal_names, self.goal),
        ):
            values.update(zip(keys, numbers, strict=True))
        try:
            return np.array([values[name] for name in names], np.float32)
        except KeyError as error:
            raise UnknownNameError('observation entry', error.args[0], values) from None


@dataclass(frozen=True, slots=True)
class ChunkRequest:
    """
    The execution node asks for a chunk; ``prefix`` (R, T) are absolute targets that run before the
    answer, ``guidance_weights`` (R,) how strongly the answer is pulled to them.
    """

    id: Id
    stamp_ns: int
    arm_epoch: int
    task_id: str
    reason: str
    start_ns: int
    not_before_ns: int = 0
    delay_s: float = 0.0
    n_samples: int = 1
    prefix: F64 = field(default_factory=lambda: np.zeros((0, 0)))
    prefix_velocity: F64 = field(default_factory=lambda: np.zeros((0, 0)))
    prefix_start_ns: int = 0
    prefix_dt_s: float = 0.0
    committed_rows: int = 0
    space_hash: str = ''
    guidance: str = ''
    guidance_weights: F32 = field(default_factory=lambda: np.zeros(0, np.float32))
    guidance_limit: float = 0.0
    state_at_start: bool = False
    mode: str = ''


@dataclass(frozen=True, slots=True)
class ChunkPart:
    """Rows that became known together; see ChunkPart.msg."""

    first_row: int
    n_rows: int
    observation_id: Id
    observation_stamp_ns: int
    revision: int = 0
    final: bool = True
    executable_rows: int = 0
    noise_level: float = 0.0


@dataclass(frozen=True, slots=True)
class ActionChunk:
    """H future actions; row i of ``actions`` (H, A) is due at ``start_ns`` + i ``dt_s``."""

    id: Id
    request_id: Id
    arm_epoch: int
    task_id: str
    observation_id: Id
    observation_stamp_ns: int
    start_ns: int
    dt_s: float
    actions: F32
    space_hash: str
    policy: str
    policy_version: int
    stamp_ns: int = 0
    observation_oldest_ns: int = 0
    parts: tuple[ChunkPart, ...] = ()
    confidence: F32 | None = None
    samples: F32 | None = None
    residual: F32 | None = None
    residual_bound: F32 | None = None
    expected_features: F32 | None = None
    diagnostics: Mapping[str, float] = field(default_factory=dict)
    answered_by: str = ''
    inference_s: float = 0.0
    max_row_age_s: float = 0.0
    waypoint: F32 | None = None

    @property
    def horizon(self) -> int:
        """H, number of rows."""
        return len(self.actions)

    @property
    def final(self) -> bool:
        """Whether no later revision of any row will come."""
        return all(part.final for part in self.parts)

    def row_ns(self, row: int) -> int:
        """Return when ``row`` is due [ns]."""
        return self.start_ns + row * nanoseconds(self.dt_s)

    def validate(self, space: ActionSpace) -> None:
        """
        Refuse a chunk that does not fit its space.

        :raises InvalidDataError: naming the field, the value got and what is allowed
        """
        if self.space_hash != space.hash:
            raise InvalidDataError(
                f'chunk {self.id.seq}: action space {self.space_hash!r}, expected {space.hash!r}'
            )
        if self.actions.ndim != 2 or self.actions.shape[1] != space.size or not len(self.actions):
            raise InvalidDataError(
                f'chunk {self.id.seq}: actions of shape {self.actions.shape}, '
                f'expected (H >= 1, {space.size})'
            )
        if len(self.actions) > MAX_HORIZON:
            raise InvalidDataError(
                f'chunk {self.id.seq}: {len(self.actions)} rows, at most {MAX_HORIZON} allowed'
            )
        bad = np.argwhere(~np.isfinite(self.actions))
        if len(bad):
            row, column = (int(i) for i in bad[0])
            raise InvalidDataError(
                f'chunk {self.id.seq}: row {row}, column {column} is '
                f'{self.actions[row, column]}, must be finite'
            )
        if not 1e-4 <= self.dt_s <= 10.0:
            raise InvalidDataError(
                f'chunk {self.id.seq}: dt {self.dt_s} s, allowed 0.0001 to 10 s'
            )


MAX_HORIZON = 1000


@dataclass(frozen=True, slots=True)
class CommandGroup:
    """Absolute target of one group of actuators; ``values`` and ``velocity`` (n,)."""

    name: str
    kind: Kind
    values: F64
    velocity: F64
    frame: str = ''
    rotation: Rotation = Rotation.NONE
    names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Command:
    """One control tick's wish, sent to the guard."""

    id: Id
    stamp_ns: int
    arm_epoch: int
    groups: tuple[CommandGroup, ...]
    source: str = 'policy'
    chunk_id: Id = Id()
    row: int = -1
    row_ns: int = 0
    observation_stamp_ns: int = 0
    max_row_age_s: float = 0.0
    starved: bool = False
    space_hash: str = ''
    speed_scale: float = 1.0
    tick_steady_ns: int = 0


@dataclass(frozen=True, slots=True)
class HorizonDecision:
    """How many rows of a chunk will run, counted from row 0, and why."""

    chunk_id: Id
    strategy: str
    base: int
    chosen: int
    reason: str
    fluctuation: F32 = field(default_factory=lambda: np.zeros(0, np.float32))
    threshold: float = float('inf')
    cut: bool = False


class Input(NamedTuple):
    """A message that the guard took: its topic and stamp, and when."""

    topic: str
    stamp_ns: int
    taken_ns: int


@dataclass(frozen=True, slots=True)
class SafetyVerdict:
    """What the guard did in one tick; joint arrays (J,); see SafetyVerdict.msg."""

    stamp_ns: int
    tick: int
    arm_epoch: int
    state: ArmState
    reaction: Reaction
    joint_names: tuple[str, ...]
    requested: F64
    sent: F64
    sent_velocity: F64
    on_timer: bool = False
    command_id: Id = Id()
    chunk_id: Id = Id()
    row: int = -1
    source: str = ''
    escalate: bool = False
    check: str = ''
    joint: str = ''
    value: float = float('nan')
    limit: float = float('nan')
    margin: float = float('nan')
    reason: str = ''
    direction_changed: bool = False
    speed_scale: float = 1.0
    state_age_s: float = float('nan')
    command_age_s: float = float('nan')
    row_age_s: float = float('nan')
    clearances: Mapping[str, float] = field(default_factory=dict)
    period_s: float = 0.0
    tick_cpu_s: float = 0.0
    counters: tuple[int, ...] = (0,) * len(Reaction)
    tick_steady_ns: int = 0
    steady_ns: int = 0


@dataclass(frozen=True, slots=True)
class GuardStatus:
    """Latched state of the guard; see GuardState.msg."""

    stamp_ns: int
    state: ArmState
    arm_epoch: int
    since_ns: int
    ramping: bool = False
    causes: tuple[str, ...] = ()
    estop_sources: tuple[str, ...] = ()
    can_arm: bool = False
    can_reset: bool = False
    why_not: str = ''
    moving: bool = False
    at_target: bool = False
    limits_hash: str = ''
    robot: str = ''


@dataclass(frozen=True, slots=True)
class Intervention:
    """Somebody takes control, or gives it back; see Intervention.msg."""

    stamp_ns: int
    source: str
    active: bool
    priority: int = 100
    operator_name: str = ''
    reason: str = ''


@dataclass(frozen=True, slots=True)
class GuardEvent:
    """A transition or a rejection; see GuardEvent.msg."""

    stamp_ns: int
    arm_epoch: int
    kind: str
    from_state: ArmState
    to_state: ArmState
    reaction: Reaction = Reaction.PASS
    check: str = ''
    joint: str = ''
    value: float = float('nan')
    limit: float = float('nan')
    margin: float = float('nan')
    reason: str = ''
    command_id: Id = Id()
    chunk_id: Id = Id()
    requested: F64 = field(default_factory=lambda: np.zeros(0))
    sent: F64 = field(default_factory=lambda: np.zeros(0))
    suppressed: int = 0
    keep_rows: int = -1
    escalate: bool = False


@dataclass(frozen=True, slots=True)
class ChunkVerdict:
    """
    What a roll-out makes of a chunk before it runs; risks 0 to 1; see ChunkVerdict.msg.

    ``executable_rows`` may run: braking after them ends before ``first_bad_row`` (-1 = none). Of
    one that is ok that field says something else, and is read as :attr:`first_slow_row`. Of a bad
    one ``best_sample`` numbers other rows that are good, see ``prediction.candidates``.
    """

    stamp_ns: int
    chunk_id: Id
    ok: bool
    first_bad_row: int = -1
    executable_rows: int = 0
    speed_scale: float = 1.0
    revision: int = 0
    check: str = ''
    reason: str = ''
    risk: float = 0.0
    risk_end: float = 0.0
    risk_beyond: float = 0.0
    min_clearance: float = float('nan')
    clearance_pair: str = ''
    best_sample: int = -1
    duration_s: float = 0.0

    @property
    def first_slow_row(self) -> int:
        """First row of a chunk that is ok that has to run at ``speed_scale``, -1 = none."""
        return self.first_bad_row if self.ok else -1


@dataclass(frozen=True, slots=True)
class ExecutedRows:
    """
    Rows as really sent, in the policy's space: rows (N, A), joints (N, J); see ExecutedRows.msg.
    """

    id: Id
    stamp_ns: int
    arm_epoch: int
    chunk_id: Id
    first_row: int
    dt_s: float
    rows: F32
    sources: tuple[RowSource, ...]
    stamps_ns: tuple[int, ...]
    joint_names: tuple[str, ...]
    joints: F64
    space_hash: str = ''
    task_id: str = ''
    episode_id: str = ''


@dataclass(frozen=True, slots=True)
class PolicySpec:
    """What a policy is and needs; ``input_names`` are entries of :meth:`Observation.vector`."""

    policy: str
    name: str
    version: int
    space: ActionSpace
    horizon: int
    dt_s: float
    input_names: tuple[str, ...] = ()
    cameras: tuple[str, ...] = ()
    task_kind: str = ''
    starts_at: str = 'observation'
    capabilities: tuple[str, ...] = ()
    max_row_age_s: float = 0.0
    manifest_sha256: str = ''


@dataclass(frozen=True, slots=True)
class PolicyVersion:
    """Announcement of a version of weights; see PolicyVersion.msg."""

    policy: str
    version: int
    parent: int
    path: str
    sha256: str
    normalizer_sha256: str
    accepted: bool
    reason: str = ''
    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LearnerStatus:
    """What the learner is doing; see LearnerStatus.msg."""

    learner: str
    state: str
    version: int
    parent: int
    updates: int
    updates_per_s: float
    episodes: int
    rows: int
    buffer_rows: int
    success_estimate: float
    success_low: float
    success_high: float
    since_swap_s: float
    losses: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ExecutionStats:
    """Counters since ``since_ns``, the start of the episode; see ExecutionStats.msg."""

    stamp_ns: int
    session: int
    strategy: str
    since_ns: int
    arm_epoch: int = 0
    episode_id: str = ''
    ticks: int = 0
    starved_ticks: int = 0
    late_ticks: int = 0
    worst_lateness_s: float = 0.0
    executed_rows: int = 0
    discarded_rows: int = 0
    late_rows: int = 0
    policy_calls: int = 0
    timeouts: int = 0
    chunks_accepted: int = 0
    chunks_rejected: int = 0
    cuts: int = 0
    reanchors: int = 0
    merges: int = 0
    largest_merge_step: float = 0.0
    largest_merge_jerk: float = 0.0
    base_horizon: float = 0.0
    mean_horizon: float = float('nan')
    calls_saved_ratio: float = float('nan')
    delay_p50_s: float = float('nan')
    delay_p95_s: float = float('nan')
    cold_start_s: float = float('nan')
    first_action_s: float = float('nan')
    observation_age_p50_s: float = float('nan')
    observation_age_p99_s: float = float('nan')
    remaining_rows: float = 0.0
