"""Demonstrations of a scripted operator, recorded through the graph by one command."""

import json
import os
import subprocess
import sys

from chunkpilot_core import spaces
from chunkpilot_core.bags import episodes
from chunkpilot_core.types import EpisodeOutcome, RowSource
import numpy as np
import pytest

pytest.importorskip('rclpy')

pytestmark = [pytest.mark.ros, pytest.mark.slow, pytest.mark.timeout(400)]


def demonstrate(out, count: int) -> subprocess.CompletedProcess[str]:
    verb = [sys.executable, '-m', 'chunkpilot_core.cli', 'demonstrate']
    return subprocess.run(
        [*verb, '--task', 'reach', '--episodes', str(count), '--out', str(out), '--json'],
        capture_output=True,
        text=True,
        timeout=380,
        env={**os.environ, 'ROS_PYTHON_CHECK_FIELDS': '1'},
    )


def test_demonstrations_are_complete_and_the_command_goes_on_where_it_was(tmp_path):
    out = tmp_path / 'bags'
    done = demonstrate(out, 2)
    assert done.returncode == 0, done.stdout + done.stderr
    summary = json.loads(done.stdout.strip().split('\n')[-1])
    assert summary['episodes'] == 2
    good = 0
    for path in episodes.bags(out):
        episode = episodes.load(path)
        if episode.outcome is not EpisodeOutcome.SUCCESS:
            continue
        good += 1
        assert_complete(episode)
    assert good, summary
    done = demonstrate(out, 3)
    assert done.returncode == 0, done.stdout + done.stderr
    assert '1 episodes from seed 1000002' in done.stdout
    assert json.loads(done.stdout.strip().split('\n')[-1])['episodes'] == 3


def assert_complete(episode: episodes.Episode) -> None:
    """Rows follow each other without a gap, are the operator's, and lead where the tool went."""
    batches = [batch for batch in episode.rows if batch.episode_id == episode.id]
    sources = [source for batch in batches for source in batch.sources]
    known = {RowSource.HUMAN, RowSource.DISTURBED, RowSource.GUARD}
    assert set(sources) <= known
    assert sources.count(RowSource.HUMAN) > 0.5 * len(sources)
    stamps = np.concatenate([batch.stamps_ns for batch in batches])
    assert np.median(np.diff(stamps)) == pytest.approx(0.04e9, abs=1e6)
    space = spaces.ee_delta_space()
    assert set(episode.spaces) == {space.hash}
    rows = np.concatenate([batch.rows for batch in batches])
    seen = [o for o in episode.observations if stamps[0] <= o.stamp_ns <= stamps[-1]]
    names = list(seen[0].state_names)
    at = [names.index(name) for name in ('ee.x', 'ee.y', 'ee.z')]
    moved = seen[-1].state[at] - seen[0].state[at]
    told = 0.05 * rows[1:, :3].sum(axis=0)
    np.testing.assert_allclose(told, moved, atol=0.03)  # the arm lags behind its targets
