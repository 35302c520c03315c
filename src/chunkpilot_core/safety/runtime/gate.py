"""
What can't be undone waits: an action happens only as the policy of its channel allows.

Channels are the gripper (opening it while it holds something, and doing so with nothing known to
be under it) and whatever else the action space marks as irreversible. What is withheld keeps its
last value, everything else in the command goes on. Hands (teleoperation) are not gated: whoever is
there has decided.
"""

from dataclasses import dataclass, field, replace

from chunkpilot_core.safety.base import Finding, Measured, NAN, Situation
from chunkpilot_core.safety.runtime.arbiter import POLICY, priority_of
from chunkpilot_core.safety.runtime.gate_config import GateConfig, POLICIES
from chunkpilot_core.safety.runtime.gate_wishes import Allowed, GRIP_S, irreversible, Wish
from chunkpilot_core.types import (
    Command,
    CommandGroup,
    F64,
    Id,
    Kind,
    nanoseconds,
    Reaction,
    seconds,
)
import numpy as np

STILL = 0.01  # [m/s] of the width of fingers that something stops
AGAIN_S = 0.1  # between wishes for another chunk; sooner ones would not be told
LETS_GO = 0.001  # [m] a width so much below the measured one does not squeeze any more


@dataclass(slots=True)
class _Waiting:
    """An action that was asked for, and what has been decided about it."""

    wish: Wish
    since_ns: int
    decided: bool | None = None
    agreed: list[int] = field(default_factory=list)  # stamps of observations, chunk after chunk
    judged_ns: int = -1  # when the newest chunk came that was asked
    replanned: Id = field(default_factory=Id)  # chunk for which another one was asked for
    replanned_ns: int = 0
    decided_ns: int = 0
    allowed: Allowed | None = None  # of masked columns


