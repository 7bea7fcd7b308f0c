# %% [markdown]
# # A policy, a codec and a switch of your own
#
# You want to compare an idea of yours with what fanin does: another rule for late gradients, another compression, another switch.
# Each is a class in a package of yours; fanin takes it by its name and needs no change.
# This page installs such a package, and checks each part where mistakes are found in seconds: in virtual time, under faults, and against the conformance suite.
#
# It needs `pip install 'fanin[notebooks]'`, takes about half a minute, and no root.

# %%
import importlib
import inspect
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from fanin import plugins
from fanin.emulation.codec_team import Team
from fanin.emulation.conformance.check import check
from fanin.emulation.conformance.histories import HISTORIES
from fanin.emulation.conformance.subject import started
from fanin.emulation.simulator.chaos import draw
from fanin.emulation.simulator.links import Link
from fanin.emulation.simulator.scenario import JobPlan, Scenario
from fanin.emulation.simulator.simulation import simulate
from fanin.emulation.simulator.violations import ViolationError
from fanin.host.codecs import make
from fanin.host.codecs.codec import Place
from fanin.host.stale.account import Account
from fanin.host.stale.policies import make_policy
from fanin.host.stale.rounds import StaleRounds
from fanin.host.stale.scale import ScaleEpochs
from fanin.switch.machine.slot_machine import (
    PLAIN,
    Arrived,
    Contribution,
    ContributionHeader,
    Outcome,
    Slot,
    SlotConfig,
)
from fanin.switch.machine.switch_job import SwitchJob
from fanin.switch.machine.switch_machine import SwitchMachine

# %% [markdown]
# ## The package
#
# [own_package](own_package) is a module and a `pyproject.toml`, whose entry points say what it brings.
# `pip install ./own_package` is all; here it goes to a temporary folder, so that your environment stays as it is.

# %%
places = [Path.cwd(), Path("examples/notebooks"), Path(globals().get("__file__", "")).absolute().parent]
here = next((place for place in places if (place / "own_package").is_dir()), None)
if here is None:
    raise FileNotFoundError(f"no own_package in {Path.cwd()}. Remedy: start in examples/notebooks of a clone")
folder = tempfile.TemporaryDirectory(prefix="fanin-own-")
source, site = f"{folder.name}/source", f"{folder.name}/site"
shutil.copytree(here / "own_package", source)  # pip leaves what it builds beside the sources
install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-build-isolation", "--no-deps"]
subprocess.run([*install, "--target", site, source], check=True)
sys.path.insert(0, site)
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [site, os.environ.get("PYTHONPATH")]))
importlib.invalidate_caches()
plugins.forget()
print((here / "own_package" / "pyproject.toml").read_text().partition("[project.entry")[2])
print({group: plugins.names(group) for group in plugins.GROUPS if plugins.names(group)})

# %% [markdown]
# ## A look at the machine
#
# All of the protocol stands on one small state machine, [slot_machine.py](../../switch/machine/slot_machine.py).
# A slot takes contributions, each with a number that says which round its worker means (its base), and closes rounds.
# Three workers, of which two suffice (K = 2), and nobody more than one round behind (S = 1):

# %%
slot = Slot(SlotConfig(live=0b111, quorum=2, staleness=1, max_staleness=1, history=3))
for worker, base in [(0, 0), (1, 0), (0, 1), (1, 1), (2, 0), (2, 1), (0, 2)]:
    outcome = slot.contribute(worker, base, Contribution(np.array([10**worker], np.uint32)))
    closed = f"closes round {outcome.closed[0]}: {outcome.closed[1].words[0]}; " if outcome.closed else ""
    answer = f"answered with round {outcome.answer.base}" if outcome.answer else ""
    print(f"worker {worker}, base {base}: {outcome.verdict.name:9} {closed}{answer}")

# %% [markdown]
# Worker 2 came late twice, and the second round waited for its first contribution: without the bound, workers 0 and 1 would have gone on alone.
# The words of worker 2 are in later rounds, once each.
#
# ## A policy
#
# A policy says what a worker does with a gradient that a round has overtaken.
# `newest` drops every such gradient, however small its age:

# %%
import own_package

print(inspect.getsource(own_package.Newest))

# %% [markdown]
# One gradient, by hand: round 0 is over before worker 0 has one, so the worker passes it.
# Its gradient was computed on the weights of version 0; `skip`, which fanin has, would contribute it, and `newest` drops it.

# %%
for name in ("skip", "newest"):
    rounds = StaleRounds(make_policy(name), 4, ScaleEpochs(4, 99, power=0), Account(0, 1))
    rounds.hear(0)
    steps = [rounds.next_action()]
    rounds.finished()
    rounds.hand_in(version=0)
    steps.append(rounds.next_action())
    print(f"{name:6}", [step.name for step in steps if step])

# %% [markdown]
# Then whole jobs in virtual time: three workers, one of which is five times as slow, through links that lose and reorder packets.
# The simulator compares every sum with a ledger and every gradient with its account; a violation ends the run with the seed that repeats it.

# %%
job = JobPlan(workers=3, quorum=2, staleness=2, steps=20, think_s=0.001, slow=(1, 1, 5), policy="newest")
link = Link(loss=0.05, duplicate=0.05, reorder=0.1)
for seed in range(20):
    report = simulate(Scenario(jobs=(job,), link=link, noise_s=1.0), seed=seed, kind="python")
