"""From an observation to what a network reads, and the scaling of its actions."""

from collections.abc import Sequence
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
    encoded = inputs.astype(np.float64) @ encoding(names)
    # The floor keeps inputs that hardly vary in training (1 mm, 1 mm/s) from being blown up later.
    return Normalizer(
        tuple(encoded.mean(0).tolist()),
        tuple(np.maximum(encoded.std(0), 1e-3).tolist()),
        tuple(actions.mean(0, dtype=np.float64).tolist()),
        tuple(np.maximum(actions.std(0, dtype=np.float64), 1e-3).tolist()),
    )


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
