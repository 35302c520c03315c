"""The cache of frames: only new bags are read, a kill costs little, damage is an error."""

import json
from pathlib import Path
import shutil
from typing import Any

from chunkpilot_core.bags import cache, cache_build, frames, growing
from chunkpilot_core.bags.cache import Cache
from chunkpilot_core.bags.frames import FrameOptions
from chunkpilot_core.errors import BagError
import numpy as np
import pytest

pytestmark = pytest.mark.ros


@pytest.fixture(scope='module')
def bags(tmp_path_factory: pytest.TempPathFactory, made: Any) -> list[Path]:
    folder = tmp_path_factory.mktemp('bags')
    return [made.write(folder / f'b{i}', made.reaching(i, 20 + i)) for i in range(4)]


def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Note which bags are read from now on."""
    names: list[str] = []
    load = frames.load

    def noting(path: Path, options: FrameOptions | None = None) -> frames.Frames:
        names.append(Path(path).name)
        return load(path, options)

    monkeypatch.setattr(cache_build.framing, 'load', noting)
    return names


def test_it_holds_what_the_bags_hold(bags: list[Path], tmp_path: Path) -> None:
    built = cache.build(bags, tmp_path / 'cache')
    assert [episode.length for episode in built.episodes] == [20, 21, 22, 23]
    assert len(built) == 86
    again = Cache.open(tmp_path / 'cache')
    assert again.sha256 == built.sha256
    for number, bag in enumerate(bags):
        own, cached = frames.load(bag), again.frames(number)
        for name in ('stamps_ns', 'state', 'features', 'goal', 'actions', 'source', 'valid'):
            np.testing.assert_array_equal(getattr(cached, name), getattr(own, name), name)
        assert (cached.outcome, cached.reward, cached.task_text) == (own.outcome, 1.0, 'push it')
        assert cached.space == own.space
    assert isinstance(again.actions.base, np.memmap)
    with pytest.raises(ValueError, match='read-only'):
        again.actions[0] = 0.0
    assert again.episodes[2].sources == {'human': 22}


def test_only_new_bags_are_read(
    bags: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / 'cache'
    before = cache.build(bags[:2], folder)
    mapped = np.array(before.actions)
    names = read(monkeypatch)
    assert len(cache.build(bags, folder).episodes) == 4
    assert names == ['b2', 'b3']
    np.testing.assert_array_equal(before.actions, mapped)  # whoever trains goes on undisturbed
    names.clear()
    cache.build(bags, folder)
    assert names == []
    shorter = cache.build([bags[3], bags[1]], folder)
    assert names == []
    assert {Path(e.bag).name for e in shorter.episodes} == {'b1', 'b3'}
    np.testing.assert_array_equal(shorter.frames(1).actions, frames.load(bags[3]).actions)
    assert len(list(folder.glob('data-*'))) == 1
    names.clear()
    assert len(cache.build(bags, folder, FrameOptions(max_skew_s=0.2)).episodes) == 4
    assert names == ['b0', 'b1', 'b2', 'b3']


def test_a_bag_that_moved_or_changed(
    bags: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made: Any
) -> None:
    for bag in bags[:2]:
        shutil.copytree(bag, tmp_path / 'here' / bag.name)
    here = sorted((tmp_path / 'here').iterdir())
    cache.build(here, tmp_path / 'cache')
    shutil.move(tmp_path / 'here', tmp_path / 'there')
    there = sorted((tmp_path / 'there').iterdir())
    names = read(monkeypatch)
    cache.build(there, tmp_path / 'cache')
    assert names == []
    shutil.rmtree(there[1])
    made.write(there[1], made.reaching(9, 31))
    changed = cache.build(there, tmp_path / 'cache')
    assert names == ['b1']
    assert [episode.length for episode in changed.episodes] == [20, 31]
    copied = shutil.copytree(there[0], tmp_path / 'copy')
    twice = cache.build([*there, Path(copied)], tmp_path / 'cache')
    assert len(twice.episodes) == 2
    assert 'the same as' in twice.skipped[0].reason


def test_bags_of_a_single_file_are_told_apart(bags: list[Path], tmp_path: Path) -> None:
    files = [next(bag.glob('*.mcap')) for bag in bags]
    built = cache.build(files, tmp_path / 'cache')
    assert [episode.length for episode in built.episodes] == [20, 21, 22, 23]
    assert not built.skipped


def test_a_build_that_was_killed_goes_on(
    bags: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / 'cache'
    monkeypatch.setattr(cache_build, 'COMMIT_EVERY', 1)

    class Killed(BaseException):
        pass

    def kill(done: int, total: int) -> None:
        if done == 3:
            raise Killed

    with pytest.raises(Killed):
        cache.build(bags, folder, progress=kill)
    half = Cache.open(folder)
    assert len(half.episodes) == 3
    with next(folder.glob('data-*/actions.npy')).open('ab') as stream:
        stream.write(b'what was not committed')
    names = read(monkeypatch)
    whole = cache.build(bags, folder)
    assert names == ['b3']
    expected = np.concatenate([frames.load(bag).actions for bag in bags])
    np.testing.assert_array_equal(whole.actions, expected)


def test_bags_that_do_not_fit_are_named(
    bags: list[Path], tmp_path: Path, made: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    odd = made.reaching(5)
    odd.features = np.zeros((60, 0), np.float32)
    with monkeypatch.context() as patch:
        patch.setattr(made, 'FEATURES', ())
        path = made.write(tmp_path / 'odd', odd)
    built = cache.build([bags[0], path, tmp_path / 'gone'], tmp_path / 'cache')
    reasons = {Path(entry.bag).name: entry.reason for entry in built.skipped}
    assert "feature_names (), the cache has ('object.x', 'object.y')" in reasons['odd']
    assert 'gone' in reasons
    with pytest.raises(BagError, match='feature_names'):
        cache.build([bags[0], path], tmp_path / 'strict', strict=True)
    with pytest.raises(BagError, match='none of 1 bags makes frames'):
        cache.build([tmp_path / 'gone'], tmp_path / 'empty')


def test_two_builds_at_once_are_refused(bags: list[Path], tmp_path: Path) -> None:
    def second(done: int, total: int) -> None:
        with pytest.raises(BagError, match='another process'):
            cache.build(bags, tmp_path / 'cache')

    cache.build(bags[:1], tmp_path / 'cache', progress=second)


def test_a_damaged_or_foreign_cache_is_an_error(bags: list[Path], tmp_path: Path) -> None:
    folder = tmp_path / 'cache'
    with pytest.raises(BagError, match=r'no index\.json'):
        Cache.open(folder)
    cache.build(bags[:2], folder)
    index = folder / 'index.json'
    good = json.loads(index.read_text())

    def refuse(said: str, **changes: Any) -> None:
        index.write_text(json.dumps({**good, **changes}))
        with pytest.raises(BagError, match=said):
            Cache.open(folder)

    refuse('version', version=7)
    refuse('damaged', episodes=[{**good['episodes'][0], 'stop': -1}])
    refuse('damaged', layout=None)
    refuse('generation', generation='../../etc')
    camera = {**good['layout'], 'cameras': {'../../x': [1, 1]}}
    refuse('letters, digits', layout=camera)
    refuse('the index says', episodes=[{**good['episodes'][0], 'stop': 10**9}])
    index.write_text('[' * 100_000)
    with pytest.raises(BagError, match='damaged'):
        Cache.open(folder)
    index.write_text(json.dumps(good))
    array = next(folder.glob('data-*/actions.npy'))
    array.write_bytes(array.read_bytes()[:300])
    with pytest.raises(BagError, match=r'actions\.npy'):
        Cache.open(folder)
    np.save(array, np.array([{'a': 1}], object), allow_pickle=True)
    with pytest.raises(BagError, match=r'actions\.npy'):
        Cache.open(folder)


def test_a_growing_array_is_a_npy_file_all_the_time(tmp_path: Path) -> None:
    file = tmp_path / 'a.npy'
    with growing.GrowingArray(file, '<f4', (3,), 0) as array:
        array.commit()
        assert np.load(file).shape == (0, 3)
        array.append(np.ones((5, 3), np.float32))
        assert np.load(file).shape == (0, 3)
        array.commit()
        assert np.load(file).shape == (5, 3)
    assert growing.mapped(file, '<f4', (3,), 4).shape == (4, 3)
    with pytest.raises(BagError, match='the index says'):
        growing.mapped(file, '<f4', (2,), 4)
    with pytest.raises(BagError, match='shorter than its index'):
        growing.GrowingArray(file, '<f4', (3,), 6)
