"""Two controllers made of finsy as it is published, to be run by an interpreter that has it: test_finsy.py.

    python finsy_controller.py ADDRESS DEVICE_ID PROGRAM P4INFO OTHER_P4INFO

The device's program is that of tests/p4/router.py. The controller with the higher election id loads it, writes and
leaves; the other one takes over. Both print their observations as JSON.
"""

import asyncio
import json
import sys
from pathlib import Path

import finsy as fy  # type: ignore[import-not-found]  # in an environment of its own: it wants another protobuf
from finsy.switch import SwitchFailFastError  # type: ignore[import-not-found]

WAIT_S = 20.0


def entry(value: int, action: str, *, priority: int = 1, **data: int) -> fy.P4TableEntry:
    return fy.P4TableEntry(
        "t", match=fy.P4TableMatch(**{"x.a": value}), priority=priority, action=fy.P4TableAction(action, **data)
    )


async def answer(write: "asyncio.Future[None]") -> str:
    try:
        await write
    except fy.P4ClientError as error:
        details = [each.canonical_code.name for each in error.details.values()] if error.details else []
        return str(details[0] if details else error.code.name)
    return "OK"


async def found(switch: fy.Switch, *wanted: object) -> list[str]:
    """Wildcard reads, shortened to what tells the entities apart."""
    said = []
    async for each in switch.read(wanted):
        if isinstance(each, fy.P4TableEntry):
            said.append(f"{each.table_id} {each.match} {each.action}")
        elif isinstance(each, fy.P4MulticastGroupEntry):
            said.append(f"group {each.multicast_group_id} {len(each.replicas)}")
        elif isinstance(each, fy.P4CloneSessionEntry):
            said.append(f"session {each.session_id} {len(each.replicas)}")
        else:
            said.append(str(each))
    return sorted(said)


async def meet(address: str, device_id: int, program: Path, p4info: Path, other: Path) -> dict[str, object]:
    said: dict[str, object] = {}
    everything = (fy.P4TableEntry(), fy.P4MulticastGroupEntry(), fy.P4CloneSessionEntry())
    files = {"p4info": p4info, "p4blob": program}
    primary = fy.SwitchOptions(device_id=device_id, initial_election_id=20, fail_fast=True, **files)
    backup = fy.SwitchOptions(device_id=device_id, initial_election_id=10, fail_fast=True, **files)
    async with fy.Switch("primary", address, primary) as first:
        await first.delete_all()
        second = fy.Switch("backup", address, backup)
        await second.__aenter__()
        said["primaries"] = [first.is_primary, second.is_primary]
        said["backup writes"] = await answer(second.write([+entry(7, "flood", group=1)]))
        said["backup reads"] = await found(second, *everything)
        await first.write(
            [
                +fy.P4MulticastGroupEntry(1, replicas=[1, (2, 5)]),
                +fy.P4CloneSessionEntry(3, class_of_service=0, packet_length_bytes=0, replicas=[2]),
                +entry(1, "send", port=2),
                +entry(2, "flood", group=1),
            ]
        )
        said["again"] = await answer(first.write([+entry(1, "send", port=3)]))
        said["missing"] = await answer(first.write([-entry(9, "send", port=3)]))
        await first.write([~entry(1, "send", port=4)])
        said["everything"] = await found(first, *everything)
        taken_over = second.ee.event_future(fy.SwitchEvent.BECOME_PRIMARY)
    await asyncio.wait_for(taken_over, WAIT_S)
    said["left"] = await found(second, *everything)
    await second.delete_all()
    said["deleted"] = await found(second, *everything)
    said["registers and profiles"] = await found(
        second, fy.P4RegisterEntry(), fy.P4ActionProfileGroup(), fy.P4ActionProfileMember()
    )
    await second.__aexit__(None, None, None)
    foreign = fy.SwitchOptions(device_id=device_id, fail_fast=True, p4info=other, p4blob=program)
    try:
        async with fy.Switch("foreign", address, foreign):
            said["another P4Info"] = "taken"
    except SwitchFailFastError:
        said["another P4Info"] = "refused"
    return said


if __name__ == "__main__":
    where, number, *paths = sys.argv[1:]
    print(json.dumps(asyncio.run(meet(where, int(number), *map(Path, paths)))))
