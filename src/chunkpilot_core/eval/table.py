"""The comparison as a table in the terminal: a column a strategy, narrow enough for it."""

from collections.abc import Callable, Mapping, Sequence
import math
from typing import Any

from rich import box
from rich.table import Table

Row = Mapping[str, Any]


def table(rows: Sequence[Row], title: str) -> Table:
    """Return the table of :func:`~chunkpilot_core.eval.summary.summarise`'s rows."""
    out = Table(title=title, title_justify='left', box=box.SIMPLE_HEAD)
    out.add_column(f'{rows[0]["episodes"]} episodes (95 %)')
    for row in rows:
        out.add_column(row['strategy'], justify='right')
    for name, cell in LINES:
        out.add_row(name, *(cell(row) for row in rows))
    return out


def _interval(
    name: str, factor: float, unit: str = '', sign: bool = False
) -> Callable[[Row], str]:
    def cell(row: Row) -> str:
        if row.get(name) is None:
            return '-'
        plus, digits = '+' if sign else '', 2 if unit == 'x' else 1
        value, low, high = (
            f'{row[name][key] * factor:{plus}.{digits}f}' for key in ('value', 'low', 'high')
        )
        return f'{value}{unit} ({low} to {high})'

    return cell


def _numbers(form: str, *names: str, factor: float = 1.0) -> Callable[[Row], str]:
    def cell(row: Row) -> str:
        values = [row[name] * factor for name in names]
        return ' / '.join('-' if math.isnan(value) else format(value, form) for value in values)

    return cell


LINES: tuple[tuple[str, Callable[[Row], str]], ...] = (
    ('success', _interval('success', 100, ' %')),
    ('  - paired difference', _interval('success_difference', 100, sign=True)),
    ('policy calls/episode', _numbers('.2f', 'calls_per_episode')),
    ('  - fewer by', _interval('calls_ratio', 1, 'x')),
    ('rows chosen/chunk', _numbers('.1f', 'mean_horizon')),
    ('rows run/(h x calls)', _numbers('.2f', 'calls_saved_ratio')),
    ('starved ticks [%]', _numbers('.2f', 'starved_pct')),
    ('chunks cut [%]', _numbers('.2f', 'cut_pct')),
    ('jerk rms/peak [m/s3]', _numbers('.0f', 'rms_jerk', 'peak_jerk')),
    (
        'row age p50/p99 [ms]',
        _numbers('.0f', 'observation_age_p50_s', 'observation_age_p99_s', factor=1000),
    ),
    ('duration [s]', _numbers('.2f', 'duration_s')),
    ('guard PASS ticks [%]', _numbers('.2f', 'guard_pass_pct')),
)
