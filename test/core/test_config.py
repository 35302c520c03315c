"""One dataclass for the API, the parameters and the reference."""

from dataclasses import dataclass
import math

from chunkpilot_core.config import build, option, options, reference
from chunkpilot_core.errors import ConfigError, UnknownNameError
import pytest


@dataclass(frozen=True)
class Example:
    """A configuration with every kind of option."""

    ratio: float = option(1.5, 'how much longer.', min=1.0, max=10.0)
    rows: int = option(8, 'rows of a chunk.', min=1)
    on: bool = option(True, 'whether.')
    weights: tuple[float, ...] = option([0.5, 0.5], 'of each part.', unit='m', min=0.0)
    mode: str = option('hold', 'when empty.', choices=('hold', 'late'))


def test_defaults_and_given_values() -> None:
    built = build(Example, {'ratio': 2, 'weights': [1, 2.5], 'mode': 'late'})
    assert built == Example(2.0, 8, True, (1.0, 2.5), 'late')
    assert isinstance(built.ratio, float)
    assert all(isinstance(value, float) for value in built.weights)


def test_unknown_name_is_met_with_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match=r"'x\.ratoi'.*Did you mean 'x\.ratio'"):
        build(Example, {'ratoi': 2.0}, where='x.')


@pytest.mark.parametrize(
    ('values', 'message'),
    [
        ({'ratio': 0.5}, 'ratio: 0.5 is below the minimum 1.0'),
        ({'ratio': 11.0}, 'above the maximum'),
        ({'ratio': math.nan}, 'NaN'),
        ({'ratio': '2'}, 'must be float'),
        ({'rows': 2.5}, 'must be int'),
        ({'rows': True}, 'must be int'),
        ({'on': 1}, 'must be bool'),
        ({'weights': 'abc'}, 'not a list'),
        ({'weights': [0.1, -1.0]}, r'weights\[1\]: -1.0 m is below the minimum 0.0 m'),
        ({'mode': 'holt'}, "Did you mean 'hold'"),
    ],
)
def test_wrong_values_say_what_is_allowed(values, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build(Example, values)


def test_description_holds_what_a_parameter_needs() -> None:
    weights = {info.name: info for info in options(Example)}['weights']
    assert (weights.sequence, weights.element, weights.unit) == (True, float, 'm')
    assert weights.default == (0.5, 0.5)
    table = reference(Example, 'x.')
    assert '| `x.ratio` | `1.5` | 1 to 10 | how much longer. |' in table
    assert 'hold, late' in table
