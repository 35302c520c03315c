"""``chunkpilot train``: from recorded bags, or from a scripted expert, to a checkpoint."""

import argparse
from collections.abc import Sequence
from pathlib import Path
import shlex
from typing import Any

from chunkpilot_core import config, registry
from chunkpilot_core.cli import _checks, _train_bags
from chunkpilot_core.errors import CheckpointError, ConfigError
from chunkpilot_core.types import MAX_HORIZON
import yaml

HELP = 'train a policy on recorded bags, or on demonstrations of a scripted expert'
HORIZON = 16  # as in policies/runtime/recipe.py, which would import torch
PATIENCE = 10  # the same
EPISODES = 250
TASK = 'pick_and_place'
FIGURES = 100  # updates between two losses shown
MAX_PATIENCE = 1_000_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add = parser.add_argument
    plugins = ', '.join(registry.names('policies'))
    add('--policy', default='mlp', help=f'plug-in: {plugins} (default: %(default)s)')
    add('--out', type=Path, required=True, help='checkpoint folder to make, with a report')
    add(
        '--replace',
        action='store_true',
        help='replace a checkpoint in --out that another command made',
    )
    add('--seed', type=int, default=0, help='of scenes, weights and batches (default: 0)')
    add('--horizon', type=int, default=HORIZON, help='H, rows of a chunk (default: %(default)s)')
    add(
        '--patience',
        type=int,
        default=PATIENCE,
        help='stop after so many evaluations, one every 500 updates, without a lower loss on '
        'held-out episodes; 0 = never (default: %(default)s)',
    )
    add(
        '--set',
        nargs='+',
        default=[],
        metavar='NAME=VALUE',
        help="options of the policy's Config, e.g. training_steps=6000",
    )
    expert = parser.add_argument_group('without --bags: demonstrations of a scripted expert')
    expert.add_argument(
        '--task', help=f'default: {TASK}; with --bags: leave out the episodes of other tasks'
    )
    expert.add_argument('--episodes', type=int, help=f'default: {EPISODES}')
    expert.add_argument(
        '--pace',
        type=float,
        help='speed of the expert as a share of 0.3 m/s; people who teleoperate take about half '
        '(default: 1)',
    )
    expert.add_argument(
        '--demonstrations',
        type=Path,
        help='folder to keep and reuse them (default: runs/demonstrations/<task>-seed<seed>, with '
        'another pace -pace<pace> behind it)',
    )
    _train_bags.add_arguments(parser.add_argument_group('from bags'))


def main(args: argparse.Namespace) -> str | None:
    """Gather, train, write; killed on the way, the same command goes on."""
    from chunkpilot_core.policies.runtime import (
        checkpoint,
        recipe,
        training_report,
        training_state,
    )
    from chunkpilot_core.runs.progress import progress_bar

    _checks.number('--seed', args.seed, 0, _checks.MAX_SEED)
    _checks.number('--horizon', args.horizon, 1, MAX_HORIZON)
    _checks.number('--patience', args.patience, 0, MAX_PATIENCE)
    plugin = registry.get('policies', args.policy)
    settings = config.build(plugin.Config, _assignments(args.set), f'{args.policy}.')
    _check_destination(args)
    material = _train_bags.material(args) if args.bags else _demonstrated(args)
    state_file = args.out.with_name(f'.{args.out.name}.training')
    with progress_bar('training', settings.training_steps) as bar:

        def progress(step: int, loss: float) -> None:
            bar.update(step + 1 - bar.n)
            if step % FIGURES == 0:
                bar.set_postfix(loss=f'{loss:.4f}', refresh=False)

        trained = recipe.train(
            plugin,
            settings,
            args.out.name,
            material,
            args.seed,
            patience=args.patience,
            state_file=state_file,
            progress=progress,
        )
    report = training_report.files(trained.report)
    checkpoint.save(
        trained.policy,
        args.out,
        trained=recipe.provenance(material, args.seed, _command(args)),
        metrics=trained.metrics,
        beside=report,
    )
    training_state.forget(state_file)
    figures = ', '.join(f'{name} {value:.5g}' for name, value in trained.metrics.items())
    print(f'{args.out}: {figures}')
    print(f'report: {args.out / training_report.MARKDOWN}')
    if training_report.PICTURE not in report:
        print('without a picture of the curves: matplotlib is not installed')
    return None


