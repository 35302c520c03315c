"""Which cases are measured: a short set for every day, and the table."""

from collections.abc import Iterator

from benchmarks.execution.reference import Case

HORIZONS = (50, 20, 16, 10)
LATENCIES_S = (0.1, 0.3, 0.6, 1.0, 1.5)
COVERED = ((50, 0.1), (50, 0.3), (50, 0.6), (20, 0.1), (20, 0.3), (16, 0.1), (10, 0.1))
JITTER = 1.0 / 3.0  # of the latency
NOISE = 0.1
COLD_S = 1.0
BELOW_A_ROW_S = 0.295  # LeRobot rounds its delay up to rows: 0.3 s and a little are ten of them

CHUNKPILOT, ASYNC, RTC = 'chunkpilot', 'lerobot_async', 'lerobot_rtc'
EXTENDING = ('upcycling', 'auto')  # start from half of the chunk as their base horizon
DEGREES, RADIANS = 'weighted_average/degrees', 'weighted_average/radians'


def chosen(systems: tuple[str, ...], *, full: bool) -> list[Case]:
    """Return the cases of the systems that can be measured here, in the order of the table."""
    sources = {
        CHUNKPILOT: (_chunkpilot, _chunkpilot_full),
        ASYNC: (_async, _async_full),
        RTC: (_rtc, _rtc_full),
    }
    return [case for system in systems for case in sources[system][full]()]


def _jittered(system: str, strategy: str, horizon: int, latency_s: float, **more: int) -> Case:
    return Case(system, strategy, horizon, latency_s, round(JITTER * latency_s, 4), **more)


def _noisy(system: str, strategy: str, horizon: int, latency_s: float, **more: int) -> Case:
    return Case(system, strategy, horizon, latency_s, noise=NOISE, **more)


def _cold(system: str, strategy: str, horizon: int, latency_s: float) -> Case:
    return Case(system, strategy, horizon, latency_s, cold_start_s=COLD_S)


def _chunkpilot() -> Iterator[Case]:
    name = CHUNKPILOT
    for horizon, latency_s in ((50, 0.1), (50, 0.3), (50, 0.6), (20, 0.3), (16, 0.1), (10, 0.1)):
        yield Case(name, 'fixed', horizon, latency_s)
    for horizon, latency_s in ((50, 1.0), (16, 0.3)):  # more than the horizon covers
        yield Case(name, 'fixed', horizon, latency_s)
        yield Case(name, 'fixed', horizon, latency_s, in_flight=2)
    yield _jittered(name, 'fixed', 50, 0.3)
    yield _noisy(name, 'fixed', 50, 0.3)
    yield _cold(name, 'fixed', 50, 0.3)
    yield Case(name, 'fixed/degrees', 50, 0.3)
    yield Case(name, 'upcycling', 50, 0.3)


def _chunkpilot_full() -> Iterator[Case]:
    name = CHUNKPILOT
    for in_flight in (1, 2):
        for horizon in HORIZONS:
            for latency_s in LATENCIES_S:
                yield Case(name, 'fixed', horizon, latency_s, in_flight=in_flight)
                yield _jittered(name, 'fixed', horizon, latency_s, in_flight=in_flight)
    for horizon, latency_s in COVERED:
        yield _noisy(name, 'fixed', horizon, latency_s)
        yield _cold(name, 'fixed', horizon, latency_s)
        yield Case(name, 'upcycling', horizon, latency_s)
    for in_flight in (1, 2):
        for horizon, latency_s in ((50, 1.0), (50, 1.5), (16, 0.3), (10, 0.3)):
            yield Case(name, 'fixed/time', horizon, latency_s, in_flight=in_flight)
    yield Case(name, 'fixed/degrees', 50, 0.3)
    yield Case(name, 'fixed/degrees', 16, 0.1)
    yield Case(name, 'fixed', 50, BELOW_A_ROW_S)
    for strategy in ('auto', 'temporal_ensemble', 'median_ensemble', 'vote'):
        yield Case(name, strategy, 50, 0.3)
        yield _noisy(name, strategy, 50, 0.3)


def _async() -> Iterator[Case]:
    for strategy in (DEGREES, RADIANS):
        for latency_s in (0.3, 1.0):
            yield Case(ASYNC, strategy, 50, latency_s)
    yield Case(ASYNC, DEGREES, 16, 0.3)
    yield _noisy(ASYNC, DEGREES, 50, 0.3)


def _async_full() -> Iterator[Case]:
    for strategy in (DEGREES, RADIANS):
        for latency_s in LATENCIES_S:
            yield Case(ASYNC, strategy, 50, latency_s)
    yield from _varied(ASYNC, DEGREES)


def _rtc() -> Iterator[Case]:
    for horizon, latency_s in ((50, 0.3), (50, 1.0), (16, 0.3)):
        yield Case(RTC, 'guided', horizon, latency_s)
    yield _noisy(RTC, 'guided', 50, 0.3)
    yield _cold(RTC, 'guided', 50, 0.3)


def _rtc_full() -> Iterator[Case]:
    for latency_s in LATENCIES_S:
        yield Case(RTC, 'guided', 50, latency_s)
    yield from _varied(RTC, 'guided')


def _varied(system: str, strategy: str) -> Iterator[Case]:
    for horizon in HORIZONS[1:]:
        yield Case(system, strategy, horizon, 0.3)
    yield Case(system, strategy, 50, BELOW_A_ROW_S)
    yield _jittered(system, strategy, 50, 0.3)
    yield _noisy(system, strategy, 50, 0.3)
    yield _cold(system, strategy, 50, 0.3)
