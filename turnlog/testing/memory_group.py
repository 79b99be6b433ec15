"""The group coordinator of MemoryLog: classic protocol as the broker plays it, cooperative-sticky as the members do.

- Members that live send heartbeats by themselves; one that is frozen or closed without leaving sends none, and is removed when
  the clock passes its session timeout. A member that does not poll for `max_poll_interval_ms` leaves by itself.
- A rebalance starts a new generation. A member learns of it in its next `poll`: first it gives up what it must, then, in a
  later poll of the one that gets them, the partitions go on. Who does not poll holds up what it must give up, nothing else.
- Until it has learnt of the new generation, a member's commits are answered REBALANCE_IN_PROGRESS. Membership and generation
  are all that a commit is checked for: Kafka does not ask whose the partition is.
- A static member's place is kept until its session ends. Who joins with its instance id takes the place, partitions and
  all, without a rebalance; the former one is fenced.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from turnlog.kafka.port import LogError, NotOwner, Partition, Position, Rebalancing


@dataclass
class Member:
    """One place in the group. `held` is what it has been told to own and has not given up; generation 0 has not polled yet."""

    member_id: str
    instance_id: str | None
    generation: int = 0
    held: set[int] = field(default_factory=set)
    target: set[int] = field(default_factory=set)
    silent_since_ms: int | None = None  # no heartbeats since
    polled_ms: int = 0


class Group:
    """One group of one subscribed topic."""

    def __init__(
        self, name: str, now_ms: Callable[[], int], *, session_timeout_ms: int, max_poll_interval_ms: int
    ) -> None:
        self.name = name
        self.generation = 0
        self.members: dict[str, Member] = {}
        self.positions: dict[Partition, Position] = {}
        self.refusals: list[LogError] = []  # what the next commits are answered with
        self._now_ms = now_ms
        self._session_timeout_ms = session_timeout_ms
        self._max_poll_interval_ms = max_poll_interval_ms
        self._partitions = 0
        self._joined = 0

    # --- membership

    def join(self, instance_id: str | None, partitions: int) -> Member:
        """A new member, or the static one that comes back; the latter starts no rebalance."""
        self.tick()
        self._partitions = partitions
        self._joined += 1
        member = Member(f"{self.name}-{self._joined}", instance_id, polled_ms=self._now_ms())
        former = self._static(instance_id)
        self.members[member.member_id] = member
        if former is None:
            self.rebalance()
        else:
            del self.members[former.member_id]
            member.target = former.target
        return member

    def _static(self, instance_id: str | None) -> Member | None:
        if instance_id is None:
            return None
        return next((m for m in self.members.values() if m.instance_id == instance_id), None)

    def leave(self, member: Member) -> None:
        if self.members.get(member.member_id) is member:
            del self.members[member.member_id]
            self.rebalance()

    def tick(self) -> None:
        """Remove whose session or poll interval is over."""
        now = self._now_ms()
        gone = [m for m in self.members.values() if self._over(m, now)]
        for member in gone:
            del self.members[member.member_id]
        if gone:
            self.rebalance()

    def _over(self, member: Member, now: int) -> bool:
        silent = member.silent_since_ms is not None and now - member.silent_since_ms > self._session_timeout_ms
        return silent or now - member.polled_ms > self._max_poll_interval_ms

    def knows(self, member: Member) -> bool:
        return self.members.get(member.member_id) is member

    def fenced(self, member: Member) -> bool:
        """Whether somebody else has this member's instance id now."""
        now_there = self._static(member.instance_id)
        return now_there is not None and now_there is not member

    # --- assignment

    def rebalance(self) -> None:
        """A new generation with balanced targets that move as few partitions as can be."""
        self.generation += 1
        members = list(self.members.values())
        if not members:
            return
        base, extra = divmod(self._partitions, len(members))
        # The larger shares go to those who hold more already: fewer moves.
        by_load = sorted(members, key=lambda m: -len(m.held))
        quota = {m.member_id: base + (i < extra) for i, m in enumerate(by_load)}
        for member in members:
            member.target = set(sorted(member.held)[: quota[member.member_id]])
        taken = set().union(*(m.target for m in members))
        free = [i for i in range(self._partitions) if i not in taken]
        for member in members:
            while free and len(member.target) < quota[member.member_id]:
                member.target.add(free.pop(0))

    def to_revoke(self, member: Member) -> list[int]:
        return sorted(member.held - member.target)

    def to_assign(self, member: Member) -> list[int]:
        """What the member may take now: of its target what nobody holds any more."""
        held_by_others = set().union(*(m.held for m in self.members.values() if m is not member))
        return sorted(member.target - member.held - held_by_others)

    # --- positions

    def commit(self, member: Member | None, positions: dict[Partition, Position]) -> None:
        """Raises Rebalancing or NotOwner as a coordinator does; a commit from outside is accepted while the group is empty."""
        self.tick()
        if self.refusals:
            raise self.refusals.pop(0)
        if member is None:
            if self.members:
                raise NotOwner(f"commit of {self.name}: not a member", "UNKNOWN_MEMBER_ID")
        else:
            self._check(member)
        self.positions.update(positions)

    def _check(self, member: Member) -> None:
        if self.fenced(member):
            raise NotOwner(f"commit of {self.name}: the instance id was taken", "FENCED_INSTANCE_ID")
        if not self.knows(member):
            raise NotOwner(f"commit of {self.name}: no member {member.member_id}", "UNKNOWN_MEMBER_ID")
        if member.generation != self.generation:
            raise Rebalancing(f"commit of {self.name}: rebalance in progress", "REBALANCE_IN_PROGRESS")
