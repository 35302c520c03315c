"""make bench-guard: a short run gives a whole row for each way to compute distances."""

import json
from pathlib import Path
import subprocess
import sys

import pytest

ROOT = Path(__file__).resolve().parents[2]
FIGURES = (
    'tick_cpu_ms_p50',
    'tick_cpu_ms_p99',
    'chunk_check_ms_p99',
    'predict_ms_p50',
    'predict_ms_p99',
)


def bench(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, '-m', 'benchmarks.guard', '--out', str(folder), *words]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100)


def test_a_short_run_writes_rows_of_numbers(tmp_path: Path) -> None:
    done = bench(tmp_path, '--only', 'numpy', 'pybullet', '--ticks', '160', '--rounds', '2')
    assert done.returncode == 0, done.stderr
    rows = json.loads((tmp_path / 'summary.json').read_text())['rows']
    assert {row['backend'] for row in rows} == {'numpy', 'pybullet'}
    for row in rows:
        assert row['ticks'] == 160
        assert row['chunks'] == 4
        assert all(0.0 < row[figure] < 1e4 for figure in FIGURES), row
        assert row['tick_cpu_ms_p50'] <= row['tick_cpu_ms_p99']
        assert row['calm_pct'] > 80.0  # the motion is one that a guard lets pass
    assert done.stdout.count('\n| ') >= len(rows)


@pytest.mark.parametrize(
    ('words', 'says'), [(('--only', 'abacus'), 'numpy'), (('--ticks', '0'), '1 or more')]
)
def test_what_cannot_be_measured_is_said(
    tmp_path: Path, words: tuple[str, ...], says: str
) -> None:
    done = bench(tmp_path, *words)
    assert done.returncode == 2
    assert says in done.stderr
    assert not (tmp_path / 'summary.json').exists()
