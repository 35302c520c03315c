"""``chunkpilot bench strategies``: what strategies cost and bring, on tasks where it shows."""

import argparse
from typing import Any

from chunkpilot_core import files
from chunkpilot_core.cli import _bench, _checks


def main(args: argparse.Namespace) -> str | None:
    """Run what is missing, then write summary, page and plots; interrupted, it goes on later."""
    from chunkpilot_core.eval.grid import plan as plans
    from chunkpilot_core.eval.grid.run import Runner
    from chunkpilot_core.eval.grid.store import Store

    plan = _bench.read(args, plans.read)
    plan.check()
    part = plans.only(plan, _bench.filters(args.only))
    _checks.writable('--out', args.out / 'cells')
    store = Store(args.out / 'cells')
    for name in plans.checkpoints(part):
        if not plans.found(name):
            print(f'left out: there is no checkpoint {name}')
    runner = Runner(store, args.workers)
    try:
        with _bench.terminated():
            _run(part, store, runner, lambda: _write(args, plan, store))
    finally:
        runner.close()
        _write(args, plan, store)
    print((args.out / 'summary.md').read_text(encoding='utf-8'))
    plots = _plots(args, plan, store)
    print(f'written: {args.out}: ' + ', '.join(['summary.json', 'summary.md', *plots]))
    return None


def _run(part: Any, store: Any, runner: Any, write: Any) -> None:
    from chunkpilot_core.eval.grid import plan as plans
    from chunkpilot_core.eval.grid import rows

    for group in plans.groups(part):
        if not plans.found(plans.checkpoint_of(part, group)):
            continue
        where = f'{group.task}, {group.policy}'
        runner.run(list(plans.choice_cells(part, group).values()), f'{where}: choice')
        base = rows.chosen(part, store, group)
        assert base is not None
        cells = plans.cells(part, group, base)
        for one in cells:
            if reason := plans.refusal(one):
                print(f'left out: {where}: {reason}')
        served = [one for one in cells if not plans.refusal(one)]
        title = f'{where}, {group.disturbance}, {1000 * group.latency_s:g} ms'
        runner.run(served, title)
        if plans.measures_overlaps(part, group):
            runner.overlaps(plans.overlap_cell(part, group, base))
        write()


def _write(args: argparse.Namespace, plan: Any, store: Any) -> None:
    from chunkpilot_core.eval.grid import page, rows
    from chunkpilot_core.eval.summary import plain

    found = rows.summary(plan, store)
    command = _bench.command(args)
    files.write_json(args.out / 'summary.json', plain({'command': command, **found}))
    files.write(args.out / 'summary.md', page.markdown(found, command))


def _plots(args: argparse.Namespace, plan: Any, store: Any) -> list[str]:
    from chunkpilot_core.eval.grid import page, rows

    try:
        return [file.name for file in page.plot(rows.summary(plan, store), args.out)]
    except ImportError as error:
        print(f'no plots: {error}')
        return []
