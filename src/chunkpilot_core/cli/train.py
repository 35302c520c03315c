"""``chunkpilot train``: from a scripted expert to a checkpoint, by one command."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from chunkpilot_core import config, registry
from chunkpilot_core.cli import _checks
from chunkpilot_core.errors import ConfigError
import yaml

HELP = 'train a policy on demonstrations of a scripted expert'
FIGURES = 100  # updates between two losses shown


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        '--policy', default='mlp', help='plug-in: mlp, flow (default: %(default)s)'
    )
    parser.add_argument('--task', default='pick_and_place', help='default: %(default)s')
    parser.add_argument('--episodes', type=int, default=250, help='default: %(default)s')
    parser.add_argument(
        '--seed', type=int, default=0, help='of scenes, weights and batches (default: %(default)s)'
    )
    parser.add_argument('--out', type=Path, required=True, help='checkpoint folder to make')
    parser.add_argument(
        '--demonstrations',
        type=Path,
        help='folder to keep and reuse them (default: runs/demonstrations/<task>-seed<seed>)',
    )
    parser.add_argument(
        '--set',
        nargs='+',
        default=[],
        metavar='NAME=VALUE',
        help="options of the policy's Config, e.g. training_steps=6000",
    )


def main(args: argparse.Namespace) -> str | None:
    """Demonstrate, train, write; killed on the way, the same command goes on."""
    from chunkpilot_core.policies.runtime import checkpoint, recipe

    _checks.number('--episodes', args.episodes, 2, _checks.MAX_EPISODES)
    _checks.number('--seed', args.seed, 0, _checks.MAX_SEED)
    plugin = registry.get('policies', args.policy)
    settings = config.build(plugin.Config, _assignments(args.set), f'{args.policy}.')
    registry.get('tasks', args.task)
    _check_destination(args.out)
    episodes = _demonstrations(args)
    state_file = args.out.with_name(f'.{args.out.name}.training')
    with _bar('training', settings.training_steps) as bar:

        def progress(step: int, loss: float) -> None:
            bar.update(step + 1 - bar.n)
            if step % FIGURES == 0:
                bar.set_postfix(loss=f'{loss:.4f}', refresh=False)

        policy, metrics = recipe.train(
            plugin,
            settings,
            args.out.name,
            args.task,
            episodes,
            args.seed,
            state_file=state_file,
            progress=progress,
        )
    trained = recipe.provenance(episodes, args.seed, _command(args))
    checkpoint.save(policy, args.out, trained=trained, metrics=metrics)
    state_file.unlink(missing_ok=True)
    print(f'{args.out}: ' + ', '.join(f'{name} {value:.5g}' for name, value in metrics.items()))
    return None


def _check_destination(out: Path) -> None:
    """Refuse before the work what :func:`checkpoint.save` would refuse after it."""
    from chunkpilot_core.policies.runtime import checkpoint

    checkpoint.check_name(out.name)
    if out.exists() and not (out / checkpoint.MANIFEST).is_file():
        raise ConfigError(f'--out {out}: exists and is no checkpoint, not replaced')
    _checks.writable('--out', out)


def _demonstrations(args: argparse.Namespace) -> Sequence[Any]:
    from chunkpilot_core.policies.runtime import demonstrations

    folder = args.demonstrations or Path('runs/demonstrations') / f'{args.task}-seed{args.seed}'
    episodes = []
    with _bar('demonstrations', args.episodes) as bar:
        for episode in demonstrations.collect(args.task, args.episodes, args.seed, folder):
            episodes.append(episode)
            bar.update()
    print(f'{sum(e.success for e in episodes)} of {len(episodes)} succeeded, kept in {folder}')
    return episodes


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
    words = ['chunkpilot train', f'--policy {args.policy}', f'--task {args.task}']
    words += [f'--episodes {args.episodes}', f'--seed {args.seed}', f'--out {args.out}']
    if args.set:
        words.append('--set ' + ' '.join(args.set))
    return ' '.join(words)


def _bar(what: str, total: int) -> Any:
    from tqdm import tqdm

    return tqdm(total=total, desc=what, mininterval=0.5, dynamic_ncols=True)