def _check_destination(args: argparse.Namespace) -> None:
    """
    Refuse before the work what :func:`checkpoint.save` would refuse after it.

    A checkpoint is replaced by the command that made it, which trains it again; by another one
    only when that is asked for.
    """
    from chunkpilot_core.policies.runtime import checkpoint

    out = args.out
    checkpoint.check_name(out.name)
    if out.exists():
        if not (out / checkpoint.MANIFEST).is_file():
            raise ConfigError(f'--out {out}: exists and is no checkpoint, not replaced')
        if not args.replace and (by := _made_by(out)) != _command(args):
            raise ConfigError(
                f'--out {out}: is a checkpoint that another command made, not replaced without '
                f'--replace: {by or "unknown"}'
            )
    _checks.writable('--out', out)


def _made_by(out: Path) -> str:
    """Return the command that made a checkpoint; '' where it does not say."""
    from chunkpilot_core.policies.runtime import checkpoint

    try:
        trained = checkpoint.read_manifest(out).get('trained')
    except CheckpointError:
        return ''
    return str(trained.get('command', '')) if isinstance(trained, dict) else ''


def _demonstrated(args: argparse.Namespace) -> Any:
    from chunkpilot_core.policies.runtime import demonstrations, recipe
    from chunkpilot_core.policies.runtime.demonstrations import DemonstrationConfig
    from chunkpilot_core.runs.progress import progress_bar

    _train_bags.refuse_options(args)
    task = args.task or TASK
    count = EPISODES if args.episodes is None else args.episodes
    _checks.number('--episodes', count, 2, _checks.MAX_EPISODES)
    registry.get('tasks', task)
    pace = 1.0 if args.pace is None else args.pace
    name = f'{task}-seed{args.seed}' + (f'-pace{pace:g}' if pace != 1.0 else '')
    folder = args.demonstrations or Path('runs/demonstrations') / name
    settings = config.build(DemonstrationConfig, {'pace': pace}, 'demonstrations.')
    episodes = []
    with progress_bar('demonstrations', count) as bar:
        for episode in demonstrations.collect(task, count, args.seed, folder, settings):
            episodes.append(episode)
            bar.update()
    print(f'{sum(e.success for e in episodes)} of {len(episodes)} succeeded, kept in {folder}')
    return recipe.demonstrated(task, episodes, args.horizon)


def _assignments(words: Sequence[str]) -> dict[str, Any]:
    values = {}
    for word in words:
        name, mark, text = word.partition('=')
        if not mark:
            raise ConfigError(f'--set {word!r}: must be NAME=VALUE')
        try:
            values[name] = yaml.safe_load(text)
        except yaml.YAMLError as error:
            raise ConfigError(f'--set {word!r}: {error}') from error
    return values


def _command(args: argparse.Namespace) -> str:
    """Return the command that does the same again."""
    words = ['chunkpilot', 'train', '--policy', args.policy]
    if args.bags:
        words += _train_bags.words(args)
    else:
        words += ['--task', args.task or TASK, '--episodes', str(args.episodes or EPISODES)]
        words += ['--pace', f'{args.pace:g}'] if args.pace is not None else []
    words += ['--seed', str(args.seed), '--out', str(args.out)]
    for option, value, usual in (
        ('--horizon', args.horizon, HORIZON),
        ('--patience', args.patience, PATIENCE),
    ):
        if value != usual:
            words += [option, str(value)]
    return shlex.join([*words, '--set', *args.set] if args.set else words)
