"""Action profile members and groups between P4Runtime messages and the emulator (specification, section 9.2)."""

from __future__ import annotations

from collections.abc import Container, Iterator
from typing import Any

from p4.v1 import p4runtime_pb2

from fanin.switch.p4.action_profiles import ActionProfile
from fanin.switch.p4.actions import Group, Member, TableError, Watch
from fanin.switch.p4runtime.server.p4info import Described
from fanin.switch.p4runtime.server.status import Code, StatusError, from_table
from fanin.switch.p4runtime.server.table_entries import DELETE, INSERT, TableEntries
from fanin.switch.p4runtime.server.watches import fill_watch, read_watch


class ProfileEntries:
    """Members and groups of one program's action profiles."""

    def __init__(self, described: Described, tables: TableEntries, ports: Container[int]) -> None:
        """Serve the action profiles of the program in `described`. `ports` are the ports that a member may watch."""
        self._described = described
        self._ports = ports
        self._tables = tables

    def write_member(self, kind: int, entry: Any) -> None:
        """Insert, modify or delete a member."""
        profile = self._profile(entry.action_profile_id)
        try:
            if kind == DELETE:
                member = profile.member(entry.member_id)
                profile.delete_member(entry.member_id, self._used(profile, member))
                return
            name, data = self._tables.read_action(entry.action)
            change = profile.insert_member if kind == INSERT else profile.modify_member
            change(entry.member_id, name, data)
        except TableError as error:
            raise from_table(error) from None

    def write_group(self, kind: int, entry: Any) -> None:
        """Insert, modify or delete a group."""
        profile = self._profile(entry.action_profile_id)
        weights: dict[int, int] = {}
        watches: dict[int, Watch] = {}
        for each in entry.members:
            if each.member_id in weights:
                raise StatusError(Code.INVALID_ARGUMENT, f"member {each.member_id} is given twice: it has a weight")
            weights[each.member_id] = each.weight
            if (watch := read_watch(each, self._ports)) is not None:
                watches[each.member_id] = watch
        most = self._described.group_sizes.get(entry.action_profile_id, 0)
        if entry.max_size < 0 or (most and entry.max_size > most):
            raise StatusError(Code.INVALID_ARGUMENT, f"a group's size of {entry.max_size}: the program says {most}")
        try:
            if kind == INSERT:
                profile.insert_group(entry.group_id, weights, entry.max_size, watches)
            elif kind == DELETE:
                profile.delete_group(entry.group_id, self._used(profile, profile.group(entry.group_id)))
            else:
                if entry.max_size not in (0, profile.group(entry.group_id).max_size):
                    raise StatusError(Code.INVALID_ARGUMENT, f"the size of group {entry.group_id} cannot change")
                profile.modify_group(entry.group_id, weights, watches)
        except TableError as error:
            raise from_table(error) from None

    def read_members(self, wanted: Any) -> Iterator[Any]:
        """Entities of the members asked for; id 0 of a profile or a member asks for all."""
        for profile_id, profile in self._chosen(wanted.action_profile_id):
            for number, member in sorted(profile.members.items()):
                if wanted.member_id in (0, number):
                    entity = p4runtime_pb2.Entity()
                    made = entity.action_profile_member
                    made.action_profile_id, made.member_id = profile_id, number
                    self._tables.fill_action(made.action, member.action, member.data)
                    yield entity

    def read_groups(self, wanted: Any) -> Iterator[Any]:
        """Entities of the groups asked for; id 0 of a profile or a group asks for all."""
        for profile_id, profile in self._chosen(wanted.action_profile_id):
            for number, group in sorted(profile.groups.items()):
                if wanted.group_id in (0, number):
                    entity = p4runtime_pb2.Entity()
                    made = entity.action_profile_group
                    made.action_profile_id, made.group_id, made.max_size = profile_id, number, group.max_size
                    for share in group.shares:
                        fill_watch(made.members.add(member_id=share.member.number, weight=share.weight), share.watch)
                    yield entity

    def _profile(self, profile_id: int) -> ActionProfile:
        return self._described.known(self._described.profiles, profile_id, "action profile")

    def _chosen(self, profile_id: int) -> list[tuple[int, ActionProfile]]:
        if profile_id:
            return [(profile_id, self._profile(profile_id))]
        return list(self._described.profiles.items())

    def _used(self, profile: ActionProfile, target: Member | Group) -> bool:
        tables = self._described.program.tables
        return any(entry.target is target for name in profile.tables for entry in tables[name])