print(f"20 seeds, nothing violated; the last took {report.virtual_s:.2f} virtual s and {report.packets} packets")

# %% [markdown]
# With `AsynchronousOptimizer(policy="newest")` it trains; [staleness.md](../../docs/staleness.md) has measurements of the policies that exist.
#
# ## A codec
#
# A codec is what happens to a bucket of gradients before and after the sum.
# `clipped` sends nothing above three root mean squares at once and owes the rest, so that 8-bit lanes need no steps for rare large elements:

# %%
print(inspect.getsource(own_package.ClippedEncoder.reduce))

# %% [markdown]
# `Team` runs a codec at several workers in this process, and adds words as a switch does.
# Gradients with heavy tails, sixteen steps of the same gradient with error feedback; the error is that of the mean over all steps so far, since that is where the weights end up.

# %%
workers, shapes = 4, ((64, 64), (64,))
count = Place(0, workers, shapes).count
generator = np.random.default_rng(0)
gradients = [generator.standard_t(3, size=count).astype(np.float32) for _ in range(workers)]
exact = np.mean(np.asarray(gradients, np.float64), axis=0)
errors: dict[str, list[float]] = {}
for text in ("lanes:8:feedback=False", "lanes:8", "clipped:8", "lanes:4", "clipped:4"):
    team, total = Team(make(text), workers, shapes), np.zeros(count)
    errors[text] = []
    for step in range(16):
        means = team.step(gradients, step)
        assert all(np.array_equal(each, means[0]) for each in means), "replicas stay identical"
        total += means[0]
        errors[text].append(float(np.sum((total / (step + 1) - exact) ** 2) / np.sum(exact**2)))
    print(f"{text:24} error after 1 step {errors[text][0]:.1e}, after 16 steps {errors[text][-1]:.1e}")

# %%
for text, series in errors.items():
    plt.loglog(range(1, 17), series, marker=".", label=text)
plt.xlabel("steps")
plt.ylabel("squared error of the mean, relative")
plt.title("heavy-tailed gradients, 4 workers")
plt.legend()
plt.show()

# %% [markdown]
# Read the picture before you keep the idea: with 4 bits clipping is worth it, with 8 bits it costs more than it saves.
# That is an answer as well, and it took a second.
#
# Every codec has to keep three things, whatever it compresses: identical bits at every worker, any shape, and a NaN that reaches everybody without spoiling later steps.

# %%
for shape in ((), (0,), (1,), (257,)):
    size = int(np.prod(shape, dtype=int))
    Team(make("clipped:8"), 3, (shape,)).step([np.ones(size, np.float32)] * 3, 0)
team = Team(make("clipped:8"), 3, ((8,),))
bad = [np.ones(8, np.float32) for _ in range(3)]
bad[1][5] = np.inf
spoiled = team.step(bad, 0)
after = team.step([np.ones(8, np.float32)] * 3, 1)
assert all(np.isnan(each[5]) for each in spoiled)
assert all(np.isfinite(each).all() for each in after)
print("any shape; what is not finite reaches every worker and no later step")

# %% [markdown]
# `codec_hook(model, "clipped:8")` trains with it under DDP, `fanin bench codecs --codecs clipped:8` measures it, and [codecs.md](../../docs/codecs.md) has the codecs to compare with.
#
# ## A switch
#
# `Reversed` is the readable machine behind an egress that reverses the order of datagrams.
# The network may do that, so it is a switch: the conformance suite, which compares datagrams and not their order, agrees.

# %%
command = [sys.executable, "-m", "fanin", "switch", "--bind", "127.0.0.1:0", "--target", "reversed"]
with started(command) as address:
    verdicts = [check(address, history, seed=1, words=64) for history in HISTORIES]
for verdict in verdicts:
    print(verdict)
assert not any(verdict.fails for verdict in verdicts)

# %% [markdown]
# And this is a switch with a mistake that is easily made: what comes twice is added twice.
# On a clean network it is right for ever; the simulator draws schedules with lost and repeated packets until a check objects.


# %%
class Forgetful(Slot):
    """Does not remember that a worker has contributed to the open round."""

    def contribute(
        self, worker: int, base: int, given: Contribution | None, header: ContributionHeader = PLAIN
    ) -> Outcome:
        """Forget the worker's bit, then go on as the machine does."""
        entry = base % self.config.history
        tag, bitmap = self.arrived[entry]
        if tag == base == self.open:
            self.arrived[entry] = Arrived(tag, bitmap & ~(1 << worker))
        return super().contribute(worker, base, given, header)


class ForgetfulJob(SwitchJob):
    """A job whose slots are Forgetful."""

    slot_type = Forgetful


class ForgetfulSwitch(SwitchMachine):
    """A switch machine whose jobs are ForgetfulJob."""

    job_type = ForgetfulJob


for seed in range(200):
    try:
        simulate(draw(seed), seed, kind="python", switch=ForgetfulSwitch)
    except ViolationError as error:
        print(f"schedule {seed}: {str(error).splitlines()[0]}")
        break
else:
    raise AssertionError("a planted defect has to be found")

# %% [markdown]
# From here: [extending.md](../../docs/extending.md) has each kind of part with its rules, carriers and collectives included.
# [systems.md](../../docs/systems.md) says what of the literature's systems works here, [simulation.md](../../docs/simulation.md) which faults are drawn and what is checked, and [the third page](packet_by_packet.py) asks a switch packet by packet.
