"""
``chunkpilot calibrate upcycling``: how a policy's predictions fluctuate, measured once and kept.

No labels and no successes are needed: some dozens of chunks of undisturbed episodes at the base
horizon are enough, and one file serves every ratio.
"""

import argparse
from pathlib import Path

from chunkpilot_core.cli import _checks

HELP = 'measure a policy for an execution strategy and write a calibration file'
RATIOS = (1.25, 1.5, 1.75, 2.0, 3.0)
MAX_POOL = 4096
MAX_LATENCY_S = 59.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add = parser.add_argument
    add('strategy', choices=['upcycling'], help='what is calibrated')
    add('--policy', required=True, help='checkpoint folder, or name in config/policies')
    add('--out', type=Path, required=True, help='file to write')
    add('--task', default='', help="default: the policy's own")
    add('--horizon', type=int, default=8, help='base horizon h [rows] (default: %(default)s)')
    add('--episodes', type=int, default=20, help='default: %(default)s')
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

    _checks.number('--episodes', args.episodes, 1, _checks.MAX_EPISODES)
    _checks.number('--seed', args.seed, 0, _checks.MAX_SEED)
    _checks.number('--latency', args.latency, 0.0, MAX_LATENCY_S)
    policy = checkpoint.load(checkpoint.find(args.policy))
    task = args.task or policy.spec.task_kind
    if not task:
        return f'{args.policy} is for any task: say which one with --task'
    options = {'horizon': args.horizon, 'ratio': 1.0, 'pool': MAX_POOL}
    strategy = Upcycling(build(Upcycling.Config, options))
    strategy.configure(policy.spec)  # before anything slow, to refuse what does not fit
    _checks.destination('--out', args.out)
    loop = Loop(task, policy, LatencyModel(args.latency, 0.0, ''))
    try:
        seen = loop.calibrate(strategy, range(args.seed, args.seed + args.episodes))
    finally:
        loop.close()
    assert isinstance(seen, Upcycling)
    found = seen.calibration()
    calibration.save(found, args.out)
    print(
        f'{found.policy} version {found.policy_version}, h {found.base} of {found.horizon} rows: '
        f'{found.chunks} chunks of {args.episodes} episodes'
    )
    for ratio in RATIOS:
        rows, tau = found.mean_horizon(ratio), found.threshold(ratio)
        print(f'  ratio {ratio:<4g}  {rows:5.2f} rows a chunk, threshold {tau:.4g}')
    print(f'written: {args.out}; use it with upcycling.calibration:={args.out}')
    return None
