"""
The guard at work for an hour: guard_node as a process of its own, 100 commands a second over DDS.

    make soak [SOAK_ARGS='--seconds 60']
    python -m benchmarks.soak [--seconds N] [--nice N] [--out DIR]

A robot that goes where it is sent and a sender of a slow motion are a second process; this one
listens to the verdicts. Writes runs/soak/summary.json: ``holds``, ``rss_growth_mb``,
``tick_cpu_ms_p50`` and ``_p99``, ``unmodified``, and ``rows``, a line a minute. Returns 1 when
there was a hold, or memory grew by 5 MB or more.
"""

import argparse
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
import os
from pathlib import Path
import signal
import subprocess
import sys
import time
from typing import Any

from chunkpilot.msg import SafetyVerdict
from chunkpilot.srv import GuardCommand
from chunkpilot_core import files
from chunkpilot_core.cli.demo import priority
from chunkpilot_core.launching import isolation
from chunkpilot_core.runs.progress import progress_bar
from chunkpilot_core.types import ArmState, Reaction
from chunkpilot_nodes import qos
import numpy as np
import psutil
import rclpy
from rclpy.executors import SingleThreadedExecutor

ROOT = Path(__file__).resolve().parents[2]
OUT = ROOT / 'runs' / 'soak'
SETTLE_S = 5.0  # memory counts from then on: caches are filled, the first verdicts are out
ROW_S = 60.0
GROWTH_MB = 5.0
START_S = 30.0


@dataclass
class Record:
    """What the verdicts said."""

    costs_ms: list[float] = field(default_factory=list)
    reactions: list[int] = field(default_factory=lambda: [0] * len(Reaction))
    holds: int = 0
    reasons: list[str] = field(default_factory=list)
    state: int = 0

    def take(self, verdict: Any) -> None:
        """Count a tick."""
        self.costs_ms.append(verdict.tick_cpu_s * 1e3)
        self.reactions[verdict.reaction] += 1
        if verdict.state != self.state and verdict.state > int(ArmState.ARMED):
            self.holds += 1
            self.reasons.append(
                f'{ArmState(verdict.state).name}, {verdict.check}: {verdict.reason}'
            )
        self.state = verdict.state


