"""
``chunkpilot calibrate guard``: what is normal, for the guard's detectors of behaviour.

Thresholds are conformal: of the successful episodes one half says what is normal, the other how
far normal ones stray. With ``--check`` fresh episodes, normal and with faults, try the result.
"""

import argparse
from typing import Any

from chunkpilot_core.cli import _checks

MAX_SAMPLES = 256
FAULT_SEEDS = 500_000  # further on: no seed is used twice


def run(args: argparse.Namespace, policy: Any, task: str) -> str | None:
    """Run or read the episodes, write the file, say what was found."""
    from chunkpilot_core import robot as robots
    from chunkpilot_core.eval import guard_calibration
    from chunkpilot_core.policies.runtime import checkpoint
    from chunkpilot_core.safety.runtime import calibration as calibrations
    from chunkpilot_core.safety.runtime import conformal

    if args.robot != 'panda' and not args.bags:
        return f'--robot {args.robot}: simulated is panda; record episodes and give --bags'
    _checks.number('--samples', args.samples, 1, MAX_SAMPLES)
    if args.samples > 1 and 'samples' not in policy.spec.capabilities:
        return f'--samples {args.samples}: {policy.spec.name} gives none'
    _checks.number('--episodes', args.episodes, conformal.MIN_EPISODES, _checks.MAX_EPISODES)
    other = checkpoint.load(checkpoint.find(args.other)) if args.other else None
    robot = robots.load(args.robot)
    if args.bags:
        records, tried = _recorded(args, policy.spec)
        source = f'{tried} bags in {args.bags}'
    else:
        records, tried = _simulated(args, policy, task, args.seed, args.episodes, 'episodes')
        source = f'simulated episodes of seeds {args.seed} to {args.seed + args.episodes - 1}'
    found = guard_calibration.make(records, policy.spec, robot, task, args.alpha, source)
    calibrations.save(found, args.out)
    chunks = sum(len(record.moments) for record in records)
    print(
        f'{found.policy} version {found.policy_version}: {chunks} chunks of {found.episodes} '
        f'successful episodes of {tried}'
    )
    _print_thresholds(found)
    if args.check:
        _check(args, policy, other, task, found)
    print(f'written: {args.out}; use it with calibration:={args.out} of guard_node')
    return None


def _recorded(args: argparse.Namespace, spec: Any) -> tuple[list[Any], int]:
    from chunkpilot_core.bags import episodes
    from chunkpilot_core.errors import BagError
    from chunkpilot_core.eval import guard_calibration
    from chunkpilot_core.runs.progress import progress_bar

    paths = episodes.bags(args.bags)
    if not paths:
        raise BagError(f'--bags {args.bags}: no finished bags in it')
    all_records = guard_calibration.recorded(paths, spec)
    bar = progress_bar('bags', len(paths), all_records)
    return [record for record in bar if record is not None], len(paths)


def _simulated(
    args: argparse.Namespace, policy: Any, task: str, seed: int, episodes: int, what: str,
    solved_only: bool = True,
) -> tuple[list[Any], int]:  # fmt: skip
    from chunkpilot_core.eval import guard_calibration
    from chunkpilot_core.eval.latency import LatencyModel
    from chunkpilot_core.eval.loop import Loop
    from chunkpilot_core.runs.progress import progress_bar

    loop = Loop(task, policy, LatencyModel(args.latency, 0.0, ''))
    horizon = min(args.horizon, policy.spec.horizon)
    try:
        seeds = progress_bar(what, items=range(seed, seed + episodes))
        run = guard_calibration.simulated(loop, seeds, horizon, args.samples, solved_only)
        return [record for record in run if record is not None], episodes
    finally:
        loop.close()


def _print_thresholds(found: Any) -> None:
    from chunkpilot_core.safety.runtime.checks import Checks

    print('detector           threshold            false alarms per episode')
    for name, detector in Checks().detectors.items():
        part = found.detectors.get(name)
        if part is None:
            print(f'  {name:<16} nothing to look at: the policy gives no samples or diagnostics')
        elif not part.threshold:
            known = {k: v for k, v in part.statistics.items() if isinstance(v, float)}
            numbers = ', '.join(f'{key} {value:.3g}' for key, value in known.items())
            print(f'  {name:<16} {numbers or "fitted"}')
        else:
            low, high = min(part.threshold), max(part.threshold)
            text = f'{low:.4g}' if len(part.threshold) == 1 else f'{low:.4g} to {high:.4g}'
            hysteresis = detector.config.trigger
            print(
                f'  {name:<16} {text:<20} at most {100 * part.expected:.1f} %'
                f'{f", {hysteresis} in a row needed" if hysteresis > 1 else ""}'
            )


def _check(args: argparse.Namespace, policy: Any, other: Any, task: str, found: Any) -> None:
    """Try the calibration with fresh episodes, and print a table."""
    from chunkpilot_core.eval import guard_calibration, odd_policies

    seed = args.seed + FAULT_SEEDS
    nominal, _ = _simulated(args, policy, task, seed, args.check, 'normal')
    rows = {'normal, per chunk': guard_calibration.trial(found, nominal)}
    odd = {
        name: odd_policies.OddPolicy(policy, None, change)
        for name, change in odd_policies.CHANGES.items()
    }
    if other is not None:
        odd[f'chunks of {other.spec.name}'] = odd_policies.OddPolicy(policy, other)
    for name, wrapped in odd.items():
        records, _ = _simulated(args, wrapped, task, seed, args.check, name, solved_only=False)
        long = [record for record in records if len(record.moments) > odd_policies.AFTER]
        rows[f'{name}, per episode'] = guard_calibration.trial(found, long, odd_policies.AFTER)
    names = list(found.detectors)
    print('| ' + ' | '.join(['alarms', *names, 'tried']) + ' |')
    print('|' + '---|' * (len(names) + 2))
    for label, trials in rows.items():
        cells = [_cell(trials[name], label) for name in names]
        tried = f'{next(iter(trials.values())).episodes} episodes'
        print('| ' + ' | '.join([label, *cells, tried]) + ' |')


def _cell(trial: Any, label: str) -> str:
    if label.startswith('normal'):
        return f'{100 * trial.alarms / max(trial.chunks, 1):.2f} %'
    return f'{100 * trial.alarmed / max(trial.episodes, 1):.0f} %'
