"""What is made of the measured rows: JSON, Markdown, a plot, and which targets were missed."""

from collections.abc import Mapping, Sequence
import json
import math
import os
from pathlib import Path
import platform
from typing import Any

from benchmarks.execution.cases import EXTENDING
from benchmarks.execution.reference import DT_S
import matplotlib
import matplotlib.pyplot as plt

KEYS = (
    'system', 'strategy', 'in_flight', 'cold_start_s', 'H', 'latency_s', 'jitter_s', 'noise',
    'starved_pct', 'rms_error', 'largest_step', 'rms_jerk', 'policy_calls', 'first_action_s',
    'cpu_pct',
)  # fmt: skip
HEADS = {
    'system': ('system', '{}'),
    'strategy': ('strategy', '{}'),
    'in_flight': ('in flight', '{}'),
    'cold_start_s': ('cold start [s]', '{:g}'),
    'H': ('H', '{}'),
    'latency_s': ('latency [s]', '{:g}'),
    'jitter_s': ('jitter [s]', '{:.2g}'),
    'noise': ('noise', '{:g}'),
    'starved_pct': ('starved %', '{:.1f}'),
    'rms_error': ('rms error', '{:.3f}'),
    'largest_step': ('largest step', '{:.3f}'),
    'rms_jerk': ('rms jerk', '{:.0f}'),
    'policy_calls': ('calls', '{}'),
    'first_action_s': ('first action [s]', '{:.2f}'),
    'cpu_pct': ('CPU %', '{:.1f}'),
}
SHOWN = {
    'starved_pct': 'starved ticks [%]',
    'rms_error': 'rms error [amplitudes]',
    'largest_step': 'largest step [amplitudes]',
}
RMS_ERROR, LARGEST_STEP, NOISY_STEP, JITTERED_STARVED = 0.05, 0.12, 0.2, 0.5

Row = Mapping[str, Any]


def law_pct(horizon: int, latency_s: float) -> float:
    """Return the starved percentage with one request in flight and a fixed latency: 2 - H / d."""
    return 100.0 * min(1.0, max(0.0, 2.0 - horizon * DT_S / latency_s))


def rows_run(row: Row) -> int:
    """Return how many rows of each chunk a strategy runs at least."""
    rows: int = row['H']
    return rows // 2 if row['strategy'] in EXTENDING else rows


def missed(row: Row, remembered_pct: float | None = None) -> list[str]:
    """
    Return which targets for chunkpilot a row misses, in words.

    Where the rows that run at least are shorter than two latencies the only one is the law of one
    request in flight, at a fixed latency.

    :param remembered_pct: ticks that starved after five chunks, for a cold start
    """
    found: list[str] = []

    def check(what: str, value: float | None, limit: float) -> None:
        if value is None or math.isnan(value) or value > limit:
            shown = 'nothing' if value is None else f'{value:.3g}'
            found.append(f'{what} {shown}, at most {limit:.3g}')

    horizon = rows_run(row)
    if horizon * DT_S < 2.0 * row['latency_s'] - 1e-9:
        if not row['jitter_s']:
            check('starved %', row['starved_pct'], law_pct(horizon, row['latency_s']))
        return found
    starved = remembered_pct if row['cold_start_s'] else row['starved_pct']
    check('starved %', starved, JITTERED_STARVED if row['jitter_s'] else 0.0)
    if row['noise']:
        check('largest step', row['largest_step'], NOISY_STEP)
        return found
    check('rms error', row['rms_error'], RMS_ERROR)
    check('largest step', row['largest_step'], LARGEST_STEP)
    return found


def markdown(rows: Sequence[Row]) -> str:
    """Return the table."""
    lines = [
        '| ' + ' | '.join(head for head, _ in HEADS.values()) + ' |',
        '|' + '---|' * len(HEADS),
    ]
    for row in rows:
        cells = [
            '-' if row[key] is None else form.format(row[key]) for key, (_, form) in HEADS.items()
        ]
        lines.append('| ' + ' | '.join(cells) + ' |')
    return '\n'.join(lines) + '\n'


def targets(rows: Sequence[Row], details: Sequence[Row]) -> str:
    """Return how many of chunkpilot's rows meet the targets, and what the others miss."""
    ours = [pair for pair in zip(rows, details, strict=True) if pair[0]['system'] == 'chunkpilot']
    lines = []
    for row, detail in ours:
        words = missed(row, detail['starved_after_5_chunks_pct'])
        if words:
            lines.append(f'* {detail["case"]}: {"; ".join(words)}')
    head = f'Targets met in {len(ours) - len(lines)} of {len(ours)} cases of chunkpilot.'
    return '\n'.join([head, *lines]) + '\n'


def write(folder: Path, results: Sequence[Mapping[str, Row]], *, full: bool) -> str:
    """
    Write ``summary.json``, ``summary.md`` and ``summary.png``.

    :param results: what the measuring processes left, in the order of the table
    :returns: the Markdown
    """
    rows = [{key: result['row'][key] for key in KEYS} for result in results]
    details = [result['details'] for result in results]
    summary = {
        'rows': rows,
        'details': details,
        'full': full,
        'machine': {'cores': os.cpu_count(), 'python': platform.python_version()},
    }
    text = markdown(rows) + '\n' + targets(rows, details)
    for name, content in (('summary.json', json.dumps(summary, indent=1)), ('summary.md', text)):
        part = folder / f'{name}.part'
        part.write_text(content + '\n' * (not content.endswith('\n')), encoding='utf-8')
        part.replace(folder / name)
    plot(folder / 'summary.png', rows)
    return text


def plot(file: Path, rows: Sequence[Row]) -> None:
    """Draw starvation, error and largest step over the latency, for the longest horizon."""
    matplotlib.use('Agg')
    longest = max((row['H'] for row in rows), default=0)
    plain = [
        row
        for row in rows
        if row['H'] == longest and not (row['jitter_s'] or row['noise'] or row['cold_start_s'])
    ]
    lines: dict[str, list[Row]] = {}
    for row in sorted(plain, key=lambda row: float(row['latency_s'])):
        flight = f', {row["in_flight"]} in flight' if row['in_flight'] > 1 else ''
        lines.setdefault(f'{row["system"]} {row["strategy"]}{flight}', []).append(row)
    figure, axes = plt.subplots(1, 3, figsize=(14, 4), layout='constrained')
    for axis, (key, label) in zip(axes, SHOWN.items(), strict=True):
        for color, (name, points) in enumerate(lines.items()):
            shown = [row for row in points if row[key] is not None]
            style = 'o-' if name.startswith('chunkpilot') else 's--'
            axis.plot(
                [row['latency_s'] for row in shown],
                [row[key] for row in shown],
                style,
                color=plt.get_cmap('tab20')(color % 20),
                label=name,
            )
        axis.set(xlabel='latency [s]', ylabel=label, ylim=(0, None))
        axis.grid(alpha=0.3)
    figure.legend(*axes[0].get_legend_handles_labels(), fontsize=8, loc='outside right upper')
    figure.suptitle(f'H {longest}, 30 Hz, fixed latency')
    figure.savefig(file, dpi=110)
    plt.close(figure)
