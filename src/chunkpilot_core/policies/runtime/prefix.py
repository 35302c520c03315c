"""
What a request says about the time before its answer runs: rows to continue, the state to start at.

The prefix of a request holds absolute targets on the time grid of the plan in force; a policy
needs rows in its own units on the grid of its chunk, or inputs as they will be.
"""

from collections.abc import Sequence

from chunkpilot_core import spaces
from chunkpilot_core.errors import InvalidDataError
from chunkpilot_core.smoothness import VELOCITY_KINDS
from chunkpilot_core.types import (
    ActionSpace,
    ChunkRequest,
    F32,
    F64,
    Kind,
    PolicySpec,
    Reference,
    seconds,
)
import numpy as np

ROBOT_STATE = ('ee.', 'gripper.')
JOINT_STATE = ('.position', '.velocity')
MAX_SAMPLES = 1024


def check(space: ActionSpace, request: ChunkRequest) -> None:
    """
    Refuse a request whose numbers can't be served: other processes write them, too.

    :raises InvalidDataError: naming the field, its value and what is allowed
    """
    if not 0 <= request.n_samples <= MAX_SAMPLES:
        raise _error(request, f'n_samples is {request.n_samples}, allowed 0 to {MAX_SAMPLES}')
    rows = len(request.prefix)
    if rows and (request.guidance or request.state_at_start):
        _check_prefix(request, (rows, space.target_size))
    if rows and request.guidance:
        weights = request.guidance_weights
        if weights.shape != (rows,) or not np.all((weights >= 0.0) & (weights <= 1.0 + 1e-6)):
            raise _error(request, f'guidance_weights {weights}, must be {rows} from 0 to 1')
        if not 0.0 <= request.guidance_limit < np.inf:
            raise _error(
                request, f'guidance_limit is {request.guidance_limit}, must be 0 or more, finite'
            )


def _check_prefix(request: ChunkRequest, shape: tuple[int, int]) -> None:
    for name in ('prefix', 'prefix_velocity'):
        values = getattr(request, name)
        if values.shape != shape:
            raise _error(request, f'{name} has shape {values.shape}, expected {shape}')
        if not np.all(np.isfinite(values)):
            raise _error(request, f'{name} holds numbers that are not finite')
    if not 1e-4 <= request.prefix_dt_s <= 10.0:
        raise _error(request, f'prefix_dt_s is {request.prefix_dt_s} s, allowed 0.0001 to 10 s')


def _error(request: ChunkRequest, text: str) -> InvalidDataError:
    return InvalidDataError(f'request {request.id.seq}: {text}')


class Path:
    """The targets of a request's prefix as a function of time."""

    def __init__(self, space: ActionSpace, request: ChunkRequest) -> None:
        """
        Take a request whose prefix is not empty.

        :param space: of the targets
        """
        self._space, self._rows = space, request.prefix
        self._rates = request.prefix_velocity
        self._start_ns, self._dt_s = request.prefix_start_ns, request.prefix_dt_s
        origin = request.prefix[:1] - request.prefix_velocity[:1] * request.prefix_dt_s
        self._knots = np.vstack((origin, request.prefix))
        self.stepped = np.zeros(space.target_size, bool)
        for group, columns in spaces.target_slices(space):
            self.stepped[columns] = group.kind in (Kind.GRIPPER, *VELOCITY_KINDS)

    def place(self, time_ns: int) -> float:
        """Return how many rows lie between the start of the first and a time."""
        return seconds(time_ns - self._start_ns) / self._dt_s

    def at(self, place: float) -> F64:
        """
        Return the target (T,) at a place, straight on beyond both ends.

        What does not move evenly, grippers and rates, is that of the row that leads there.
        """
        row = self._row(np.floor(place))
        target = spaces.interpolate(
            self._space, self._knots[row], self._knots[row + 1], place - row
        )
        target[self.stepped] = self._rows[self._leading(place)][self.stepped]
        return target

    def velocity(self, place: float) -> F64:
        """Return the rate (T,) of the row that leads to a place."""
        rate: F64 = self._rates[self._leading(place)]
        return rate

    def _leading(self, place: float) -> int:
        return self._row(np.ceil(place - 1e-6) - 1)

    def _row(self, place: float) -> int:
        return min(max(int(place), 0), len(self._rows) - 1)


