"""The guard at work for a minute; ``make soak`` is an hour of it."""

import json
from pathlib import Path
import subprocess
import sys

import pytest

pytest.importorskip('rclpy')

pytestmark = [pytest.mark.ros, pytest.mark.slow, pytest.mark.timeout(240)]


@pytest.mark.matrix(52)
def test_a_minute_of_nominal_work_has_no_hold_and_costs_no_memory(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, '-m', 'benchmarks.soak', '--seconds', '60', '--out', str(tmp_path)],
        cwd=Path(__file__).resolve().parents[2],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    summary = json.loads((tmp_path / 'summary.json').read_text())
    assert summary['holds'] == 0, summary['reasons']
    assert summary['rss_growth_mb'] < 5.0
    assert summary['ticks'] > 5000
    print({key: summary[key] for key in ('unmodified', 'tick_cpu_ms_p99')})
