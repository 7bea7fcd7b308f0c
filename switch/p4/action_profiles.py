"""Action profiles and selectors: actions that several entries, of several tables, share by number.

Rules
-----
* A member is an action with its data. A group has members with weights; a member counts as often as its weight says.
* A packet that finds an entry with a group gets the member that the selector's hash chooses, modulo the sum of the
  weights, in order of the members' numbers. P4 leaves that choice to the target.
* A member whose watched port is down does not take part, as if its weight were 0, until the port is up again. A group
  without participating members does nothing.
* A member or a group that is in use cannot be removed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from fanin.switch.p4.actions import ActionFacts, Group, Member, Share, TableError, TableProblem, Watch, nothing
from fanin.switch.p4.tables import Entry

MAX_WEIGHT = 1 << 16


NO_MEMBER = Member(0, "", (), nothing)
"""The member that stands for a group without members."""
NO_WATCHES: Mapping[int, Watch] = {}


@dataclass(slots=True)
class ActionProfile:
    """Members and groups by number. `P_n` in compiled code."""

    name: str
    symbol: str
    max_size: int
    selector: str | None = None
    """Name of the function that hashes the selector's input; None: a profile without groups."""
    actions: dict[str, ActionFacts] = field(default_factory=dict)
    """Actions of the profile's tables."""
    tables: list[str] = field(default_factory=list)
    hashed: Callable[..., int] | None = None
    members: dict[int, Member] = field(default_factory=dict)
    groups: dict[int, Group] = field(default_factory=dict)
    watchers: list[Callable[[Member | Group | None], None]] = field(default_factory=list)
    """Functions called with a member or a group that has changed; with None if any may have (switch/p4/native.py)."""
    _down: frozenset[int] = frozenset()

    @property
    def down(self) -> frozenset[int]:
        """Ports that are down, so that members which watch them get no packets."""
        return self._down

    @down.setter
    def down(self, ports: frozenset[int]) -> None:
        self._down = ports
        self._tell(None)

    def _tell(self, changed: Member | Group | None) -> None:
        for watcher in self.watchers:
            watcher(changed)

    def chosen(self, entry: Entry, f: list[int], k: object) -> Entry | Member:
        """The member that runs for a packet that has found `entry`; the entry itself if it names none (a miss)."""
        target = entry.target
        if target is None:
            return entry
        if isinstance(target, Member):
            return target
        assert isinstance(target, Group)
        spread = target.spread(self.down)
        if not spread:
            return NO_MEMBER
        return spread[self.hashed(f, k) % len(spread) if self.hashed is not None else 0]

    def made(self, number: int, action: str, data: tuple[int, ...]) -> Member:
        """A new member, not yet in the profile. TableError for an action that no table of the profile has."""
        facts = self.actions.get(action)
        if facts is None:
            raise TableError(TableProblem.INVALID, f"action profile {self.name} has no action {action!r}")
        facts.check(data)
        return Member(number, action, data, facts.run)

    def insert_member(self, number: int, action: str, data: tuple[int, ...]) -> None:
        """Add a member to the profile."""
        if number in self.members:
            raise TableError(TableProblem.EXISTS, f"action profile {self.name} has a member {number} already")
        if len(self.members) >= self.max_size:
            raise TableError(TableProblem.FULL, f"action profile {self.name} is full: it has {self.max_size} members")
        self.members[number] = self.made(number, action, data)

    def modify_member(self, number: int, action: str, data: tuple[int, ...]) -> None:
        """Give a member another action; entries and groups that name it use the new one from now on."""
        member, made = self.member(number), self.made(number, action, data)
        member.action, member.data, member.run = made.action, made.data, made.run
        self._tell(member)

    def delete_member(self, number: int, used: bool) -> None:
        """Remove a member; `used`: an entry names it."""
        member = self.member(number)
        if used or any(member is each.member for group in self.groups.values() for each in group.shares):
            raise TableError(TableProblem.IN_USE, f"member {number} of action profile {self.name} is in use")
        del self.members[number]

    def member(self, number: int) -> Member:
        """The member of that number."""
        if number not in self.members:
            raise TableError(TableProblem.NOT_FOUND, f"action profile {self.name} has no member {number}")
        return self.members[number]

    def group(self, number: int) -> Group:
        """The group of that number."""
        if number not in self.groups:
            raise TableError(TableProblem.NOT_FOUND, f"action profile {self.name} has no group {number}")
        return self.groups[number]

    def gathered(
        self, number: int, weights: Mapping[int, int], max_size: int, watches: Mapping[int, Watch] = NO_WATCHES
    ) -> Group:
        """A new group, not yet in the profile, of members by number, with their weights and watched ports."""
        if self.selector is None:
            raise TableError(TableProblem.INVALID, f"action profile {self.name} has no selector, and so no groups")
        shares = tuple(Share(self.member(each), weight, watches.get(each)) for each, weight in weights.items())
        if any(not 0 < weight <= MAX_WEIGHT for weight in weights.values()) or sum(weights.values()) > MAX_WEIGHT:
            raise TableError(TableProblem.INVALID, f"weights are 1..{MAX_WEIGHT}, their sum included")
        if max_size and sum(weights.values()) > max_size:
            raise TableError(TableProblem.FULL, f"group {number} has room for weights of {max_size} in all")
        return Group(number, shares, max_size)

    def insert_group(
        self, number: int, weights: Mapping[int, int], max_size: int, watches: Mapping[int, Watch] = NO_WATCHES
    ) -> None:
        """Add a group to the profile."""
        if number in self.groups:
            raise TableError(TableProblem.EXISTS, f"action profile {self.name} has a group {number} already")
        self.groups[number] = self.gathered(number, weights, max_size, watches)

    def modify_group(self, number: int, weights: Mapping[int, int], watches: Mapping[int, Watch] = NO_WATCHES) -> None:
        """Give a group other members; entries that name it use the new ones from now on."""
        group = self.group(number)
        group.take(self.gathered(number, weights, group.max_size, watches))
        self._tell(group)

    def delete_group(self, number: int, used: bool) -> None:
        """Remove a group; `used`: an entry names it."""
        self.group(number)
        if used:
            raise TableError(TableProblem.IN_USE, f"group {number} of action profile {self.name} is in use")
        del self.groups[number]
