"""An imported episode as a bag, with the topics that a recorded one has."""

from collections.abc import Iterator
import heapq
from pathlib import Path
import shutil
from typing import Any

from chunkpilot_core.bags import decode
from chunkpilot_core.bags.imports.mapping import Mapping
from chunkpilot_core.bags.imports.messages import Messages
from chunkpilot_core.bags.imports.recording import Names, Picture, Recording
from chunkpilot_core.bags.writer import BagWriter, TopicQos, UNFINISHED
from chunkpilot_core.types import ActionSpace, nanoseconds, NS_PER_S, RowSource
import numpy as np

BATCH = 8  # rows of one message, as the guard sends them
SESSION = 1
EPISODE_END = 2  # EpisodeEvent.END
_TOPICS = {
    'policy/info': ('PolicyInfo', True),
    'task': ('Task', True),
    'episode': ('EpisodeEvent', True),
    'outcome': ('Outcome', True),
    'observation': ('Observation', False),
    'executed_rows': ('ExecutedRows', False),
    'observation_images': ('ObservationImages', False),
}
_Entry = tuple[int, int, str, Any]  # stamp, order among equal stamps, topic, message


class EpisodeWriter:
    """Writes episodes of one data set: one action space, one list of names."""

    def __init__(
        self, mapping: Mapping, space: ActionSpace, names: Names, messages: Messages | None = None
    ) -> None:
        self._mapping, self._space, self._names = mapping, space, names
        self._messages = messages or Messages()
        self._source = RowSource[mapping.source.upper()]

    def write(self, recording: Recording, path: Path) -> Path:
        """
        Write one bag; what a killed import left of it goes.

        :raises BagError: it exists, or the disk does not take it
        """
        shutil.rmtree(path.with_name(path.name + UNFINISHED), ignore_errors=True)
        numbers = sorted(self._numbers(recording), key=lambda entry: entry[:2])
        bag = BagWriter(path, self._messages.definitions)
        try:
            for topic, (kind, latched) in _TOPICS.items():
                if topic != 'observation_images' or self._mapping.images:
                    qos = TopicQos(latched=latched, depth=1 if latched else 10)
                    bag.add_topic(f'/{topic}', f'chunkpilot/msg/{kind}', qos)
            merged = heapq.merge(numbers, self._pictures(recording), key=lambda entry: entry[:2])
            for stamp_ns, _, topic, message in merged:
                bag.write(f'/{topic}', stamp_ns, self._messages.serialize(message))
            bag.close(
                {
                    'episode_id': recording.name,
                    'outcome': recording.outcome.name.lower(),
                    'mapping_sha256': self._mapping.sha256,
                    **recording.origin,
                }
            )
        except BaseException:  # an import that goes on writes it anew
            bag.discard()
            raise
        return path

    def _make(self, topic: str, **values: Any) -> Any:
        return self._messages.make(f'chunkpilot/msg/{_TOPICS[topic][0]}', **values)

    def _id(self, seq: int) -> Any:
        return self._messages.make('chunkpilot/msg/Id', session=SESSION, seq=seq)

    def _numbers(self, it: Recording) -> Iterator[_Entry]:
        start_ns = int(it.stamps_ns[0])
        end_ns = int(it.stamps_ns[-1]) + nanoseconds(it.dt_s)
        yield from self._begin(it, start_ns)
        yield from self._observations(it)
        yield from self._rows(it)
        yield from self._end(it, start_ns, end_ns)

    def _begin(self, it: Recording, start_ns: int) -> Iterator[_Entry]:
        header, kind = self._messages.header(start_ns), self._mapping.task.kind
        text = it.task_text or self._mapping.task.text
        task = self._make('task', header=header, id=it.name, kind=kind, text=text)
        origin = {'keys': list(it.origin), 'values': list(it.origin.values())}
        yield start_ns, 0, 'policy/info', self._info(it, start_ns)
        yield start_ns, 1, 'task', task
        yield start_ns, 2, 'episode', self._event(it, start_ns, decode.EPISODE_START, **origin)

    def _end(self, it: Recording, start_ns: int, end_ns: int) -> Iterator[_Entry]:
        outcome = self._make(
            'outcome',
            header=self._messages.header(end_ns),
            episode_id=it.name,
            outcome=int(it.outcome),
            reward=float(it.reward),
            source='import',
            duration_s=(end_ns - start_ns) / NS_PER_S,
        )
        yield end_ns, 7, 'outcome', outcome
        yield end_ns, 8, 'episode', self._event(it, end_ns, EPISODE_END)

    def _event(self, it: Recording, stamp_ns: int, event: int, **values: Any) -> Any:
        return self._make(
            'episode',
            header=self._messages.header(stamp_ns),
            event=event,
            episode_id=it.name,
            task_id=it.name,
            task_kind=self._mapping.task.kind,
            **values,
        )

    def _info(self, it: Recording, stamp_ns: int) -> Any:
        space = self._space
        groups = [
            self._messages.make(
                'chunkpilot/msg/ActionGroup',
                **{
                    name: getattr(group, name)
                    for name in ('name', 'start', 'stop', 'frame', 'names', 'unit', 'scale')
                },
                offset=group.offset,
                kind=group.kind.value,
                reference=group.reference.value,
                rotation=group.rotation.value,
            )
            for group in space.groups
        ]
        bounds = {
            name: getattr(space, name)
            for name in ('lower', 'upper', 'max_velocity', 'max_acceleration', 'max_jerk')
        }
        said = self._messages.make(
            'chunkpilot/msg/ActionSpace',
            hash=space.hash,
            groups=groups,
            irreversible=space.irreversible,
            **bounds,
        )
        return self._make(
            'policy/info',
            header=self._messages.header(stamp_ns),
            policy='import',
            name='import',
            state='imported',
            task_kind=self._mapping.task.kind,
            space=said,
            horizon=1,
            dt=float(it.dt_s),
            starts_at='observation',
        )

    def _observations(self, it: Recording) -> Iterator[_Entry]:
        names = self._names
        for i, stamp_ns in enumerate(it.stamps_ns.tolist()):
            yield (
                stamp_ns,
                3,
                'observation',
                self._make(
                    'observation',
                    header=self._messages.header(stamp_ns, 'world'),
                    id=self._id(i + 1),
                    oldest=self._messages.time(stamp_ns),
                    task_id=it.name,
                    state_names=names.state,
                    state=it.state[i],
                    feature_names=names.features,
                    features=it.features[i],
                    goal_names=names.goal,
                    goal=it.goal[i],
                ),
            )

    def _rows(self, it: Recording) -> Iterator[_Entry]:
        ends = it.stamps_ns + nanoseconds(it.dt_s)
        for number, first in enumerate(range(0, len(it), BATCH), start=1):
            part = slice(first, first + BATCH)
            stamps = ends[part].tolist()
            yield (
                stamps[-1],
                6,
                'executed_rows',
                self._make(
                    'executed_rows',
                    header=self._messages.header(stamps[0]),
                    id=self._id(number),
                    task_id=it.name,
                    episode_id=it.name,
                    first_row=first,
                    dt=float(it.dt_s),
                    action_size=self._space.size,
                    rows=it.actions[part],
                    sources=np.full(len(stamps), self._source),
                    stamps=[self._messages.time(stamp) for stamp in stamps],
                    space_hash=self._space.hash,
                ),
            )

    def _pictures(self, it: Recording) -> Iterator[_Entry]:
        """Iterate over images, each with the first observation that is not before it."""
        for picture in it.images():
            number = int(np.searchsorted(it.stamps_ns, picture.stamp_ns, side='left'))
            if number < len(it):
                yield (
                    int(it.stamps_ns[number]),
                    4,
                    'observation_images',
                    self._image(picture, number, int(it.stamps_ns[number])),
                )

    def _image(self, picture: Picture, number: int, stamp_ns: int) -> Any:
        image = self._messages.make(
            'sensor_msgs/msg/CompressedImage',
            header=self._messages.header(picture.stamp_ns, picture.camera),
            format=picture.format,
            data=np.frombuffer(picture.data, np.uint8),
        )
        return self._make(
            'observation_images',
            header=self._messages.header(stamp_ns, 'world'),
            observation_id=self._id(number + 1),
            names=[picture.camera],
            images=[image],
        )
