"""Plan time keys the rows: it slows with the guard and stops while nothing runs."""

from bisect import bisect_right
from collections import deque

MAX_KNOTS = 512


class PlanClock:
    """
    A monotonic map from ROS time to plan time [ns], kept as knots between which it is linear.

    Its slope is the speed scale while rows run and 0 while none does: what was not run is not
    late, so a chunk that arrives after a pause loses no row that was not really consumed.
    """

    def __init__(self) -> None:
        self.plan_ns = 0
        self.now_ns = 0
        self.slope = 0.0
        self._knots: deque[tuple[int, int]] = deque(maxlen=MAX_KNOTS)

    def reset(self, now_ns: int) -> None:
        """Start over: plan time is ROS time, and stands still."""
        self._knots.clear()
        self.plan_ns = self.now_ns = now_ns
        self.slope = 0.0
        self._knots.append((now_ns, now_ns))

    def advance(self, now_ns: int, plan_ns: int, slope: float) -> None:
        """
        Set a new knot.

        :param plan_ns: not before the last one
        :param slope: expected until the next knot
        """
        before = self._knots[-2] if len(self._knots) > 1 else None
        if before is not None and _collinear(before, self._knots[-1], (now_ns, plan_ns)):
            self._knots.pop()
        self._knots.append((now_ns, plan_ns))
        self.now_ns, self.plan_ns, self.slope = now_ns, plan_ns, slope

    def at(self, ros_ns: int) -> int:
        """Return the plan time of a ROS time, past or (by the present slope) future."""
        if ros_ns >= self.now_ns:
            return self.plan_ns + round(self.slope * (ros_ns - self.now_ns))
        index = bisect_right(self._knots, (ros_ns, 1 << 63))
        if index == 0:  # older than what is kept: as if it had run at full speed
            first_ros, first_plan = self._knots[0]
            return first_plan - (first_ros - ros_ns)
        (ros_0, plan_0), (ros_1, plan_1) = self._knots[index - 1], self._knots[index]
        return plan_0 + (plan_1 - plan_0) * (ros_ns - ros_0) // max(ros_1 - ros_0, 1)

    def to_ros(self, plan_ns: int) -> int:
        """Return when a plan time is reached at the present slope (full speed while it is 0)."""
        return self.now_ns + round((plan_ns - self.plan_ns) / (self.slope or 1.0))


def _collinear(a: tuple[int, int], b: tuple[int, int], c: tuple[int, int]) -> bool:
    return (b[1] - a[1]) * (c[0] - b[0]) == (c[1] - b[1]) * (b[0] - a[0])
