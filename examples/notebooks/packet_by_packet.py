# %% [markdown]
# # A switch, asked packet by packet
#
# You build a switch, or you want to know what one does with each packet.
# This page speaks to the switch that people can read, [slot_machine.py](../../switch/machine/slot_machine.py), with packets built by scapy.
# It then plays the same protocol to a switch that runs, to the compiled P4 program, and to BMv2 where that is installed.
#
# It needs `pip install 'fanin[notebooks,p4]'`, takes a few seconds, and no root but for BMv2.

# %%
import contextlib
import io
import sys
import tempfile
from pathlib import Path
from typing import Any

from scapy.utils import rdpcap

from fanin.emulation import bmv2_process
from fanin.emulation.conformance.check import check
from fanin.emulation.conformance.histories import HISTORIES
from fanin.emulation.conformance.subject import started
from fanin.emulation.simulator.scenario import JobPlan, Scenario
from fanin.emulation.simulator.simulation import simulate
from fanin.host.transports.pcap import PcapWriter
from fanin.protocol.job import JobSpec
from fanin.scapy_layer import Fanin, bind_port
from fanin.switch.machine.switch_machine import SwitchMachine

# %% [markdown]
# ## A machine without a socket
#
# A switch machine takes bytes, says what to send to whom, and is told the time: it has no socket, no clock and no thread.
# So we can ask it one packet at a time, and nothing happens meanwhile.
# A job of three workers is admitted, as the controller does it; each worker has a token, which it shows once.

# %%
TOKENS = (101, 102, 103)
JOB: dict[str, Any] = {"job": 1, "generation": 7}
machine = SwitchMachine(memory_bytes=1 << 24)
machine.admit(JobSpec(**JOB, workers=3, quorum=3, slots=4, words_per_packet=8, tokens=TOKENS))


def say(packet: Fanin | bytes, worker: int) -> list[Fanin]:
    """Hand the machine a packet of a worker, whose address is its number; print and return its answers."""
    machine.receive_datagram(bytes(packet), worker, now=0.0)
    sent = [(Fanin(data), to) for data, to in machine.datagrams_to_send(now=0.0)]
    print(f"in   {packet.summary()}: {packet.words}" if isinstance(packet, Fanin) else f"in   {len(packet)} bytes")
    for each, to in sent:
        print(f"out  {each.summary()}: {each.words}, to worker {to}")
    if not sent:
        print("out  nothing")
    return [each for each, _ in sent]


for worker, token in enumerate(TOKENS):
    say(Fanin(kind="HELLO", **JOB, worker=worker, words=[0, token]), worker)


# %% [markdown]
# ## A sum
#
# Each worker contributes three words to slot 0.
# Nothing leaves the switch until the last one is there; then everybody gets the same result.


# %%
def contribution(worker: int, base: int = 0, **more: object) -> Fanin:
    """A contribution of three words: 1, 2, 3 from worker 0, ten times that from 1, a hundred times that from 2."""
    fields: dict[str, Any] = {"signature": 5, "words": [10**worker * number for number in (1, 2, 3)], **more}
    return Fanin(kind="CONTRIBUTION", **JOB, worker=worker, base=base, **fields)


say(contribution(0), 0)
say(contribution(1), 1)
results = say(contribution(2), 2)
assert [each.words for each in results] == [[111, 222, 333]] * 3

# %% [markdown]
# scapy shows every field of the result by the name that [the protocol](../../docs/protocol.md) gives it.
# `bitmap` has a bit per worker whose contribution was accepted, `contributors` is what a mean divides by.

# %%
results[0].show()

# %% [markdown]
# ## What can go wrong
#
# **The result of worker 2 is lost.** Its timer expires and it sends the same again.
# The slot still has the round, sees that the bit of worker 2 is set (rule R-SLOT-3), adds nothing, and answers this worker alone.

# %%
answer = say(contribution(2), 2)
assert [each.words for each in answer] == [[111, 222, 333]]

# %% [markdown]
# **A contribution is duplicated on its way.** The round is still open, so its result will come to everybody, and nothing is sent now.

# %%
say(contribution(0, base=1), 0)
assert not say(contribution(0, base=1), 0)

# %% [markdown]
# **Two workers call different collectives.** The words would make no sense together, so the second one is told (R-SLOT-5).

# %%
(notice,) = say(contribution(1, base=1, signature=6), 1)
assert "MISMATCH" in notice.summary()

# %% [markdown]
# **A packet is damaged, or comes from somebody else.** The first fits no packet; the second has the right fields and the wrong address.

