"""What is what in a target of a space: masks, limits, orientations."""

from chunkpilot_core import spaces
from chunkpilot_core.smoothness import VELOCITY_KINDS
from chunkpilot_core.types import ActionSpace, Kind, Reference, Rotation
import numpy as np


class Columns:
    """What is what in a target (T,) of a space, as masks and limits of that shape."""

    def __init__(self, space: ActionSpace, reanchor_m: float, reanchor_rad: float) -> None:
        size = space.target_size
        self.commanded, self.measured, self.chunk_start = (np.zeros(size, bool) for _ in range(3))
        self.fades, self.rates, self.motion = (np.zeros(size, bool) for _ in range(3))
        self.quaternions: list[slice] = []
        self.limits = {
            name: np.full(size, np.inf)
            for name in ('max_velocity', 'max_acceleration', 'max_jerk', 'reanchor', 'fade')
        }
        references = {
            Reference.COMMANDED: self.commanded,
            Reference.MEASURED: self.measured,
            Reference.CHUNK_START: self.chunk_start,
        }
        for group, columns in spaces.target_slices(space):
            if group.kind.relative:
                references[group.reference][columns] = True
            else:
                self.fades[columns] = group.kind is not Kind.GRIPPER
                if group.target_size == group.size:  # half a cut or a release is no action
                    self.fades[columns] &= ~np.array(space.irreversible[group.start : group.stop])
            self.motion[columns] = group.kind is not Kind.GRIPPER
            self.rates[columns] = group.kind in VELOCITY_KINDS
            plain = 3 if group.kind.cartesian else group.size
            if group.rotation is not Rotation.NONE:
                self.quaternions.append(slice(columns.start + 3, columns.stop))
            target = slice(columns.start, columns.start + plain)
            for name in ('max_velocity', 'max_acceleration', 'max_jerk'):
                self.limits[name][target] = getattr(space, name)[group.start : group.start + plain]
            rate = 'max_acceleration' if group.kind in VELOCITY_KINDS else 'max_velocity'
            self.limits['fade'][columns] = min(getattr(space, rate)[group.start : group.stop])
            self.limits['fade'][target] = self.limits[rate][target]
            turning = not group.kind.cartesian and group.unit == 'rad'
            self.limits['reanchor'][target] = reanchor_rad if turning else reanchor_m
