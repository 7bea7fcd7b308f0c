"""Manifests for Kubernetes: valid by the published schema, and at one with each other. None was run on a cluster."""

from __future__ import annotations

from typing import Any

import pytest

from fanin.options import Options
from tests.support.launching import EXAMPLES

yaml = pytest.importorskip("yaml", reason="PyYAML is not installed: pip install kubernetes-validate")
FILES = ("kubernetes.yaml", "kubernetes-switch.yaml", "jobset.yaml")
GLOO = "net.ipv4.ip_local_port_range"


def documents(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((EXAMPLES / name).read_text()))


def job_of(name: str) -> dict[str, Any]:
    """The Job of a file; a JobSet's has no kind of its own."""
    if name == "jobset.yaml":
        (replicated,) = documents(name)[0]["spec"]["replicatedJobs"]
        return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "rank"}, **replicated["template"]}
    return next(each for each in documents(name) if each["kind"] == "Job")


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("version", ["1.28", "1.37"])
def test_manifests_are_valid_by_the_published_schema(name: str, version: str) -> None:
    reason = "kubernetes-validate is not installed: pip install kubernetes-validate"
    validator = pytest.importorskip("kubernetes_validate", reason=reason)
    for document in [job_of(name)] if name == "jobset.yaml" else documents(name):
        validator.validate(document, version, strict=True)


@pytest.mark.parametrize("name", ["kubernetes.yaml", "jobset.yaml"])
def test_every_port_that_a_rank_listens_at_is_in_the_policy(name: str) -> None:
    policy = next(each for each in documents("kubernetes.yaml") if each["kind"] == "NetworkPolicy")
    open_ports = {
        (each["protocol"], each["port"], each.get("endPort", each["port"]))
        for each in policy["spec"]["ingress"][0]["ports"]
    }
    pod = job_of(name)["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    least, greatest = Options(ports=container["env"][0]["value"]).port_range or (0, 0)
    assert container["env"][0]["name"] == "FANIN_PORTS"
    gloo = next(each["value"].split() for each in pod["securityContext"]["sysctls"] if each["name"] == GLOO)
    assert open_ports == {
        ("TCP", 29_500, 29_500),
        ("TCP", least, greatest),
        ("UDP", least, greatest),
        ("TCP", int(gloo[0]), int(gloo[1])),
    }


@pytest.mark.parametrize(
    ("name", "first"), [("kubernetes.yaml", "train-0.train"), ("jobset.yaml", "train-rank-0-0.train")]
)
def test_agents_are_as_many_as_pods_and_meet_at_the_first(name: str, first: str) -> None:
    job = job_of(name)["spec"]
    line = job["template"]["spec"]["containers"][0]["args"][0].split()
    assert line[line.index("--nnodes") + 1] == str(job["completions"]) == str(job["parallelism"])
    assert line[line.index("--master-addr") + 1] == first
    assert job["completionMode"] == "Indexed"
