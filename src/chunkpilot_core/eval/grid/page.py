"""The figures of a grid for people: a Markdown page, and plots of success against calls."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from chunkpilot_core.eval.grid.plan import REFERENCE
from chunkpilot_core.eval.grid.rows import Row


def markdown(found: dict[str, Any], command: str) -> str:
    """Return a summary as a page: a table a situation, then choices and correlations."""
    parts = ['# Execution strategies', f'`{command}`; intervals 95 %.']
    keys = ('task', 'policy', 'disturbance', 'latency_s')
    rows = list(zip(found['rows'], found['details'], strict=True))
    for name in dict.fromkeys(tuple(row[key] for key in keys) for row, _ in rows):
        inside = [pair for pair in rows if tuple(pair[0][key] for key in keys) == name]
        task, policy, disturbance, latency_s = name
        parts.append(
            f'## {task}, {policy}, disturbance {disturbance}, {1000 * latency_s:g} ms\n\n'
            f'{inside[0][0]["episodes"]} episodes, `fixed` has h {inside[0][0]["base_h"]}.'
        )
        parts.append('\n'.join([*HEAD, *(_line(row, detail) for row, detail in inside)]))
    parts.append(_choice_table(found['choices']))
    parts.append(_overlap_table(found['overlaps']))
    return '\n\n'.join(part for part in parts if part) + '\n'


HEAD = (
    '| strategy | success [%] | against fixed [points] | calls | fewer by | rows | peak jerk | '
    'fixed at equal calls [%] | cuts/chunk |',
    '|---|---|---|---|---|---|---|---|---|',
)


def _line(row: Row, detail: Row) -> str:
    low, high = (100 * value for value in row['success_ci'])
    down, up = (100 * value for value in row['success_difference_ci'])
    return (
        f'| {row["strategy"]} | {100 * row["success"]:.1f} ({low:.1f} to {high:.1f}) '
        f'| {100 * detail["success_difference"]:+.1f} ({down:+.1f} to {up:+.1f}) '
        f'| {row["calls_per_episode"]:.2f} | {row["calls_ratio"]:.2f}x '
        f'| {row["mean_horizon"]:.1f} | {row["peak_jerk"]:.0f} '
        f'| {100 * detail["curve_success_at_equal_calls"]:.1f} | {detail["cuts_per_chunk"]:.3f} |'
    )


def _choice_table(choices: Sequence[Row]) -> str:
    if not choices:
        return ''
    lines = ['## Choice of the reference', '']
    lines += [
        f'Undisturbed success by fixed horizon, {choices[0]["episodes"]} episodes on seeds of '
        'their own; the longest within a point of the best is `fixed`.',
        '',
    ]
    horizons = list(choices[0]['success'])
    lines.append('| task | policy | latency [ms] | ' + ' | '.join(horizons) + ' | chosen |')
    lines.append('|---' * (len(horizons) + 4) + '|')
    for choice in choices:
        shares = ' | '.join(f'{100 * choice["success"][rows]:.1f}' for rows in horizons)
        lines.append(
            f'| {choice["task"]} | {choice["policy"]} | {1000 * choice["latency_s"]:g} | {shares} '
            f'| {choice["base_h"]} |'
        )
    return '\n'.join(lines)


def _overlap_table(overlaps: Sequence[Row]) -> str:
    if not overlaps:
        return ''
    lines = [
        '## Fluctuation and distance of discarded rows to the replanned ones',
        '',
        '| task | policy | h | rows compared | rank correlation |',
        '|---|---|---|---|---|',
    ]
    lines += [
        f'| {row["task"]} | {row["policy"]} | {row["horizon"]} | {row["rows"]} '
        f'| {row["rank_correlation"]:.2f} |'
        for row in overlaps
    ]
    return '\n'.join(lines)


def plot(found: dict[str, Any], folder: Path) -> list[Path]:
    """Draw success against calls, a file a disturbance and latency, a field a task and policy."""
    import matplotlib

    matplotlib.use('Agg')
    from matplotlib import pyplot

    files = []
    rows = found['rows']
    for disturbance, latency_s in dict.fromkeys(
        (row['disturbance'], row['latency_s']) for row in rows
    ):
        inside = [
            row
            for row in rows
            if (row['disturbance'], row['latency_s']) == (disturbance, latency_s)
        ]
        tasks = list(dict.fromkeys(row['task'] for row in inside))
        policies = list(dict.fromkeys(row['policy'] for row in inside))
        figure, axes = pyplot.subplots(
            len(policies),
            len(tasks),
            figsize=(4.2 * len(tasks), 3.4 * len(policies)),
            squeeze=False,
            constrained_layout=True,
        )
        for i, policy in enumerate(policies):
            for j, task in enumerate(tasks):
                cells = [row for row in inside if (row['task'], row['policy']) == (task, policy)]
                _field(axes[i, j], cells, f'{task}, {policy}')
        figure.suptitle(f'disturbance {disturbance}, latency {1000 * latency_s:g} ms')
        file = folder / f'pareto-{disturbance}-{1000 * latency_s:g}ms.png'
        figure.savefig(file, dpi=110)
        pyplot.close(figure)
        files.append(file)
    return files


def _field(axes: Any, rows: Sequence[Row], title: str) -> None:
    curve = [row for row in rows if row['strategy'].startswith(REFERENCE)]
    curve.sort(key=lambda row: float(row['calls_per_episode']))
    others = [row for row in rows if row not in curve]
    axes.plot(
        [row['calls_per_episode'] for row in curve],
        [100 * row['success'] for row in curve],
        color='0.6',
        zorder=0,
    )
    for i, row in enumerate([*curve, *others]):
        low, high = row['success_ci']
        bars = [[100 * (row['success'] - low)], [100 * (high - row['success'])]]
        axes.errorbar(
            row['calls_per_episode'],
            100 * row['success'],
            yerr=bars,
            fmt='o',
            color='0.6' if i < len(curve) else f'C{i - len(curve)}',
            label=None if i < len(curve) else row['strategy'],
            capsize=2,
            markersize=4,
        )
    for row in curve:
        axes.annotate(
            f'{row["mean_horizon"]:.0f}',
            (row['calls_per_episode'], 100 * row['success']),
            textcoords='offset points',
            xytext=(3, 4),
            fontsize=7,
            color='0.4',
        )
    axes.set_xscale('log')
    axes.set_title(title, fontsize=9)
    axes.set_xlabel('policy calls per episode', fontsize=8)
    axes.set_ylabel('success [%]', fontsize=8)
    axes.tick_params(labelsize=7)
    if others:
        axes.legend(fontsize=7, loc='lower right')
