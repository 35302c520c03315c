"""
``chunkpilot calibrate``: what a strategy, the surprise interrupt or the guard has to know.

For upcycling, how a policy's predictions fluctuate: no labels and no successes are needed, some
dozens of chunks of undisturbed episodes at the base horizon are enough, simulated or recorded, and
one file serves every ratio. For surprise, how far undisturbed scenes depart from what is expected.
For the guard, what successful episodes look like to its detectors of behaviour.
"""

import argparse
from pathlib import Path

from chunkpilot_core.cli import _calibrate_guard, _calibrate_surprise, _checks
from chunkpilot_core.errors import BagError
from chunkpilot_core.execution.base import Strategy
from chunkpilot_core.types import PolicySpec

HELP = 'measure a policy for a strategy, the surprise interrupt or the guard and write a file'
RATIOS = (1.25, 1.5, 1.75, 2.0, 3.0)
MAX_POOL = 4096
MAX_LATENCY_S = 59.0
EPISODES = {'upcycling': 20, 'surprise': 200, 'guard': 200}
ALPHAS = {'upcycling': 0.005, 'surprise': 0.005, 'guard': 0.02}
ALPHA = (
    'surprise: share of undisturbed chunks that may be cut (default: 0.005); guard: share of '
    'normal episodes in which a detector may alarm (default: 0.02)'
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add = parser.add_argument
    add('strategy', choices=list(EPISODES), help='what is calibrated')
    add('--policy', required=True, help='checkpoint folder, or name in config/policies')
    add('--out', type=Path, required=True, help='file to write')
    add('--bags', type=Path, help='folder of recorded episodes to use instead of a simulation')
    add('--robot', default='panda', help='guard, with --bags: robot YAML file, or a name')
    add('--task', default='', help="default: the policy's own")
    add('--horizon', type=int, default=8, help='base horizon h [rows] (default: %(default)s)')
    add('--episodes', type=int, help='default: 20 for upcycling, 200 for the others')
    add('--alpha', type=float, help=ALPHA)
    add('--check', type=int, default=0, help='guard: fresh episodes of each kind to try it with')
    add('--samples', type=int, default=1, help='guard: asked for with each chunk, for D9 and D10')
    add('--other', default='', help='guard: policy of another task, for --check')
    add('--seed', type=int, default=20_000_000, help='first seed (default: %(default)s)')
    add('--latency', type=float, default=0.05, help='of an inference [s] (default: 0.05)')


def main(args: argparse.Namespace) -> str | None:
    """Run the episodes, write the file, say what ratios would do."""
    from chunkpilot_core.config import build
    from chunkpilot_core.eval.latency import LatencyModel
    from chunkpilot_core.eval.loop import Loop
    from chunkpilot_core.execution.runtime import calibration
    from chunkpilot_core.execution.upcycling import Upcycling
    from chunkpilot_core.policies.runtime import checkpoint

    if args.episodes is None:
        args.episodes = EPISODES[args.strategy]
    if args.alpha is None:
        args.alpha = ALPHAS[args.strategy]
    _checks.number('--check', args.check, 0, _checks.MAX_EPISODES)
    _checks.number('--episodes', args.episodes, 1, _checks.MAX_EPISODES)
    _checks.number('--seed', args.seed, 0, _checks.MAX_SEED)
    _checks.number('--latency', args.latency, 0.0, MAX_LATENCY_S)
    _checks.number('--alpha', args.alpha, 1e-6, 0.5)
    policy = checkpoint.load(checkpoint.find(args.policy))
    task = args.task or policy.spec.task_kind
    if not task:
        return f'{args.policy} is for any task: say which one with --task'
    if args.strategy == 'guard':
        _checks.destination('--out', args.out)
        return _calibrate_guard.run(args, policy, task)
    if args.strategy == 'surprise':
        if args.bags:
            return '--bags: the surprise interrupt is calibrated in simulation only'
        _checks.destination('--out', args.out)
        return _calibrate_surprise.run(args, policy, task)
    options = {'horizon': args.horizon, 'ratio': 1.0, 'pool': MAX_POOL}
    strategy = Upcycling(build(Upcycling.Config, options))
    strategy.configure(policy.spec)  # before anything slow, to refuse what does not fit
    _checks.destination('--out', args.out)
    if args.bags:
        episodes = _play(args.bags, policy.spec, strategy)
    else:
        episodes = args.episodes
        loop = Loop(task, policy, LatencyModel(args.latency, 0.0, ''))
        try:
            seen = loop.calibrate(strategy, range(args.seed, args.seed + episodes))
        finally:
            loop.close()
        assert isinstance(seen, Upcycling)
        strategy = seen
    found = strategy.calibration()
    calibration.save(found, args.out)
    print(
        f'{found.policy} version {found.policy_version}, h {found.base} of {found.horizon} rows: '
        f'{found.chunks} chunks of {episodes} episodes'
    )
    for ratio in RATIOS:
        rows, tau = found.mean_horizon(ratio), found.threshold(ratio)
        print(f'  ratio {ratio:<4g}  {rows:5.2f} rows a chunk, threshold {tau:.4g}')
    print(f'written: {args.out}; use it with upcycling.calibration:={args.out}')
    return None


def _play(folder: Path, spec: PolicySpec, strategy: Strategy) -> int:
    """Show a strategy the chunks of recorded episodes; returns how many there are."""
    from chunkpilot_core.bags import chunks, episodes

    found = episodes.bags(folder)
    if not found:
        raise BagError(f'--bags {folder}: no finished bags in it')
    for chunk, state in chunks.recorded(found, spec):
        strategy.horizon(chunk, state)
    return len(found)