class Gate:
    """Decides command by command; told the time by the situation."""

    Config = GateConfig

    def __init__(self, config: GateConfig | None, situation: Situation) -> None:
        self.config = config or self.Config()
        self.active = (
            self.config.opening,
            self.config.unsupported,
            self.config.masked,
        ) != ('allow',) * 3
        self._situation = situation
        self.news: list[Finding] = []
        """What happened since it was read last; ``check`` says what: gate_waiting and so on."""
        self._grip_since_ns = 0
        self.reset()

    def reset(self) -> None:
        """Begin anew: the arm is armed. What it held before it holds on to, if it squeezes it."""
        self._slow_since_ns = 0
        self._tool: F64 | None = None
        self.drop()

    def drop(self) -> None:
        """Forget what waits and what was allowed: what was planned is void."""
        self._waiting: dict[str, _Waiting] = {}
        self._anchors: dict[str, F64] = {}  # of masked groups: where no action had begun

    @property
    def waits_for(self) -> tuple[str, ...]:
        """Channels of which an action waits."""
        return tuple(name for name, entry in self._waiting.items() if entry.decided is None)

    def watch(self, position: F64, tool: F64) -> None:
        """
        Look at the grip and the motion, once a tick.

        :param position: joints sent last, shape (J,)
        :param tool: where that brings the tool, shape (3,)
        """
        situation, now_ns = self._situation, self._situation.steady_ns
        passed_s = seconds(now_ns - situation.last_steady_ns)
        moved = 0.0 if self._tool is None else float(np.linalg.norm(tool - self._tool))
        self._tool = tool
        if moved > self.config.dwell_speed * passed_s:
            self._slow_since_ns = now_ns
        if situation.measured is not None:
            self._watch_grip(situation.measured, position[situation.limiter.n_arm :])

    def _watch_grip(self, measured: Measured, fingers: F64) -> None:
        """
        Something is held when the fingers stood still, wider than sent, and as long as they do.

        What is held may push both of them aside: only their width counts.
        """
        n, now_ns = self._situation.limiter.n_arm, self._situation.steady_ns
        stopped = (measured.positions[n:] - fingers).sum() > self.config.grip_m
        still = abs(measured.velocities[n:].sum()) < STILL
        if not stopped or not (still or self._holds):
            self._grip_since_ns = 0
        elif not self._grip_since_ns:
            self._grip_since_ns = now_ns

    def judge(
        self, command: Command, position: F64, fingers: F64
    ) -> tuple[Command, list[Finding]]:
        """
        Return the command with what may not happen (yet) at its last value, and what is withheld.

        :param position: joints sent last, shape (J,)
        :param fingers: finger targets in force, shape (J - n,)
        """
        if not self.active or priority_of(command.source) > POLICY:
            return command, []
        groups, found = list(command.groups), []
        for i, group in enumerate(groups):
            wish = self._wish(group, command, position, fingers)
            if wish is None:
                self._withdraw(group, fingers)
            elif not self._allowed(wish):
                groups[i] = replace(
                    group, values=wish.instead, velocity=np.zeros(group.velocity.size)
                )
                found += self._objections(wish)
        return (replace(command, groups=tuple(groups)) if found else command), found

    def approve(self, channel: str, approved: bool, operator: str = '') -> tuple[bool, str]:
        """
        Answer for a human.

        :param channel: what waits, '' for the only one that does
        :returns: whether something was decided, and what in words
        """
        asking = [
            name
            for name, entry in self._waiting.items()
            if entry.decided is None and entry.wish.policy == 'human'
        ]
        if not channel and len(asking) == 1:
            channel = asking[0]
        if channel not in asking:
            waits = f'waiting: {", ".join(asking)}' if asking else 'nothing waits'
            return False, f'{channel or "no channel"!r} does not wait for approval; {waits}'
        entry = self._waiting[channel]
        who = f' by {operator}' if operator else ''
        self._decide(entry, approved, f'{"approved" if approved else "denied"}{who}')
        return True, f'{channel}: {"approved" if approved else "denied"}'

    # ---- what is asked for ----------------------------------------------------------------------

    def _wish(
        self, group: CommandGroup, command: Command, position: F64, fingers: F64
    ) -> Wish | None:
        """Return what a group asks for that can't be undone and is gated, None for nothing."""
        if group.kind is not Kind.GRIPPER:
            return self._masked(group, command, position)
        measured = self._situation.measured
        policy = self._opening_policy()
        if policy == 'allow' or measured is None or not self._holds:
            return None
        asked, last = float(group.values[0]), float(fingers.sum())
        width = float(measured.positions[self._situation.limiter.n_arm :].sum())
        if asked <= max(width - LETS_GO, last):
            return None
        what = f'opening {group.name} to {asked:.4f} m while it holds {width:.4f} m'
        if not self._supported:
            what += ' with nothing known under it'
        return Wish(group.name, policy, what, asked, last, np.array([last]), width - LETS_GO)

    def _masked(self, group: CommandGroup, command: Command, position: F64) -> Wish | None:
        """Return the same of a group that is no gripper; it begins where the last one ended."""
        if self.config.masked == 'allow':
            return None
        said = group, command, self._situation, position, self.config, self._anchors
        wish, entry = irreversible(*said), self._waiting.get(group.name)
        if wish is None or wish.at is None or entry is None or not entry.decided:
            return wish
        if not self._expired(entry) and not self._over(entry, wish):
            return wish
        del self._waiting[group.name]
        self._anchors[group.name] = wish.at
        return irreversible(*said)

    def _over(self, entry: _Waiting, wish: Wish) -> bool:
        now_ns = self._situation.steady_ns
        entry.allowed = entry.allowed or Allowed(wish, now_ns)
        return entry.allowed.over(wish, now_ns, self.config.tolerance)

    def _expired(self, entry: _Waiting) -> bool:
        """Whether what was allowed is so no longer."""
        since_s = seconds(self._situation.steady_ns - entry.decided_ns)
        return bool(entry.decided) and since_s > self.config.allowed_s

    @property
    def _holds(self) -> bool:
        since_ns = self._grip_since_ns
        return bool(since_ns) and self._situation.steady_ns - since_ns >= nanoseconds(GRIP_S)

    @property
    def _supported(self) -> bool:
        if self._tool is None:
            return False
        height = float(self._tool[2])
        return any(h <= height <= h + self.config.support_gap_m for h in self.config.supports_m)

    def _opening_policy(self) -> str:
        config = self.config
        names = (config.opening, config.opening if self._supported else config.unsupported)
        return max(names, key=POLICIES.index)

    def _withdraw(self, group: CommandGroup, fingers: F64) -> None:
        """Forget an action that is not asked for any more."""
        entry = self._waiting.get(group.name)
        if entry is None:
            return
        grip = group.kind is Kind.GRIPPER and self._holds
        begun = group.values[0] > entry.wish.last + LETS_GO  # else it is closed again, or still
        on = grip and begun and group.values[0] >= fingers.sum() and not self._expired(entry)
        if entry.decided and on:
            return  # allowed, and still on its way
        del self._waiting[group.name]
        if entry.decided is None:
            self._tell('withdrawn', entry.wish, f'{entry.wish.what}: not asked for any more')

    # ---- whether it may happen ------------------------------------------------------------------

    def _allowed(self, wish: Wish) -> bool:
        entry = self._waiting.get(wish.channel)
        if entry is None or entry.wish.policy != wish.policy or self._expired(entry):
            entry = self._waiting[wish.channel] = _Waiting(wish, self._situation.steady_ns)
        entry.wish = wish
        if entry.decided is None:
            waits_for = getattr(self, f'_{wish.policy}')(entry)
            if entry.decided is None:
                self._tell('waiting', wish, f'{wish.what}: waits for {waits_for}')
        return bool(entry.decided)

    def _confirm_n(self, entry: _Waiting) -> str:
        self._ask_chunks(entry)
        agree, needed = len(entry.agreed), self.config.confirmations
        if agree >= needed:
            self._decide(entry, True, f'{agree} chunks in a row agree')
        return f'{needed} chunks in a row to agree, {agree} do'

    def _ask_chunks(self, entry: _Waiting) -> None:
        """Count the chunks in a row that want it now, by the observations they rest on."""
        for heard in self._situation.chunks:
            news = heard.received_ns > entry.judged_ns
            if not news and heard is not self._situation.chunks[-1]:
                continue
            stamp_ns = heard.chunk.observation_stamp_ns
            if entry.wish.wanted_by(heard, self._situation, self.config.agreement_s):
                if stamp_ns not in entry.agreed:
                    entry.agreed.append(stamp_ns)
            elif news:
                entry.agreed.clear()
            entry.judged_ns = max(entry.judged_ns, heard.received_ns)

    def _dwell(self, entry: _Waiting) -> str:
        since_ns = max(entry.since_ns, self._slow_since_ns)
        slow_s = seconds(self._situation.steady_ns - since_ns)
        if slow_s >= self.config.dwell_s:
            self._decide(entry, True, f'the tool has stood for {slow_s:.2f} s')
        return (
            f'the tool to be slower than {self.config.dwell_speed:g} m/s '
            f'for {self.config.dwell_s:g} s, it is for {slow_s:.2f} s'
        )

    def _human(self, entry: _Waiting) -> str:
        left_s = self.config.approve_s - seconds(self._situation.steady_ns - entry.since_ns)
        if left_s <= 0.0:
            self._decide(entry, False, f'nobody approved within {self.config.approve_s:g} s')
        return f'guard/approve of channel {entry.wish.channel!r}, {max(left_s, 0.0):.1f} s left'

    def _deny(self, entry: _Waiting) -> str:
        self._decide(entry, False, 'never allowed here')
        return ''

    def _decide(self, entry: _Waiting, allowed: bool, why: str) -> None:
        entry.decided, entry.decided_ns = allowed, self._situation.steady_ns
        self._tell('allowed' if allowed else 'denied', entry.wish, f'{entry.wish.what}: {why}')

    def _objections(self, wish: Wish) -> list[Finding]:
        """Return what the guard reports of a withheld action, and what it asks for meanwhile."""
        entry, config = self._waiting[wish.channel], self.config
        word = 'denied' if entry.decided is False else 'withheld'
        found = [
            Finding(
                Reaction.CLAMP,
                f'{wish.what}: {word} ({wish.policy})',
                wish.channel,
                wish.asked,
                wish.last,
                check='gate',
            )
        ]
        if entry.decided is False:
            return found
        if config.waiting_scale < 1.0:
            reason = f'{wish.what}: the rest waits, too'
            slow = config.waiting_scale
            found.append(Finding(Reaction.SLOW, reason, wish.channel, check='gate', scale=slow))
        if wish.policy != 'deny' and self._replan_due(entry):
            reason = f'{wish.what}: another chunk is to confirm it'
            newest = self._situation.chunks[-1].chunk.id
            found.append(
                Finding(Reaction.REPLAN, reason, wish.channel, check='gate', chunk_id=newest)
            )
        return found

    def _replan_due(self, entry: _Waiting) -> bool:
        """Whether another chunk is to be asked for: old rows go stale while something waits."""
        chunks, config = self._situation.chunks, self.config
        if not chunks:
            return False
        newest, now_ns = chunks[-1], self._situation.now_ns
        asked_s = seconds(now_ns - entry.replanned_ns)
        old_s = seconds(now_ns - max(newest.received_ns, entry.replanned_ns))
        news = entry.wish.policy == 'confirm_n' and entry.replanned != newest.chunk.id
        if not (news and asked_s >= AGAIN_S) and old_s < config.replan_s:
            return False
        entry.replanned, entry.replanned_ns = newest.chunk.id, now_ns
        return True

    def _tell(self, what: str, wish: Wish, reason: str) -> None:
        value = NAN if np.isnan(wish.asked) else wish.asked
        self.news.append(
            Finding(Reaction.CLAMP, reason, wish.channel, value, wish.last, check=f'gate_{what}')
        )
