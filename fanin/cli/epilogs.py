"""Examples at the end of every command's help."""

from __future__ import annotations

from fanin.cli.ending import PROMISED

EXAMPLES: dict[str, tuple[str, ...]] = {
    "demo": (
        "fanin demo",
        "fanin demo --task text --lanes 16 --workers 2",
        "fanin demo --fault drop=1%,reorder=1%@seed=7 --no-baseline --json demo.json",
    ),
    "emulate": (
        "sudo fanin emulate --workers 8 --rate 1gbit --delay 50us --loss 0.1% --straggler 3:2x -- python train.py",
        "sudo fanin emulate --scenario trouble --record run.json -- python -m fanin.examples.train --task digits",
        "sudo fanin emulate --clean",
    ),
    "switch": (
        "fanin switch",
        "fanin switch --bind 10.0.0.1:4919 --liveness-timeout 2",
        "fanin switch --metrics :9464",
        "fanin switch --parent udp://root:4919",
        "fanin switch --target p4",
    ),
    "controller": ("fanin controller --p4runtime 10.0.0.2:9559 --switch-address 10.0.1.2:4919",),
    "stats": ("fanin stats", "fanin stats udp://10.0.0.1:4919 --watch", "fanin stats --json udp://10.0.0.1:4919"),
    "top": ("fanin top", "fanin top udp://10.0.0.1:4919 --interval 10", "fanin top --once --json udp://10.0.0.1:4919"),
    "tune": ("fanin tune udp://10.0.0.1:4919 JOB", "fanin tune udp://10.0.0.1:4919 JOB --quorum 3 --staleness 2"),
    "doctor": ("fanin doctor", "fanin doctor udp://10.0.0.1:4919", "fanin doctor --json"),
    "advise": (
        "fanin advise --hosts 10.0.0.1,10.0.0.2",
        "fanin advise --hosts 10.0.0.1,10.0.0.2,10.0.0.3 --lanes 32,8",
        "fanin advise --hosts node1,node2 --switch udp://node3:4919 -- python train.py",
    ),
    "plan": (
        "fanin plan advice.json --layers 24 --micro-batches 32 --activation-bytes 4194304 --stages 2,4",
        "fanin plan advice.json --parameters 350000000 --compute-s 20 --layers 24 --micro-batches 32 "
        "--activation-bytes 4194304",
    ),
    "gallery": (
        "fanin gallery",
        "fanin gallery --only mixture --only linear_attention",
        "fanin gallery --all --json gallery.json",
        "fanin gallery --only layouts --hosts 2",
    ),
    "rank": (
        "mpirun -n 4 fanin rank python train.py",
        "srun -N 2 -n 4 fanin rank python train.py",
    ),
    "report": (
        "fanin report run.json",
        "fanin report run.json --html report.html --png plots",
        "fanin report timeline-*.jsonl",
        "fanin report before.json --against after.json",
    ),
    "trace": (
        "fanin trace timeline-*.jsonl",
        "fanin trace timeline-0.jsonl timeline-1.jsonl --out job.json",
        "fanin trace --scenario calm --step 2 --out step.json --replay step.svg",
    ),
    "conformance": (
        "fanin conformance udp://10.0.0.1:4919 --words 64",
        "fanin conformance --seeds 20 -- fanin switch --bind 127.0.0.1:0",
    ),
    "simulate": (
        "fanin simulate --seed 7 --events",
        "fanin simulate --scenario hostile-link",
        "fanin simulate --search 1000 --json",
    ),
    "allreduce": (
        "fanin bench allreduce --workers 4 --against gloo,mpi",
        "fanin bench allreduce --bytes 4096 --lanes 32 --json rows.json",
    ),
    "codecs": (
        "fanin bench codecs --workers 8",
        "fanin bench codecs --codecs lanes:8,rotated:8,low_rank:32:rank=2 --bytes 26214400 --json rows.json",
        "sudo fanin bench codecs --train --workers 8 --task text --rates 100mbit --html page.html",
        "fanin bench codecs --train --task text,digits --workers 4,8,16 --repeats 5 --rates none --runs runs.json",
    ),
    "network": (
        "sudo fanin bench network --workers 8 --rate 100mbit --against gloo,mpi",
        "sudo fanin bench network --workers 4 --rate 1gbit --bytes 65536,1048576,26214400 --steps 5",
    ),
    "federated": (
        "fanin bench federated",
        "fanin bench federated --clients 0 --partitions dirichlet --learning-rates 0.1,0.3 --runs runs.json",
        "fanin bench federated --simulated 0 --policies fedavg,fedsa --json rows.json",
    ),
    "meetings": (
        "sudo fanin bench meetings --task digits --rate 4mbit",
        "sudo fanin bench meetings --task text --rate 100mbit --steps 48 --step-ms 100 --repeats 1 --conditions even",
        "fanin bench meetings --rate none --modes ddp-gloo,diloco,co2-8/8,alone",
        "sudo fanin bench meetings --task text --rate 10mbit --delay 50ms --steps 800 --step-ms 0 --timed 4 "
        "--conditions even --learning-rate 0.002 --modes ddp-gloo,diloco-100-4/8",
    ),
    "staleness": (
        "fanin bench staleness --plot staleness.png",
        "fanin bench staleness --conditions even,slow-worker --steps 100",
        "sudo fanin bench staleness --task text --conditions slow-worker-over-links --rate 100mbit --workers 8 "
        "--switch-at hosts --modes synchronous,synchronous-8,gloo,skip-8 --steps 6 --step-ms 1000 --repeats 1",
    ),
    "run": (
        "sudo fanin p4 run router.json --p4info router.p4info.txtpb --port 1=veth0,2=veth1",
        "fanin p4 run --port 1=udp:127.0.0.1:5001 --p4runtime 127.0.0.1:9559 --device-id 1",
    ),
    "p4 trace": (
        "fanin p4 trace capture.pcap --program router.json --p4info router.p4info.txtpb --entries entries.txtpb",
        "fanin p4 trace 0200c0a80001020000000001080045000014 --p4runtime 127.0.0.1:9559 --port 2",
    ),
    "vectors": ("fanin p4 vectors ptf-fanin",),
    "bmv2": ("fanin p4 bmv2 ~/fanin-bmv2 && sudo env PATH=$HOME/fanin-bmv2:$PATH python3 network.py",),
    "deploy": (
        "fanin p4 deploy out/fanin.conf --p4info out/fanin.p4info.txtpb --switch-address 10.77.0.1:4920",
        "sudo fanin p4 deploy out/fanin.conf --p4info out/fanin.p4info.txtpb --ports ports.json "
        "--switch-address 10.77.0.1:4920 --bind 10.77.0.100:4919 --cpu-interface bf_pci0 --go",
    ),
    "slots": ("fanin p4 slots --p4runtime 127.0.0.1:9559", "fanin p4 slots --job 1 --slot 0 --words"),
    "sharded": (
        "sudo fanin bench sharded --workers 8 --rate 100mbit --json rows.json",
        "fanin bench sharded --rate none --steps 0 --epochs 10 --seeds 3 --rivals gloo,fanin-8 --runs runs.json",
        "fanin bench sharded --device cuda --workers 4 --rate none --rivals gloo,nccl,fanin-32,fanin-8",
    ),
    "collectives": (
        "fanin bench collectives --workers 4 --bytes 1024,65536,1048576,26214400",
        "sudo fanin bench collectives --workers 4 --rate 1gbit --lanes 32,8",
        "sudo fanin bench collectives --workers 8 --rate 100mbit --switch-at own --which broadcast",
    ),
    "cost": (
        "sudo fanin bench cost",
        "sudo fanin bench cost --hosts 2,4 --mtu 1500,9000 --lanes 32,8 --json rows.json",
    ),
    "watching": ("fanin bench watching", "fanin bench watching --workers 2 --samples 21 --json rows.json"),
    "fairness": ("sudo fanin bench fairness --rate 100mbit",),
}
"""Command lines by command; its name is preceded by its group's where two groups have a command of that name."""

STATUS = f"Exit status: {'; '.join(f'{status}: {meaning}' for status, meaning in PROMISED.items())}."


def epilog(command: str) -> str:
    """Return the text below a command's options. Each line is a paragraph, since typer joins lines."""
    return "\n\n".join(("Examples:", *EXAMPLES[command], STATUS))
