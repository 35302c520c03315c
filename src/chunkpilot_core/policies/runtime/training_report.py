"""
The report of a training: loss curves, and how well the rows of a chunk are met on held-out data.

Errors are of what a policy would send without looking again: the rows of one chunk, predicted from
the observation at its start, beside what was really done.
"""

from collections.abc import Mapping
from importlib.util import find_spec
import io
import json
import math
from typing import Any

from chunkpilot_core.policies.runtime.dataset import Dataset
from chunkpilot_core.policies.runtime.net_policy import NetPolicy
from chunkpilot_core.policies.runtime.training import History
from chunkpilot_core.types import ActionSpace, F64
import numpy as np
import torch

CHUNKS = 256  # held-out chunks that are predicted, one by one as in deployment
JSON, MARKDOWN, PICTURE = 'report.json', 'report.md', 'report.png'


def make(policy: NetPolicy, held_out: Dataset, history: History, seed: int) -> dict[str, Any]:
    """
    Measure a policy on chunks that it was not trained on.

    :returns: numbers only, for :func:`files`; ``row_error`` is the mean over the columns, each in
        its own deviations in the training data
    """
    errors, rest, counts = _errors(policy, held_out, seed)
    deviation = np.array(policy.normalizer.action_std)
    per_row = (errors / deviation).mean(axis=1)
    doubled = np.flatnonzero(per_row >= 2.0 * per_row[0])
    spec = policy.spec
    return {
        'policy': spec.policy,
        'name': spec.name,
        'task_kind': spec.task_kind,
        'horizon': spec.horizon,
        'dt_s': spec.dt_s,
        'updates': history.updates,
        'planned_updates': history.planned,
        'kept_update': history.kept,
        'curve': [
            {'update': p.update, 'loss': p.loss, 'validation_loss': _plain(p.validation)}
            for p in history.points
        ],
        'chunks_compared': int(counts.max()),
        'columns': columns(spec.space),
        'error': _plain_list(errors),
        'column_error': _plain_list(_mean(errors, counts)),
        'column_error_of_mean_row': _plain_list(_mean(rest, counts)),
        'row_error': _plain_list(per_row),
        'doubling_row': int(doubled[0]) if len(doubled) else None,
        'doubling_s': float(doubled[0] * spec.dt_s) if len(doubled) else None,
    }


def columns(space: ActionSpace) -> list[str]:
    """Name the columns of a row, (A,)."""
    names = []
    for group in space.groups:
        own = group.names if len(group.names) == group.size else None
        axes = own or ('xyz' if group.kind.cartesian and group.size == 3 else range(group.size))
        names += [group.name if group.size == 1 else f'{group.name}.{axis}' for axis in axes]
    return names


def _errors(policy: NetPolicy, held_out: Dataset, seed: int) -> tuple[F64, F64, F64]:
    """
    Return mean absolute errors (H, A) of the policy and of the mean row, and rows compared (H,).
    """
    random = torch.Generator().manual_seed(seed)
    space, mean = policy.spec.space, np.array(policy.normalizer.action_mean)
    batch = held_out.batch(held_out.spread(CHUNKS))
    valid = batch.valid.numpy() > 0.0
    done = batch.actions.numpy().astype(np.float64)
    predicted = np.empty_like(done)
    with torch.inference_mode():
        for i, values in enumerate(policy.encode_inputs(batch.inputs)):
            rows = policy.unscale_actions(policy.sample(values[None], 1, random))
            predicted[i] = np.clip(rows[0].numpy(), space.lower, space.upper)
    counts = valid.sum(axis=0).astype(np.float64)
    scale = np.where(counts > 0.0, counts, np.nan)[:, None]
    own = (np.abs(predicted - done) * valid[..., None]).sum(axis=0) / scale
    rest = (np.abs(mean - done) * valid[..., None]).sum(axis=0) / scale
    return own, rest, counts


def _mean(errors: F64, counts: F64) -> F64:
    """Return the errors (A,) of all rows together."""
    total: F64 = np.nansum(errors * counts[:, None], axis=0) / counts.sum()
    return total


