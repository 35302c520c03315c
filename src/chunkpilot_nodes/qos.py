"""
Every quality of service in use, named once; which topic has which stands in docs/interfaces.md.
"""

from rclpy.qos import DurabilityPolicy, HistoryPolicy, QoSProfile, ReliabilityPolicy


def _profile(depth: int, *, reliable: bool = True, latched: bool = False) -> QoSProfile:
    return QoSProfile(
        history=HistoryPolicy.KEEP_LAST,
        depth=depth,
        reliability=ReliabilityPolicy.RELIABLE if reliable else ReliabilityPolicy.BEST_EFFORT,
        durability=DurabilityPolicy.TRANSIENT_LOCAL if latched else DurabilityPolicy.VOLATILE,
    )


RELIABLE_10 = _profile(10)  # observation, chunk, chunk_request, chunk_verdict, horizon, ...
COMMAND = _profile(1)  # command and robot topics: an old one is worth nothing
ROWS = _profile(50)  # executed_rows
EVENTS = _profile(100)  # guard/events
VERDICT = _profile(200)  # verdict, every tick
LATCHED = _profile(1, latched=True)  # state that late joiners need
KEPT = _profile(10, latched=True)  # obstacles, of publishers that keep them
IMAGES = _profile(5, reliable=False)  # pixels
SENSOR = _profile(
    10, reliable=False
)  # joint states of a driver: newest counts; matches any publisher
CLOCK = _profile(1, reliable=False)


def matching(offered: QoSProfile) -> QoSProfile:
    """Return a profile for a relay of somebody's topic; how deep it is nobody is told."""
    reliable = offered.reliability != ReliabilityPolicy.BEST_EFFORT
    latched = offered.durability == DurabilityPolicy.TRANSIENT_LOCAL
    return _profile(1 if latched else 10, reliable=reliable, latched=latched)
