"""
Measures how chunks are executed while the policy is slow: starvation, error, jumps.

    make bench-execution [BENCH_ARGS='--full --jobs 2']
    python -m benchmarks.execution [--full] [--lerobot-python PYTHON] [--lerobot-rtc-python PYTHON]

Every case is two processes of the real system and 20 s of real time; some cases run side by side.
Finished cases are kept in runs/bench-execution/cases and measured again only if what they measure
has changed. See docs/benchmarks.md.
"""

import argparse
from collections.abc import Iterator
import contextlib
import hashlib
import json
import os
from pathlib import Path
import signal
import subprocess
import sys
import time
from typing import Any

from benchmarks.execution import cases, record, report
from benchmarks.execution.reference import Case
from chunkpilot_core.runs.progress import progress_bar

ROOT = Path(__file__).resolve().parents[2]
OUT = ROOT / 'runs' / 'bench-execution'
MODULES = {
    cases.CHUNKPILOT: 'measure_chunkpilot',
    cases.ASYNC: 'measure_lerobot_async',
    cases.RTC: 'measure_lerobot_rtc',
}
IMPORTS = {
    cases.ASYNC: 'from lerobot.async_inference import policy_server, robot_client',
    cases.RTC: 'import lerobot.rollout.inference',
}
OURS = (
    'src/chunkpilot_core/execution/*.py',
    'src/chunkpilot_core/execution/runtime/*.py',
    'src/chunkpilot_core/timing.py',
    'src/chunkpilot_core/spaces.py',
    'src/chunkpilot_nodes/execution_node.py',
    'src/chunkpilot_nodes/spin.py',
)
PROTOCOL = ('record.py', 'reference.py', 'scoring.py')
STAGGER_S = 1.0  # between starts: importing is what costs CPU
TERM_S = 8.0


def main() -> int:
    """Measure what is missing and write the summary."""
    args = parse()
    pythons = {cases.CHUNKPILOT: sys.executable, **rivals(args)}
    todo = cases.chosen(tuple(pythons), full=args.full)
    if args.only:
        todo = [case for case in todo if any(word in case.name for word in args.only)]
    folder = args.out / 'cases'
    folder.mkdir(parents=True, exist_ok=True)
    marks = {system: fingerprint(system, pythons[system]) for system in pythons}
    if args.fresh:
        for case in todo:
            (folder / f'{case.name}.json').unlink(missing_ok=True)
    missing = [case for case in todo if load(folder, case, marks) is None]
    print(f'{len(todo)} cases, {len(todo) - len(missing)} of them measured before')
    stopped = False
    try:
        run_all(missing, folder, pythons, marks, args.jobs)
    except KeyboardInterrupt:
        stopped = True
        print('\ninterrupted; the same command goes on where it was', file=sys.stderr)
    results = [result for case in todo if (result := load(folder, case, marks))]
    if results:
        print(report.write(args.out, results, full=args.full))
        print(f'{args.out}/summary.json, summary.md, summary.png')
    if stopped:
        return 130
    return 0 if len(results) == len(todo) else 1


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog='make bench-execution', description=__doc__.split('\n')[1]
    )
    parser.add_argument('--full', action='store_true', help='the whole table, about 25 minutes')
    parser.add_argument('--jobs', type=int, default=3, help='cases side by side (3)')
    parser.add_argument('--fresh', action='store_true', help='measure finished cases again')
    parser.add_argument(
        '--only', nargs='+', metavar='TEXT', help='cases whose name has one of these in it'
    )
    parser.add_argument(
        '--lerobot-python',
        metavar='PYTHON',
        help='interpreter in which lerobot imports: its asynchronous inference is measured too',
    )
    parser.add_argument(
        '--lerobot-rtc-python',
        metavar='PYTHON',
        help='the same for its real-time chunking (lerobot 0.6); the one above if not given',
    )
    parser.add_argument(
        '--nice', type=int, default=0, help='of all measured processes; -10 where others are busy'
    )
    parser.add_argument('--out', type=Path, default=OUT, help='folder of the results')
    args = parser.parse_args()
    if args.jobs < 1:
        parser.error(f'--jobs {args.jobs}: at least 1')
    os.environ[record.NICE_VARIABLE] = str(args.nice)
    return args


def rivals(args: argparse.Namespace) -> dict[str, str]:
    """Return the rivals that can be measured, and by which interpreter."""
    asked = {
        cases.ASYNC: args.lerobot_python,
        cases.RTC: args.lerobot_rtc_python or args.lerobot_python,
    }
    found = {}
    for system, python in asked.items():
        if python is None:
            continue
        trial = subprocess.run(
            [python, '-c', IMPORTS[system]],
            env=environment(system),
            cwd='/',
            capture_output=True,
            text=True,
        )
        if trial.returncode == 0:
            found[system] = python
        else:
            reason = (trial.stderr.strip() or 'no reason given').splitlines()[-1]
            print(f'{system} is not measured, it does not import: {reason}', file=sys.stderr)
    return found