class Soak:
    """Guard, robot and listener in a domain of their own."""

    def __init__(self, stack: ExitStack, nice: int) -> None:
        domain = stack.enter_context(isolation.own_domain())
        self._environment = {
            **os.environ,
            'ROS_DOMAIN_ID': str(domain),
            'ROS_AUTOMATIC_DISCOVERY_RANGE': 'LOCALHOST',
        }
        context = rclpy.Context()
        os.environ['ROS_AUTOMATIC_DISCOVERY_RANGE'] = 'LOCALHOST'
        rclpy.init(context=context, domain_id=domain)
        stack.callback(rclpy.shutdown, context=context)
        self._node = rclpy.create_node('soak', context=context)
        self._executor = SingleThreadedExecutor(context=context)
        self._executor.add_node(self._node)
        self.record = Record()
        self._node.create_subscription(SafetyVerdict, 'verdict', self._on_verdict, qos.VERDICT)
        self._arm = self._node.create_client(GuardCommand, 'guard/arm')
        self._measuring = False
        self._heard = 0
        self.guard = self._start(stack, nice, 'chunkpilot_nodes.guard_node')
        self._robot = self._start(stack, nice, 'benchmarks.soak.robot')

    def _start(self, stack: ExitStack, nice: int, module: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, '-m', module]
        process = subprocess.Popen(
            command, env=self._environment, cwd=ROOT, start_new_session=True
        )
        stack.callback(end, process)
        with suppress(OSError):  # both, as Linux shares the CPU between sessions first
            os.setpriority(os.PRIO_PROCESS, process.pid, nice)
            Path(f'/proc/{process.pid}/autogroup').write_text(str(nice))
        return process

    def _on_verdict(self, verdict: Any) -> None:
        self._heard += 1
        if self._measuring:
            self.record.take(verdict)

    def run(self, seconds: float) -> None:
        """Listen for a while."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self._executor.spin_once(timeout_sec=0.1)
            for name, process in (('guard_node', self.guard), ('robot', self._robot)):
                if process.poll() is not None:
                    raise RuntimeError(f'{name} has ended with {process.returncode}')

    def arm(self) -> None:
        """Arm as soon as the guard lets it, and begin to count when the ramp is over."""
        until = time.monotonic() + START_S
        while time.monotonic() < until:
            self.run(0.2)
            if not self._arm.service_is_ready():
                continue
            future = self._arm.call_async(GuardCommand.Request(source='soak'))
            while not future.done() and time.monotonic() < until:
                self.run(0.05)
            if future.done() and future.result().success:
                self.run(SETTLE_S)
                self._measuring = True
                return
        raise RuntimeError('the guard can not be armed')

    def rss_mb(self) -> float:
        """Return the memory of the guard."""
        return float(psutil.Process(self.guard.pid).memory_info().rss) / 2**20


def main() -> int:
    """Soak, write the summary, return 1 when it did not hold what is promised."""
    args = parse()
    args.out.mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, float]] = []
    with ExitStack() as stack:
        soak = Soak(stack, args.nice)
        soak.arm()
        first_mb, began = soak.rss_mb(), time.monotonic()
        with progress_bar('seconds', round(args.seconds), unit='s') as bar:
            while (passed := time.monotonic() - began) < args.seconds:
                soak.run(min(ROW_S, args.seconds - passed))
                rows.append(row(soak, time.monotonic() - began))
                files.write_json(args.out / 'summary.json', summary(soak, rows, first_mb))
                bar.update(round(time.monotonic() - began - bar.n))
        done = summary(soak, rows, first_mb)
    print(
        f'{done["ticks"]} ticks in {done["seconds"]:.0f} s: {done["holds"]} holds, '
        f'memory {done["rss_growth_mb"]:+.2f} MB, tick CPU p50 {done["tick_cpu_ms_p50"]:.3f} ms, '
        f'p99 {done["tick_cpu_ms_p99"]:.3f} ms, {100 * done["unmodified"]:.2f} % unmodified'
    )
    for reason in done['reasons']:
        print('  ' + reason)
    print(f'{args.out}/summary.json')
    return 1 if done['holds'] or done['rss_growth_mb'] >= GROWTH_MB else 0


def row(soak: Soak, passed_s: float) -> dict[str, float]:
    """Return how things stand."""
    costs = np.array(soak.record.costs_ms or [0.0])
    return {
        'at_s': round(passed_s, 1),
        'ticks': len(soak.record.costs_ms),
        'rss_mb': round(soak.rss_mb(), 3),
        'tick_cpu_ms_p99': round(float(np.percentile(costs, 99)), 4),
        'holds': soak.record.holds,
    }


def summary(soak: Soak, rows: list[dict[str, float]], first_mb: float) -> dict[str, Any]:
    """Return all figures."""
    record = soak.record
    costs = np.array(record.costs_ms or [0.0])
    ticks = sum(record.reactions)
    return {
        'ticks': ticks,
        'seconds': rows[-1]['at_s'],
        'holds': record.holds,
        'rss_growth_mb': round(rows[-1]['rss_mb'] - first_mb, 3),
        'rss_mb': rows[-1]['rss_mb'],
        'tick_cpu_ms_p50': round(float(np.percentile(costs, 50)), 4),
        'tick_cpu_ms_p99': round(float(np.percentile(costs, 99)), 4),
        'unmodified': round(record.reactions[Reaction.PASS] / max(ticks, 1), 5),
        'ticks_by_reaction': {r.name: record.reactions[r] for r in Reaction},
        'reasons': record.reasons[:20],
        'cores': os.cpu_count(),
        'rows': rows,
    }


def end(process: subprocess.Popen[bytes]) -> None:
    """End a process as a user does, and for good."""
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(10.0)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(10.0)


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or '').split('\n\n')[0])
    parser.add_argument('--seconds', type=float, default=3600.0, help='default: %(default)s')
    parser.add_argument(
        '--nice', type=int, default=int(priority()), help='of both; default: as high as is allowed'
    )
    parser.add_argument('--out', type=Path, default=OUT, help='default: runs/soak')
    args = parser.parse_args()
    if not 1.0 <= args.seconds <= 1e6:
        parser.error(f'--seconds {args.seconds}: allowed 1 to 1000000')
    return args


if __name__ == '__main__':
    sys.exit(main())
