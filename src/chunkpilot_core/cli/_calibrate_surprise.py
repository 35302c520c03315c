"""
``chunkpilot calibrate surprise``: how far an undisturbed scene departs from what chunks imply.

Whole chunks are run, the longest that any strategy may, so that the limits hold for all of them.
Episodes that failed are left out: what goes wrong in them is a surprise.
"""

import argparse
from typing import Any


def run(args: argparse.Namespace, policy: Any, task: str) -> str | None:
    """Run the episodes, write the file, say what was found."""
    from chunkpilot_core.eval.latency import LatencyModel
    from chunkpilot_core.eval.loop import Loop
    from chunkpilot_core.execution.fixed import Fixed
    from chunkpilot_core.execution.runtime import surprise_limits
    from chunkpilot_core.execution.runtime.surprise import Surprise
    from chunkpilot_core.execution.runtime.surprise_config import SurpriseConfig
    from chunkpilot_core.runs.progress import progress_bar

    monitor = Surprise(SurpriseConfig(enabled=True))
    monitor.limits = {}  # it looks on and cuts nothing
    departures: list[dict[str, float]] = []
    solved = 0
    loop = Loop(task, policy, LatencyModel(args.latency, 0.0, ''), None, {'surprise': monitor})
    try:
        seeds = range(args.seed, args.seed + args.episodes)
        for seed in progress_bar('episodes', items=seeds):
            success = loop.run(seed, Fixed(Fixed.Config(policy.spec.horizon))).success
            seen = monitor.take()
            solved += success
            departures += seen if success else []
    finally:
        loop.close()
    found = surprise_limits.make(policy.spec, task, solved, departures, args.alpha)
    surprise_limits.save(found, args.out)
    print(
        f'{found.policy} version {found.policy_version}: {found.chunks} chunks of {solved} solved '
        f'episodes of {args.episodes}; at most {100 * found.guaranteed:.2f} % of undisturbed '
        f'chunks are cut'
    )
    for source, limit in found.limits.items():
        unit = {'joints': 'rad', 'expected': ''}.get(source, 'm')
        largest = max(chunk.get(source, 0.0) for chunk in departures)
        print(f'  {source:<9} limit {limit:.4f} {unit}, largest seen {largest:.4f}')
    print(f'written: {args.out}; use it with surprise.calibration:={args.out}')
    return None
