"""What can be set about the execution of any strategy."""

from dataclasses import dataclass

from chunkpilot_core.config import option


@dataclass(frozen=True)
class ExecutionConfig:
    """Timing, merges and what happens when rows run out."""

    period_s: float = option(0.01, 'control period', unit='s', min=0.001, max=1.0)
    starvation: str = option(
        'decelerate',
        'when no row is due: decelerate and hold; hold at once; late = run the rows beyond '
        'the horizon first; stretch = slow down so that the rows last until the answer',
        choices=('decelerate', 'hold', 'late', 'stretch'),
    )
    stop_acceleration: float = option(
        0.5, 'of the acceleration limits, for decelerate', min=0.01, max=1.0
    )
    min_stretch: float = option(0.3, 'slowest speed that stretch goes to', min=0.05, max=1.0)
    in_flight: int = option(
        1,
        'requests that may wait for an answer at a time; 2 for a policy that serves several at '
        'once, where the horizon is less than twice the delay or the delay varies',
        min=1,
        max=2,
    )
    margin: float = option(
        0.25,
        'asked for earlier than the delay quantile, as a fraction of it',
        min=0.0,
        max=10.0,
    )
    margin_ticks: int = option(
        2, 'asked for earlier by at least this many control periods', min=0, max=100
    )
    alignment: str = option(
        'executed',
        'which rows are late: executed = those whose time the plan before has run, so that '
        'nothing is skipped while the arm rests; time = those whose time is over, for scenes '
        'that move on by themselves',
        choices=('executed', 'time'),
    )
    delay_quantile: float = option(0.95, 'quantile of the delay to plan with', min=0.5, max=1.0)
    delay_window: int = option(64, 'answers that the quantile is taken of', min=2, max=4096)
    initial_delay_s: float = option(
        0.1, 'delay assumed until the first answer', unit='s', min=0.0, max=60.0
    )
    request_timeout_s: float = option(
        2.0, 'after this the policy is asked again', unit='s', min=0.05, max=600.0
    )
    retry_s: float = option(
        0.1, 'pause before asking again after a refused answer', unit='s', min=0.0, max=60.0
    )
    merge: str = option(
        'offset',
        'how an absolute plan takes over: offset = begin where the old one is, and let the '
        'difference fade; linear or exponential = weighted mean of both plans',
        choices=('offset', 'linear', 'exponential'),
    )
    blend_rows: int = option(
        8, 'rows over which an absolute plan fades into the next; 0 = none', min=0, max=100
    )
    blend_speed: float = option(
        0.5,
        'for offset: speed at which a large difference fades, of the velocity limits; it then '
        'takes more rows',
        min=0.01,
        max=1.0,
    )
    reanchor_m: float = option(
        0.1,
        'gap between commanded and measured from which relative rows count from the measured',
        unit='m',
        min=0.001,
        max=10.0,
    )
    reanchor_rad: float = option(0.2, 'the same for joints', unit='rad', min=0.001, max=10.0)
    replan_samples: int = option(
        1,
        'samples asked for, of policies that offer them, when the guard wants another chunk: '
        'predict_node names the safest where the chunk itself is bad again',
        min=1,
        max=64,
    )
    trace_ticks: int = option(
        6000, 'ticks of an episode that are traced for plots', min=1, max=1_000_000
    )
