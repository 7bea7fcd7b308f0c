# %% [markdown]
# # Training over slow links
#
# Four hosts train one network, and the links between them are slow: 20 Mbit/s, as between sites or on a busy office network.
# Most of a step is then the time in which gradients travel.
# This page trains the same network over gloo and over fanin, with 32, 16 and 8 bits per value, and looks at what that costs and what it saves.
#
# It needs `pip install 'fanin[notebooks]'`, and takes about half a minute.
# The hosts are network namespaces of this machine, for which it needs root; without, ranks run over loopback, which has no rate: the page says which of the two you see.

# %%
import inspect
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import sklearn.datasets

from fanin.emulation.network.commands import require_privileges
from fanin.errors import ConfigurationError

WORKERS = 4
RATE_BIT_S = 20e6

# %% [markdown]
# ## The program of a rank
#
# It is ordinary PyTorch: `DistributedDataParallel`, and a backend's name.
# `pg_options` are needed here only because one program tries several widths; `FANIN_LANES=8` does the same from outside.

# %%
places = [Path.cwd(), Path("examples/notebooks"), Path(globals().get("__file__", "")).absolute().parent]
here = next((place for place in places if (place / "slow_links_rank.py").exists()), None)
if here is None:
    raise FileNotFoundError(f"no slow_links_rank.py in {Path.cwd()}. Remedy: start in examples/notebooks of a clone")
sys.path.insert(0, str(here))
import slow_links_rank

print(inspect.getsource(slow_links_rank.train))

# %% [markdown]
# ## Four hosts
#
# `fanin emulate` makes a namespace and a link per rank, and a software switch with a port for each of them, where a real one would be.
# On real machines you start the program with torchrun, as you do now; rank 0 starts a switch, or each host sums its share.

# %%
program = [sys.executable, str(here / "slow_links_rank.py")]
environment = {**os.environ, "OMP_NUM_THREADS": "1"}
emulate = ["emulate", "--workers", str(WORKERS), "--rate", f"{RATE_BIT_S / 1e6:g}mbit"]
rate_bit_s: float | None = None
try:
    require_privileges()
    where, rate_bit_s = f"links of {RATE_BIT_S / 1e6:g} Mbit/s", RATE_BIT_S
except ConfigurationError as error:
    where = "loopback, which has no rate"
    print(f"no emulated links: {error}")
with tempfile.TemporaryDirectory() as folder:
    digits = sklearn.datasets.load_digits()
    images = (digits.data / 16).astype(np.float32)
    np.savez(Path(folder) / "digits.npz", images=images, classes=digits.target)
    if rate_bit_s:  # `env`, so that ranks are started as they are: torchrun's agents would import torch once more each
        page = str(Path(folder) / "report.html")
        command = [sys.executable, "-m", "fanin", *emulate, "--html", page, "--", "env", *program, folder]
    else:
        torchrun = ["torch.distributed.run", "--standalone", "--nproc-per-node", str(WORKERS)]
        command = [sys.executable, "-m", *torchrun, program[1], folder]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    ranks = [json.loads((Path(folder) / f"rank{rank}.json").read_text()) for rank in range(WORKERS)]
print("trained over", where)

# %% [markdown]
# ## What came out
#
# Each backend saw the same images in the same order, so differences are those of the sums.
# With 32 bits a sum is as exact as gloo's, whose order of additions is another; replicas are identical to the bit in any case, since every rank decodes the same words.

# %%
gradient_bytes = 4 * sum(rows * columns + columns for rows, columns in ((64, 512), (512, 256), (256, 10)))
print(f"gradient: {gradient_bytes / 1e6:.2f} MB of float32, {slow_links_rank.STEPS} steps\n")
print(f"{'':10}{'ms per step':>12}{'MB per step and rank':>22}{'last loss':>11}  replicas")
for backend in slow_links_rank.BACKENDS:
    of = [rank[backend] for rank in ranks]
    step_s = of[0]["times_s"][-1] / slow_links_rank.STEPS
    moved = np.mean([each["wire_bytes"] for each in of]) / slow_links_rank.STEPS / 1e6
    loss = np.mean([each["losses"][-1] for each in of])
    same = "identical" if len({each["weights"] for each in of}) == 1 else "DIFFERENT"
    assert same == "identical", backend
    print(f"{backend:10}{step_s * 1e3:12.0f}{moved if rate_bit_s else float('nan'):22.2f}{loss:11.4f}  {same}")
losses = {name: np.mean([rank[name]["losses"] for rank in ranks], axis=0) for name in slow_links_rank.BACKENDS}
assert np.allclose(losses["fanin 32"], losses["gloo"], rtol=1e-3)
assert all(series[-1] < 0.8 * series[0] for series in losses.values()), "every backend learns"

# %% [markdown]
# The column of bytes explains that of times: a ring such as gloo's sends and receives 2 (n - 1) / n times the gradient over each link, here 1.5 times, and a switch takes it once and gives it back once.
# Lanes of 16 and 8 bits halve and quarter that.
# Times are those of one short run: on a machine that does other things they scatter, and bytes do not.

# %%
figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4))
for backend, series in losses.items():
    left.plot(ranks[0][backend]["times_s"], series, marker=".", label=backend)
left.set(xlabel="seconds of training", ylabel="loss (mean over ranks)", title=where)
left.legend()
steps = [ranks[0][backend]["times_s"][-1] / slow_links_rank.STEPS * 1e3 for backend in losses]
right.barh(list(losses), steps)
right.invert_yaxis()
if rate_bit_s:
    ring = 2 * (WORKERS - 1) / WORKERS * gradient_bytes * 8 / rate_bit_s * 1e3
    bounds = [ring, *(gradient_bytes * bits / 32 * 8 / rate_bit_s * 1e3 for bits in (32, 16, 8))]
    right.plot(bounds, list(losses), "k|", markersize=24, label="bits / rate of the link")
    right.legend()
right.set(xlabel="ms per step")
figure.tight_layout()
plt.show()

# %% [markdown]
# The marks are what the links allow: the bits of a step over the rate.
# The rest of a bar is computing and the processors' share, which is why faster links gain less: [performance.md](../../docs/performance.md) has where that ends.
#
# ## And your links?
#
# * `fanin advise --hosts a,b,c,d` measures them and says which settings are quickest, or that gloo is.
# * 8 bits lose precision in each step; error feedback gives it back over time ([codecs.md](../../docs/codecs.md)).
# * Links slower than these: local steps with a meeting every so many ([meetings.md](../../docs/meetings.md)).
# * A slow host rather than a slow link: rounds that do not wait for it ([staleness.md](../../docs/staleness.md)).
# * [emulation.md](../../docs/emulation.md) has what else links can do here: delay, loss, racks, faults, other traffic.
