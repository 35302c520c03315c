"""A plan that takes over early begins exactly when it is told to, to the nanosecond."""

from chunkpilot_core import spaces
from chunkpilot_core.execution.fixed import Fixed
from chunkpilot_core.execution.runtime.motion import Motion
from chunkpilot_core.execution.runtime.plan import lay
from chunkpilot_core.execution.runtime.queue import PlanQueue
from chunkpilot_core.execution.runtime.settings import ExecutionConfig
from chunkpilot_core.types import ActionChunk, HorizonDecision, Id
from hypothesis import given
from hypothesis import strategies as st
import numpy as np
import pytest

SPACE = spaces.ee_delta_space()
DT_NS = 40_000_000
NOW_NS = 1_800_000_000_000_000_000


def plan_of(start_ns: int, plan_ns: int, seq: int = 1, rows: int = 8, horizon: int = 4):
    chunk = ActionChunk(
        Id(1, seq), Id(2, seq), 1, 't', Id(3, seq), start_ns, start_ns, 0.04,
        np.full((rows, 4), 0.1, np.float32), SPACE.hash, 'test', 1,
    )  # fmt: skip
    decision = HorizonDecision(chunk.id, 'fixed', horizon, horizon, 'fixed')
    return lay(chunk, start_ns, plan_ns, decision, 10.0)


@given(st.integers(-20 * DT_NS, 20 * DT_NS), st.integers(0, 20 * DT_NS))
def test_it_begins_at_once_and_has_something_to_run(offset_ns: int, wait_ns: int) -> None:
    plan = plan_of(NOW_NS + offset_ns, NOW_NS)
    plan.begin_now(NOW_NS + wait_ns)
    assert plan.begun_ns == NOW_NS + wait_ns
    assert plan.end_ns > plan.begun_ns
    assert 0 <= plan.first < plan.chunk.horizon
    # the row that begins is the one under way, but for a thousandth of a row
    assert plan.row_ns(plan.first) <= plan.begun_ns


@pytest.mark.timeout(20)
@pytest.mark.parametrize('gap_ns', [1, 39, 39_999, 40_000, 40_001, 1_000_000])
def test_an_old_plan_that_ends_just_before_a_row_of_the_new_one_is_left(gap_ns: int) -> None:
    """Seen on a robot clock: the new plan waited for a boundary 39 us after the old one's end."""
    motion = Motion(SPACE, ExecutionConfig())
    queue = PlanQueue(SPACE, Fixed(Fixed.Config(horizon=4)), motion, ExecutionConfig())
    queue.reset_clock(NOW_NS)
    measured = np.zeros(4)
    queue.push(plan_of(NOW_NS, NOW_NS, 1))
    now_ns = NOW_NS
    for tick in range(1, 40):
        now_ns += 10_000_000
        if tick == 14:  # 2 rows late of a chunk whose boundaries lie `gap` after those of the old
            queue.push(plan_of(NOW_NS + 2 * DT_NS + gap_ns, now_ns, 2))
        queue.advance(now_ns, 1.0, 10_000_000, measured)
        queue.target(now_ns)
    assert queue.active is None
    assert queue.count.rows_run == pytest.approx(4 + 4 - 2, abs=0.1)