def guidance(spec: PolicySpec, request: ChunkRequest, start_ns: int) -> tuple[F32, F32]:
    """
    Return the prefix as rows of a chunk, and how strongly each is held on to.

    Row i of the chunk is met by the row of the prefix that begins nearest to it; rows before and
    after the prefix are free. Displacements are those along the path of the prefix over the time
    of the chunk's row, so that the two need not begin together. Rows that count from the start of
    the chunk count from where the prefix is then.

    :param start_ns: when row 0 of the chunk is due
    :returns: rows (H, A) in policy units, weights (H,)
    """
    space = spec.space
    rows, weights = np.zeros((spec.horizon, space.size), np.float32), np.zeros(spec.horizon)
    if not len(request.prefix):
        return rows, weights.astype(np.float32)
    path, step = Path(space, request), spec.dt_s / request.prefix_dt_s
    first = path.place(start_ns)
    from_start = any(group.reference is Reference.CHUNK_START for group in space.groups)
    for i in range(spec.horizon):
        place = first + i * step
        nearest = int(np.floor(place + 0.5))
        if not 0 <= nearest < len(request.prefix):
            continue
        weights[i] = request.guidance_weights[nearest]
        target = path.at(place + step)
        target[path.stepped] = request.prefix[nearest][path.stepped]
        rows[i] = spaces.to_row(space, target, path.at(first if from_start else place))
    return rows, weights.astype(np.float32)


def foreseeable(space: ActionSpace, names: Sequence[str]) -> bool:
    """Return whether the robot's state among inputs is known from the targets of a space alone."""
    robot = [name for name in names if name.startswith(ROBOT_STATE) or name.endswith(JOINT_STATE)]
    known = set(_entries(space))
    return bool(robot) and known.issuperset(robot)


def at_start(
    space: ActionSpace,
    names: Sequence[str],
    values: F32,
    request: ChunkRequest,
    stamp_ns: int,
) -> F32:
    """
    Return inputs as they will be when the chunk begins: the robot at the last committed row.

    What is held moves along with the tool. The gripper gets as far as its speed allows, and does
    not move while it holds something.

    :param values: of the inputs ``names``, as observed at ``stamp_ns``
    """
    if not len(request.prefix):
        return values
    path = Path(space, request)
    place = min(max(path.place(request.start_ns), 0.0), float(len(request.prefix)))
    target, rate = path.at(place), path.velocity(place)
    index = {name: i for i, name in enumerate(names)}
    held = [
        name[: -len('.held')]
        for name, i in index.items()
        if name.endswith('.held') and values[i] > 0.5
    ]
    result: F32 = values.copy()
    for name, (column, is_rate, reach_m_s) in _entries(space).items():
        i = index.get(name)
        if i is None:
            continue
        value = rate[column] if is_rate else target[column]
        if reach_m_s:
            reach = 0.0 if held else reach_m_s * max(seconds(request.start_ns - stamp_ns), 0.0)
            value = values[i] + np.clip(value - values[i], -reach, reach)
        result[i] = value
    for part, axis in ((part, axis) for part in held for axis in 'xyz'):
        tool, thing = index.get(f'ee.{axis}'), index.get(f'{part}.{axis}')
        if tool is not None and thing is not None:
            result[thing] += result[tool] - values[tool]
    return result


def _entries(space: ActionSpace) -> dict[str, tuple[int, bool, float]]:
    """Return observation entries that targets tell: column, whether its rate, speed of fingers."""
    entries: dict[str, tuple[int, bool, float]] = {}
    for group, columns in spaces.target_slices(space):
        start = columns.start
        if group.kind.cartesian:
            for i, axis in enumerate('xyz'):
                entries[f'ee.{axis}'] = (start + i, False, 0.0)
                entries[f'ee.v{axis}'] = (start + i, True, 0.0)
        elif group.kind is Kind.GRIPPER:
            entries['gripper.width'] = (start, False, space.max_velocity[group.start])
        elif group.kind in (Kind.JOINT_POSITION, Kind.JOINT_DELTA):
            for i, name in enumerate(group.names):
                entries[f'{name}.position'] = (start + i, False, 0.0)
                entries[f'{name}.velocity'] = (start + i, True, 0.0)
    return entries
