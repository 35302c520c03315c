"""
Measures how much the recorder loses: recorder_node and a publisher, two processes over real DDS.

    make bench-bags [BENCH_ARGS='--only target']
    python -m benchmarks.bags [--seconds N] [--only NAME ...] [--nice N]

The bag is read with the library ``mcap``, and what it holds is compared with what was sent.
Writes runs/bench-bags/summary.json: the figures of the first case, and ``rows`` for all.
"""

import argparse
from collections import Counter
from contextlib import ExitStack
from dataclasses import asdict, dataclass
import json
import os
from pathlib import Path
import shutil
import signal
import subprocess
import sys
import time
from typing import Any

from chunkpilot_core import files
from chunkpilot_core.launching import isolation
from mcap.reader import make_reader

ROOT = Path(__file__).resolve().parents[2]
OUT = ROOT / 'runs' / 'bench-bags'
TICKS = os.sysconf('SC_CLK_TCK')
DRAIN_S = 1.0
STOP_S = 60.0


@dataclass(frozen=True)
class Case:
    """A load: texts of ``size`` bytes on ``topics`` topics, ``rate`` a second in total."""

    name: str
    rate: int = 2000
    topics: int = 10
    cameras: int = 2
    fps: int = 30
    size: int = 1000
    seconds: float = 15.0


CASES = (
    Case('target', seconds=60.0),
    Case('one topic', topics=1),
    Case('4,000 texts/s', rate=4000),
    Case('8,000 texts/s', rate=8000),
    Case('300 images/s', rate=100, cameras=10),
    Case('4,000 texts/s and 300 images/s', rate=4000, cameras=10),
)


def main() -> int:
    """Measure, print a table, write the summary."""
    args = parse()
    chosen = [case for case in CASES if not args.only or case.name in args.only]
    if not chosen:
        print(f'--only: known are {", ".join(case.name for case in CASES)}', file=sys.stderr)
        return 2
    shutil.rmtree(args.out, ignore_errors=True)
    args.out.mkdir(parents=True)
    rows = []
    for case in chosen:
        seconds = args.seconds or case.seconds
        row = measure(Case(**{**asdict(case), 'seconds': seconds}), args.out, args.nice)
        rows.append(row)
        print(
            f'{case.name:32} lost {row["lost"]:6} of {row["sent"]:7}  {row["seconds"]:5.1f} s  '
            f'{row["megabytes_per_s"]:6.1f} MB/s  recorder {row["cpu_pct"]:5.1f} % of a core, '
            f'others {row["others_cpu_pct"]:.0f} %',
            flush=True,
        )
    keys = ('lost', 'recorded', 'seconds', 'cpu_pct', 'megabytes_per_s')
    summary = {key: rows[0][key] for key in keys} | {'cores': os.cpu_count(), 'rows': rows}
    files.write_json(args.out / 'summary.json', summary)
    print(f'written: {args.out / "summary.json"}')
    return 0


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--seconds', type=float, help='of every case; default: 60 and 15')
    parser.add_argument('--only', nargs='+', help='names of cases')
    parser.add_argument('--out', type=Path, default=OUT)
    parser.add_argument(
        '--nice', type=int, default=0, help='of both processes: < 0 on a machine that is busy'
    )
    return parser.parse_args()