# %%
say(bytes(contribution(1, base=1))[:30], 1)
say(contribution(1, base=1), 2)
print({name: count for name, count in machine.counters().items() if name.startswith("dropped") and count})

# %% [markdown]
# ## A round that does not wait
#
# With a quorum of K = 2 and a staleness bound of S = 1, a round closes with two of three contributions.
# The third is late: it is added to the next round, and its sender is answered with the round that it missed.
# So nothing is lost, and no worker is more than S rounds behind.

# %%
machine = SwitchMachine(memory_bytes=1 << 24)
machine.admit(JobSpec(**JOB, workers=3, quorum=2, staleness=1, slots=4, words_per_packet=8, tokens=TOKENS))
with contextlib.redirect_stdout(io.StringIO()):
    for worker, token in enumerate(TOKENS):
        say(Fanin(kind="HELLO", **JOB, worker=worker, words=[0, token]), worker)
say(contribution(0), 0)
first = say(contribution(1), 1)
late = say(contribution(2), 2)
second = say(contribution(0, base=1), 0)
assert first[0].words == [11, 22, 33]
assert second[0].words == [101, 202, 303], "the late words of worker 2, and the new ones of worker 0"
assert late[0].words == [11, 22, 33], "the round that worker 2 has missed"

# %% [markdown]
# Three contributions of base 0 and one of base 1 are in, two rounds have closed, and each contribution is in exactly one of them.
# [slot-machine.md](../../docs/slot-machine.md) has the table of rules and why conservation, agreement and liveness follow from it; [rules.md](../../docs/rules.md) leads from each rule to its line and its test.

# %% [markdown]
# ## Captures
#
# What ranks send is captured with `FANIN_PCAP=rank%r.pcap`, and what the simulator sends with `fanin simulate --pcap FILE`.
# scapy, Wireshark and tcpdump read both.

# %%
with tempfile.TemporaryDirectory() as folder:
    capture = str(Path(folder) / "sum.pcap")
    with contextlib.closing(PcapWriter(capture)) as pcap:
        simulate(Scenario(jobs=(JobPlan(workers=2, steps=1, chunks=1, slots=1),)), seed=1, kind="python", pcap=pcap)
    bind_port(4919)  # fanin's, from now on
    packets = rdpcap(capture)
for packet in packets[:8]:
    print(packet.summary())

# %% [markdown]
# ## The same protocol, to a switch that runs
#
# The conformance suite plays histories to any switch, over UDP, and compares every datagram with that of the readable machine above.
# On the command line this is `fanin conformance -- COMMAND`; yours is checked in the same way, whatever it is made of.


# %%
def conforms(*command: str, seeds: int = 1) -> None:
    """Start a switch, play all histories to it, and say how many conform."""
    with started([sys.executable, "-m", "fanin", *command]) as address:
        verdicts = [check(address, history, seed, words=64) for history in HISTORIES for seed in range(seeds)]
    packets, bare = (sum(getattr(each, name) for each in verdicts) for name in ("packets", "bare"))
    conform = sum(not each.fails for each in verdicts)
    print(
        f"{' '.join(command)}:\n  {conform} of {len(verdicts)} histories conform, {packets} packets, {bare} answers bare"
    )
    assert conform == len(verdicts)


conforms("switch", "--bind", "127.0.0.1:0")

# %% [markdown]
# The compiled P4 program, in the emulator that needs no P4 tools, is a switch as well.
# A pipeline may answer a repetition with an acknowledgement alone ("bare"), which the suite allows and counts.

# %%
conforms("switch", "--bind", "127.0.0.1:0", "--target", "p4")

# %% [markdown]
# ## BMv2
#
# Where `simple_switch_grpc` is on PATH, and you are root, the same program runs there, behind veth pairs.
# Two workers contribute 64 words to each of 64 slots, and every sum is checked.

# %%
if (reason := bmv2_process.missing()) is not None:
    print(f"not here: {reason}")
else:
    from fanin.benchmarks.p4_bmv2 import run
    from fanin.switch.p4runtime.opening import PROGRAM

    print(f"BMv2: {run(PROGRAM, rounds=64)[0]:,.0f} packets per second, every sum right")

# %% [markdown]
# From here: [deploy-p4.md](../../docs/deploy-p4.md) has a job on BMv2 step by step, [p4-run.md](../../docs/p4-run.md) follows a packet through a P4 program, and [conformance.md](../../docs/conformance.md) says what the suite compares.
