"""Pictures and tables of a run, from a real scene."""

from chunkpilot_core import robot
from chunkpilot_core.errors import InvalidDataError
from chunkpilot_core.runs import report, trace
from chunkpilot_core.runs.summary import Tally
from chunkpilot_core.sim.world import World
import numpy as np
from PIL import Image
import pytest

PANDA = robot.load('panda')


@pytest.fixture(scope='module')
def episode() -> trace.EpisodeTrace:
    """Half a second of a world, with two chunks of which the first runs beyond its base."""
    world = World('pick_and_place', PANDA)
    world.reset(3)
    found = trace.EpisodeTrace('run-001', 3, bases={4: 8, 5: 8})
    for tick in range(50):
        turn = np.append(PANDA.home, (0.04, 0.04)) + 0.01 * tick * (np.arange(9) == 0)
        world.step(turn)
        found.times_s.append(tick * 0.01)
        found.targets.append((0.01 * tick, 0.0, 0.2, 0.08))
        chunk, row = (4, tick // 4) if tick < 40 else (5, (tick - 40) // 4)
        found.chunks.append(chunk)
        found.rows.append(row)
        found.starved.append(tick == 39)
        if tick % 4 == 0:
            found.scenes.append(world.scene())
    world.close()
    return found


def test_borders_and_extended_rows(episode):
    assert report.borders(episode) == pytest.approx([0.0, 0.4])
    assert report.extended(episode) == [pytest.approx((0.32, 0.4))]


def test_file_round_trip(episode, tmp_path):
    file = tmp_path / 'deep/episode.npz'
    episode.save(file)
    again = trace.load(file)
    assert again.bases == episode.bases
    assert again.chunks == episode.chunks
    assert len(again.scenes) == len(episode.scenes)
    np.testing.assert_array_equal(again.scenes[5].positions, episode.scenes[5].positions)
    assert again.scenes[5].task_kind == 'pick_and_place'


def test_empty_trace_is_refused(tmp_path):
    with pytest.raises(InvalidDataError, match='0 scenes'):
        trace.EpisodeTrace('nothing').save(tmp_path / 'x.npz')


def test_plot_and_film(episode, tmp_path):
    report.plot(episode, tmp_path / 'episode.png')
    report.film(episode, PANDA, tmp_path / 'episode.gif')
    with Image.open(tmp_path / 'episode.png') as image:
        assert image.width > 500
    with Image.open(tmp_path / 'episode.gif') as image:
        assert image.size == report.FILM_SIZE
        assert image.n_frames >= 5
        pixels = np.asarray(image.convert('RGB')).astype(int)
    red = (pixels[..., 0] > 180) & (pixels[..., 1] < 90) & (pixels[..., 2] < 90)
    assert red.sum() > 20  # the ring around the goal


def test_table_of_a_run_without_numbers_invents_none():
    summary = Tally().summary(
        task='push', policy='mlp', strategy='fixed', node_restarts={'sim': 2}
    )
    text = report.table(summary)
    assert 'success' in text
    assert '0 of 0' in text
    assert 'sim 2' in text
    assert 'nan' not in text.lower()


def test_each_fault_on_purpose_has_a_line_that_says_whether_it_took_place():
    faults = [
        {'fault': 'command: drop from 2 s', 'applied': 31},
        {'fault': 'policy_node: kill at 400 s', 'applied': 0},
    ]
    known = {'task': 'push', 'policy': 'mlp', 'strategy': 'fixed', 'faults': faults}
    lines = report.table(Tally().summary(**known)).splitlines()
    told = [line.split(maxsplit=1)[1] for line in lines if line.lstrip().startswith('fault ')]
    assert told == [
        'command: drop from 2 s: applied 31 times',
        'policy_node: kill at 400 s: did not take place',
    ]
