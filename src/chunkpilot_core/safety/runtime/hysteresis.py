"""Alarms that neither start nor end on a single odd value (as Nav2's collision monitor does)."""


class Hysteresis:
    """On after ``trigger`` values in a row that are over, off after ``release`` that are not."""

    def __init__(self, trigger: int, release: int) -> None:
        self._trigger, self._release = trigger, release
        self.reset()

    def reset(self) -> None:
        """Be off, with nothing counted."""
        self.on = False
        self.count = 0
        """Values in a row that were over; of an alarm, since it is on."""
        self._clear = 0

    def update(self, over: bool) -> bool:
        """Take the next value; returns whether the alarm is on."""
        if over:
            self.count, self._clear = self.count + 1, 0
            self.on = self.on or self.count >= self._trigger
        else:
            self._clear += 1
            if not self.on or self._clear >= self._release:
                self.reset()
        return self.on
