"""Which irreversible actions are gated, and how."""

from dataclasses import dataclass

from chunkpilot_core.config import option

POLICIES = ('allow', 'confirm_n', 'dwell', 'human', 'deny')  # ever stricter


@dataclass(frozen=True)
class GateConfig:
    """Policy per channel, and what the policies mean."""

    opening: str = option(
        'allow', 'opening the gripper while it holds something', choices=POLICIES
    )
    unsupported: str = option(
        'allow',
        'the same with nothing known to be under it; the stricter one counts',
        choices=POLICIES,
    )
    masked: str = option(
        'allow',
        "other columns that the policy's action space marks as irreversible",
        choices=POLICIES,
    )
    waiting_scale: float = option(
        0.05,
        'speed of the rest of the action meanwhile, which mostly counts on what waits; 1 = it '
        'goes on; 0 is not allowed, as no other row would ever come',
        min=0.01,
        max=1.0,
    )
    confirmations: int = option(
        3,
        'confirm_n: newest chunks in a row, of different observations, that want it now',
        min=1,
        max=4,
    )
    agreement_s: float = option(
        0.3, 'confirm_n: so much later still counts as now', unit='s', min=0.0, max=2.0
    )
    dwell_speed: float = option(
        0.01, 'dwell: the tool is slower than this', unit='m/s', min=0.0001, max=1.0
    )
    dwell_s: float = option(0.3, 'dwell: for so long', unit='s', min=0.0, max=60.0)
    approve_s: float = option(
        20.0, 'human: guard/approve within this time, else denied', unit='s', min=0.1, max=3600
    )
    allowed_s: float = option(
        5.0,
        'what was allowed is for one action, and for so long at most; then it waits anew',
        unit='s',
        min=0.1,
        max=3600,
    )
    replan_s: float = option(
        0.5, 'while waiting, chunks are asked for at least so often', unit='s', min=0.1, max=60
    )
    grip_m: float = option(
        0.004,
        'fingers that stand still so much wider than sent hold something',
        unit='m',
        min=0.0005,
        max=0.1,
    )
    supports_m: tuple[float, ...] = option(
        (0.0,), 'heights of surfaces on which things may be put', unit='m', min=-10.0, max=10.0
    )
    support_gap_m: float = option(
        0.05, 'the tool is over a surface up to this far above it', unit='m', min=0.0, max=1.0
    )
    tolerance: float = option(
        0.001, 'masked columns: a smaller change, in all, is none', unit='rad, m', min=0.0, max=1.0
    )