def measure(case: Case, out: Path, nice: int) -> dict[str, Any]:
    """Record one load and count."""
    with ExitStack() as stack:
        domain = stack.enter_context(isolation.own_domain())
        environment = {
            **os.environ,
            'ROS_DOMAIN_ID': str(domain),
            'ROS_AUTOMATIC_DISCOVERY_RANGE': 'LOCALHOST',
        }
        bag = out / 'bag'
        words = ['directory', out, 'name', bag.name, 'start', 'true', 'per_episode', 'false']
        pairs = zip(words[::2], words[1::2], strict=True)
        options = [word for name, value in pairs for word in ('-p', f'{name}:={value}')]
        module = ['-m', 'chunkpilot_nodes.recorder_node', '--ros-args', *options]
        log = stack.enter_context((out / 'recorder.log').open('w'))
        recorder = start(stack, module, environment, nice, stdout=log, stderr=log)
        load = {key: value for key, value in asdict(case).items() if key != 'name'}
        flags = [word for key, value in load.items() for word in (f'--{key}', str(value))]
        pipes = {'stdin': subprocess.PIPE, 'stdout': subprocess.PIPE, 'text': True}
        module = ['-m', 'benchmarks.bags.publish', *flags]
        publisher = start(stack, module, environment, nice, cwd=ROOT, **pipes)
        assert publisher.stdout is not None
        assert publisher.stdin is not None
        if publisher.stdout.readline() != 'begin\n':
            raise SystemExit(f'nothing was sent, see {log.name}')
        before = busy(recorder.pid), busy(publisher.pid), busy_machine()
        sent = json.loads(publisher.stdout.readline())
        after = busy(recorder.pid), busy(publisher.pid), busy_machine()
        time.sleep(DRAIN_S)
        publisher.stdin.close()
        publisher.wait(STOP_S)
        recorder.send_signal(signal.SIGINT)
        if recorder.wait(STOP_S) != 0:
            raise SystemExit(f'the recorder failed, see {log.name}')
    ours, theirs, all_of_it = (b - a for a, b in zip(before, after, strict=True))
    counts, custom, size = read(bag)
    texts = sum(n for topic, n in counts.items() if topic.startswith('/load/text'))
    images = sum(n for topic, n in counts.items() if topic.startswith('/load/camera'))
    shutil.rmtree(bag)
    return {
        'case': case.name,
        **load,
        'sent': sent['texts'] + sent['images'],
        'recorded': texts + images,
        'lost': sent['texts'] + sent['images'] - texts - images,
        'lost_texts': sent['texts'] - texts,
        'lost_images': sent['images'] - images,
        'said_dropped': int(custom['dropped_messages']),
        'said_lost': int(custom['lost_messages']),
        'seconds': round(sent['seconds'], 2),
        'cpu_pct': round(100 * ours / sent['seconds'], 1),
        'publisher_cpu_pct': round(100 * theirs / sent['seconds'], 1),
        'others_cpu_pct': round(100 * (all_of_it - ours - theirs) / sent['seconds'], 1),
        'megabytes_per_s': round(size / 1e6 / sent['seconds'], 2),
        'nice': nice,
    }


def start(
    stack: ExitStack, words: list[str], environment: dict[str, str], nice: int, **how: Any
) -> 'subprocess.Popen[str]':
    """Start a process in a session of its own, that is gone when the stack is."""
    process = subprocess.Popen(
        [sys.executable, *words], env=environment, start_new_session=True, **how
    )
    stack.callback(process.wait)
    stack.callback(process.kill)
    if nice:  # Linux shares the CPU among sessions first
        os.setpriority(os.PRIO_PROCESS, process.pid, nice)
        Path(f'/proc/{process.pid}/autogroup').write_text(str(nice))
    return process


def busy(pid: int) -> float:
    """Return the CPU time of a process [s]."""
    fields = Path(f'/proc/{pid}/stat').read_text().rpartition(')')[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def busy_machine() -> float:
    """Return the CPU time of all processes [s]."""
    fields = [int(word) for word in Path('/proc/stat').read_text().split('\n')[0].split()[1:9]]
    user, nice, system, _, _, irq, softirq, _ = fields
    return (user + nice + system + irq + softirq) / TICKS


def read(bag: Path) -> tuple[Counter[str], dict[str, str], int]:
    """Return messages of each topic, custom data, and how many bytes the messages had."""
    import yaml

    about = yaml.safe_load((bag / 'metadata.yaml').read_text())['rosbag2_bagfile_information']
    counts: Counter[str] = Counter()
    size = 0
    for name in about['relative_file_paths']:
        with (bag / name).open('rb') as stream:
            for _, channel, message in make_reader(stream).iter_messages(log_time_order=False):
                counts[channel.topic] += 1
                size += len(message.data)
    return counts, about['custom_data'], size


if __name__ == '__main__':
    sys.exit(main())
