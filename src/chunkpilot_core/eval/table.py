"""The comparison as a table in the terminal."""

from collections.abc import Mapping, Sequence
import math
from typing import Any

from rich import box
from rich.table import Table

COLUMNS = (
    'strategy',
    'success',
    'difference',
    'calls/episode',
    'calls saved',
    'rows run',
    'starved %',
    'jerk rms / peak',
    'age p50 / p99',
    'guard pass %',
)


def table(rows: Sequence[Mapping[str, Any]], title: str) -> Table:
    """Return the table of :func:`~chunkpilot_core.eval.summary.summarise`'s rows."""
    out = Table(title=title, caption=_CAPTION, box=box.SIMPLE_HEAD)
    for column in COLUMNS:
        out.add_column(column, justify='left' if column == 'strategy' else 'right')
    for row in rows:
        out.add_row(*_cells(row))
    return out


_CAPTION = (
    'intervals are 95 %: success Wilson, difference to the first row paired (Newcombe), '
    'calls paired bootstrap'
)


def _cells(row: Mapping[str, Any]) -> list[str]:
    return [
        row['strategy'],
        _interval(row['success'], 100, '%'),
        _interval(row.get('success_difference'), 100, '', sign=True),
        _number(row['calls_per_episode'], '.2f'),
        _interval(row.get('calls_ratio'), 1, 'x', digits=2),
        _number(row['mean_horizon'], '.1f'),
        _number(row['starved_pct'], '.2f'),
        f'{_number(row["rms_jerk"], ".0f")} / {_number(row["peak_jerk"], ".0f")}',
        f'{_ms(row["observation_age_p50_s"])} / {_ms(row["observation_age_p99_s"])} ms',
        _number(row['guard_pass_pct'], '.2f'),
    ]


def _interval(
    estimate: Mapping[str, float] | None,
    factor: float,
    unit: str,
    sign: bool = False,
    digits: int = 1,
) -> str:
    if estimate is None:
        return '-'
    plus = '+' if sign else ''
    value, low, high = (
        f'{estimate[name] * factor:{plus}.{digits}f}' for name in ('value', 'low', 'high')
    )
    return f'{value}{unit} ({low} to {high})'


def _number(value: float, form: str) -> str:
    return '-' if math.isnan(value) else format(value, form)


def _ms(value: float) -> str:
    return _number(1000 * value, '.0f')
