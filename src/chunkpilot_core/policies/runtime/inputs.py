"""From an observation to what a network reads, and the scaling of its actions."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
import hashlib
import json
import math

from chunkpilot_core.errors import InvalidDataError
from chunkpilot_core.types import F32, F64
import numpy as np

# Where both are inputs, the network also reads the first minus the second, so that it need not
# learn to subtract: a reach is the same wherever on the table it happens.
PAIRS = (
    ('object', 'ee'),
    ('goal', 'object'),
    ('goal', 'ee'),
    ('object2', 'ee'),
    ('goal2', 'object2'),
)
MAX_DEVIATION = (
    5.0  # [standard deviations] inputs further out are clipped: nothing was learned there
)


@dataclass(frozen=True, slots=True)
class Normalizer:
    """
    Mean and deviation of encoded inputs (E,) and of action columns (A,), from training data only.
    """

    input_mean: tuple[float, ...]
    input_std: tuple[float, ...]
    action_mean: tuple[float, ...]
    action_std: tuple[float, ...]

    @property
    def sha256(self) -> str:
        """Hash of the numbers."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()

    def check(self, inputs: int, actions: int) -> None:
        """
        Refuse numbers that do not fit a network.

        :raises InvalidDataError: wrong sizes, or a value that is not finite or no positive
            deviation
        """
        for name, size in (
            ('input_mean', inputs),
            ('input_std', inputs),
            ('action_mean', actions),
            ('action_std', actions),
        ):
            values = getattr(self, name)
            if len(values) != size:
                raise InvalidDataError(
                    f'normalizer: {name} has {len(values)} values, expected {size}'
                )
            if not all(math.isfinite(value) for value in values):
                raise InvalidDataError(f'normalizer: {name} is not finite: {values}')
            if name.endswith('std') and min(values) <= 0.0:
                raise InvalidDataError(f'normalizer: {name} must be above 0, got {min(values)}')


def fit(names: Sequence[str], inputs: F32, actions: F32) -> Normalizer:
    """
    Return the normaliser of training data.

    :param names: input names, length I
    :param inputs: shape (N, I)
    :param actions: shape (N, A)
    """
    return fit_blocks(names, [(inputs, actions)])


def fit_blocks(names: Sequence[str], blocks: Iterable[tuple[F32, F32]]) -> Normalizer:
    """
    Return the normaliser of training data that comes in pieces, see :func:`fit`.

    :raises InvalidDataError: no inputs or no actions at all
    """
    matrix = encoding(names)
    encoded, rows = _Moments(), _Moments()
    for inputs, actions in blocks:
        encoded.add(inputs.astype(np.float64) @ matrix)
        rows.add(actions.astype(np.float64))
    return Normalizer(*encoded.mean_and_deviation(), *rows.mean_and_deviation())


class _Moments:
    """Mean and deviation of columns, block by block (Chan et al. 1979, pairwise update)."""

    def __init__(self) -> None:
        self._count, self._mean, self._squares = 0, np.zeros(0), np.zeros(0)

    def add(self, values: F64) -> None:
        """Take in values (n, C)."""
        count = len(values)
        if not count:
            return
        mean = values.mean(0)
        squares = ((values - mean) ** 2).sum(0)
        if self._count:
            total = self._count + count
            away = mean - self._mean
            mean = self._mean + away * (count / total)
            squares = self._squares + squares + away**2 * (self._count * count / total)
        self._count, self._mean, self._squares = self._count + count, mean, squares

    def mean_and_deviation(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """
        Return both, shape (C,) each.

        The floor keeps what hardly varies in training (1 mm, 1 mm/s) from being blown up later.
        """
        if not self._count:
            raise InvalidDataError('no data to fit a normaliser to')
        deviation = np.maximum(np.sqrt(self._squares / self._count), 1e-3)
        return tuple(self._mean.tolist()), tuple(deviation.tolist())


def identity(inputs: int, actions: int) -> Normalizer:
    """Return the normaliser that changes nothing."""
    return Normalizer((0.0,) * inputs, (1.0,) * inputs, (0.0,) * actions, (1.0,) * actions)


def encoding(names: Sequence[str]) -> F64:
    """Return the matrix (I, E) that appends differences of positions to the inputs."""
    index = {name: i for i, name in enumerate(names)}
    columns = [np.eye(len(names))]
    for first, second in PAIRS:
        for axis in 'xyz':
            plus, minus = index.get(f'{first}.{axis}'), index.get(f'{second}.{axis}')
            if plus is not None and minus is not None:
                column = np.zeros((len(names), 1))
                column[plus, 0], column[minus, 0] = 1.0, -1.0
                columns.append(column)
    return np.concatenate(columns, axis=1)


def check_known(names: Sequence[str], values: F32) -> None:
    """
    Refuse inputs that nobody has measured yet.

    :raises InvalidDataError: naming the unknown inputs
    """
    unknown = [name for name, value in zip(names, values, strict=True) if not math.isfinite(value)]
    if unknown:
        raise InvalidDataError(f'inputs not known: {", ".join(unknown)}')
