"""make bench-gate: what was measured with other options is not taken for the same."""

import json
from pathlib import Path
import sys
from typing import Any

from benchmarks.gate import __main__ as gate
import pytest


class NoLoop:
    """Stands in for the simulation, which takes minutes."""

    _world = None

    def __init__(self, *_: Any) -> None:
        pass

    def close(self) -> None:
        """Close nothing."""


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Return a function that runs it with some options and returns which episodes it ran."""

    def make(*words: str) -> list[tuple[int, str]]:
        done: list[tuple[int, str]] = []

        def run(loop: Any, policy: Any, seed: int, case: Any) -> dict[str, Any]:
            done.append((seed, case.name))
            return {
                'success': True, 'fell': False, 'slipped': True, 'duration_s': 1.0,
                'reactions': {},
            }  # fmt: skip

        monkeypatch.setattr(gate, 'Loop', NoLoop)
        monkeypatch.setattr(gate, 'run', run)
        monkeypatch.setattr(sys, 'argv', ['gate', '--out', str(tmp_path), *words])
        assert gate.main() == 0
        assert json.loads((tmp_path / 'summary.json').read_text())['rows']
        return done

    return make


def test_it_goes_on_where_it_was_with_the_same_options_only(ran: Any) -> None:
    each = len(gate.CASES)
    assert len(ran('--episodes', '2')) == 2 * each
    assert not ran('--episodes', '2')
    assert len(ran('--episodes', '3')) == each, 'more episodes of the same kind'
    assert len(ran('--episodes', '2', '--timeout', '5')) == 2 * each
    assert not ran('--episodes', '2', '--timeout', '5')
    assert len(ran('--episodes', '2')) == 2 * each, 'what was dropped is gone'
    assert len(ran('--episodes', '2', '--again')) == 2 * each


def test_a_file_of_before_options_were_kept_is_not_gone_on_with(tmp_path: Path) -> None:
    file = tmp_path / 'progress.json'
    file.write_text(json.dumps({'seed': 5_000_000, 'episodes': {'nothing 5000000': {}}}))
    assert gate.kept(file, {'timeout': 12.0}) == {}