def files(report: Mapping[str, Any]) -> dict[str, bytes]:
    """
    Return the report as JSON, Markdown and, where matplotlib is installed, a picture, by name of
    the file.
    """
    picture = {PICTURE: _picture(report)} if find_spec('matplotlib') else {}
    return {
        JSON: (json.dumps(report, indent=1, allow_nan=False) + '\n').encode(),
        MARKDOWN: _page(report, bool(picture)).encode(),
        **picture,
    }


def _page(report: Mapping[str, Any], picture: bool) -> str:
    kept = next(p for p in report['curve'] if p['update'] == report['kept_update'])
    stopped = report['updates'] < report['planned_updates']
    doubled = report['doubling_row']
    lines = [
        f'# {report["name"]}: training of `{report["policy"]}`',
        '',
        f'* {report["updates"]} of {report["planned_updates"]} updates'
        + (', stopped early' if stopped else '')
        + f'; kept: the weights after update {report["kept_update"]}.',
        f'* Loss {kept["loss"]:.4g} in training, {_shown(kept["validation_loss"])} on held-out '
        f'episodes ({len(report["validation_episodes"])} of {report["episodes"]}).',
        '* The error of a row doubles '
        + (
            f'at row {doubled} ({report["doubling_s"]:.2f} s) of the chunk.'
            if doubled is not None
            else f'nowhere in the {report["horizon"]} rows of a chunk.'
        ),
        '',
        f'Mean absolute error on {report["chunks_compared"]} held-out chunks, in units of the '
        'action:',
        '',
        '| column | first row | last row | all rows | always the mean row |',
        '|---|---|---|---|---|',
    ]
    for i, name in enumerate(report['columns']):
        cells = (
            report['error'][0][i],
            report['error'][-1][i],
            report['column_error'][i],
            report['column_error_of_mean_row'][i],
        )
        lines.append(f'| {name} | ' + ' | '.join(map(_shown, cells)) + ' |')
    if picture:
        lines += ['', f'![curves]({PICTURE})']
    return '\n'.join([*lines, ''])


def _picture(report: Mapping[str, Any]) -> bytes:
    """Draw the loss curves and the error of each row."""
    import matplotlib

    matplotlib.use('Agg')
    from matplotlib import pyplot

    figure, (curves, rows) = pyplot.subplots(1, 2, figsize=(9.6, 3.8), constrained_layout=True)
    updates = [point['update'] for point in report['curve']]
    for name, label in (('loss', 'training'), ('validation_loss', 'held-out episodes')):
        curves.plot(updates, [_number(point[name]) for point in report['curve']], label=label)
    curves.axvline(report['kept_update'], color='0.6', linestyle=':', label='kept')
    curves.set(xlabel='update', ylabel='loss', yscale='log', title='loss')
    curves.locator_params(axis='x', nbins=5)
    curves.legend(fontsize=8)
    errors = np.array([[_number(value) for value in row] for row in report['error']])
    for i, name in enumerate(report['columns']):
        rows.plot(errors[:, i], label=name, linewidth=1.0)
    if report['doubling_row'] is not None:
        rows.axvline(report['doubling_row'], color='0.6', linestyle=':', label='doubled')
    rows.set(xlabel='row of the chunk', ylabel='mean absolute error', title='error, held out')
    rows.legend(fontsize=8)
    drawn = io.BytesIO()
    figure.savefig(drawn, dpi=110, format='png')
    pyplot.close(figure)
    return drawn.getvalue()


def _plain(value: float) -> float | None:
    """Return a number as JSON takes it: what is not known becomes null."""
    return float(value) if math.isfinite(value) else None


def _plain_list(values: F64) -> Any:
    return [_plain_list(row) if np.ndim(row) else _plain(row) for row in values]


def _number(value: float | None) -> float:
    return math.nan if value is None else value


def _shown(value: float | None) -> str:
    return '-' if value is None else f'{value:.4g}'