def environment(system: str) -> dict[str, str]:
    """Return the environment of a measuring process; a rival gets none of chunkpilot's."""
    if system == cases.CHUNKPILOT:
        paths = [str(ROOT), str(ROOT / 'src'), os.environ.get('PYTHONPATH', '')]
        return {**os.environ, 'PYTHONPATH': os.pathsep.join(filter(None, paths))}
    ours = ('PYTHONPATH', 'VIRTUAL_ENV', 'LD_LIBRARY_PATH', 'PYTHONHOME')
    rest = {key: value for key, value in os.environ.items() if key not in ours}
    return {**rest, 'PYTHONPATH': str(ROOT), 'OMP_NUM_THREADS': '1', 'HF_HUB_OFFLINE': '1'}


def fingerprint(system: str, python: str) -> str:
    """Return a hash of the code that a case of this system measures and is measured by."""
    here = Path(__file__).parent
    files = [here / name for name in (*PROTOCOL, f'{MODULES[system]}.py')]
    if system == cases.CHUNKPILOT:
        files += [here / 'robot.yaml', *(file for glob in OURS for file in ROOT.glob(glob))]
    else:
        files.append(here / 'lerobot_robot.py')
    digest = hashlib.sha256(python.encode())
    for file in sorted(files):
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


def load(folder: Path, case: Case, marks: dict[str, str]) -> dict[str, Any] | None:
    """Return the kept result of a case, None if it is to be measured."""
    file = folder / f'{case.name}.json'
    try:
        result: dict[str, Any] = json.loads(file.read_text(encoding='utf-8'))
    except (OSError, ValueError):
        return None
    kept = result.get('made_by'), result['details']['seconds']
    return result if kept == (marks[case.system], case.seconds) else None


def run_all(
    todo: list[Case],
    folder: Path,
    pythons: dict[str, str],
    marks: dict[str, str],
    jobs: int,
) -> None:
    """Measure cases side by side; whatever happens, no process is left."""
    waiting, running = list(todo), dict[subprocess.Popen[bytes], Case]()
    with progress_bar('cases', len(todo), quiet=not todo) as bar, ended(running):
        while waiting or running:
            if waiting and len(running) < jobs:
                case = waiting.pop(0)
                running[start(case, folder, pythons[case.system])] = case
                bar.set_postfix_str(case.name)
            time.sleep(STAGGER_S if waiting and len(running) < jobs else 0.2)
            for process in [one for one in running if one.poll() is not None]:
                case = running.pop(process)
                finish(process, case, folder, marks[case.system], bar)
                bar.update()


def start(case: Case, folder: Path, python: str) -> subprocess.Popen[bytes]:
    """Start the process that measures a case, in a process group of its own."""
    asked, out = folder / f'{case.name}.case', folder / f'{case.name}.json'
    out.unlink(missing_ok=True)
    case.write(asked)
    with (folder / f'{case.name}.log').open('wb') as log:
        return subprocess.Popen(
            [python, '-m', f'benchmarks.execution.{MODULES[case.system]}', str(asked), str(out)],
            env=environment(case.system),
            cwd=folder,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def finish(
    process: subprocess.Popen[bytes], case: Case, folder: Path, mark: str, bar: Any
) -> None:
    """Sign a result, or tell why there is none."""
    file = folder / f'{case.name}.json'
    if process.returncode == 0 and file.exists():
        result = json.loads(file.read_text(encoding='utf-8'))
        part = file.with_suffix('.part')
        part.write_text(json.dumps({**result, 'made_by': mark}, indent=1), encoding='utf-8')
        part.replace(file)
        file.with_suffix('.case').unlink(missing_ok=True)
    else:
        bar.write(
            f'{case.name} failed with code {process.returncode}, see {folder}/{case.name}.log'
        )
    end_group(process)


@contextlib.contextmanager
def ended(running: dict[subprocess.Popen[bytes], Case]) -> Iterator[None]:
    """End every process group that still runs: first asked, then forced."""
    try:
        yield
    finally:
        for process in running:
            end_group(process, signal.SIGTERM)
        until = time.monotonic() + TERM_S
        for process in running:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, until - time.monotonic()))
            end_group(process)
            process.wait()


def end_group(process: subprocess.Popen[bytes], number: int = signal.SIGKILL) -> None:
    """Signal a measuring process and those that it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)


if __name__ == '__main__':
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(main())
