"""``chunkpilot bench policies``: what policies cost and bring, with more and fewer steps."""

import argparse
from typing import Any

from chunkpilot_core import files
from chunkpilot_core.cli import _bench, _checks


def main(args: argparse.Namespace) -> str | None:
    """Measure times, run the episodes that are missing, then write summary and page."""
    from chunkpilot_core.eval.grid import policies
    from chunkpilot_core.eval.grid.run import Runner
    from chunkpilot_core.eval.grid.store import Store

    plan = _bench.read(args, policies.read)
    part = policies.only(plan, _bench.filters(args.only))
    plan.check()
    _checks.writable('--out', args.out / 'cells')
    store = Store(args.out / 'cells')
    speeds = _speeds(part)
    runner = Runner(store, args.workers)
    try:
        with _bench.terminated():
            for one in policies.cells(part):
                runner.run([one], f'{one.group.task}, {one.group.policy}, {one.entry.label}')
    finally:
        runner.close()
        _write(args, policies.summary(plan, store, speeds))
    print((args.out / 'summary.md').read_text(encoding='utf-8'))
    print(f'written: {args.out}: summary.json, summary.md')
    return None


def _speeds(part: Any) -> dict[tuple[str, str], Any]:
    """Return the times of all variants of the checkpoints in a part of the plan."""
    from chunkpilot_core.eval import speed
    from chunkpilot_core.eval.grid import policies
    from chunkpilot_core.runs.progress import progress_bar

    found = {}
    networks = policies.networks(part)
    with progress_bar('times', len(networks)) as bar:
        for name, variants in networks.items():
            options = [variant.options for variant in variants]
            measured = speed.measure(name, options, part.calls)
            for variant, one in zip(variants, measured, strict=True):
                found[name, variant.label] = one
            bar.update()
    return found


def _write(args: argparse.Namespace, found: Any) -> None:
    from chunkpilot_core.eval.grid import policies
    from chunkpilot_core.eval.summary import plain

    command = _bench.command(args)
    files.write_json(args.out / 'summary.json', plain({'command': command, **found}))
    files.write(args.out / 'summary.md', policies.markdown(found, command))
