"""Runs iproute2: every command that changes something runs inside a namespace of ours, never in the machine's own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from fanin.errors import ConfigurationError, FaninError

COMMAND_LIMIT_S = 30.0
TOOLS = {"ip": "iproute2", "tc": "iproute2"}


def require_privileges() -> None:
    """Raise ConfigurationError, with a remedy, if this process cannot make network namespaces."""
    if os.geteuid() != 0:
        raise ConfigurationError(
            "network namespaces need root: run it with sudo (the workers run as root, too). Remedy: "
            f"`sudo {_own()} ...`, or `docker compose up`, or `torchrun` on one machine without emulated links"
        )
    for tool, package in TOOLS.items():
        if shutil.which(tool) is None:
            raise ConfigurationError(f"emulation needs the command `{tool}`. Remedy: install {package}")
    # Network namespaces need the right to mount, which a container without CAP_SYS_ADMIN lacks.
    probe = subprocess.run(["unshare", "--net", "true"], capture_output=True, text=True, check=False)
    if probe.returncode != 0:
        raise ConfigurationError(
            f"this system refuses network namespaces to root ({probe.stderr.strip() or 'no reason given'}). "
            "Remedy: in a container, run it with --privileged"
        )


def _own() -> str:
    """This command, spelled so that sudo finds it: sudo's PATH has no virtual environment."""
    started = Path(sys.argv[0])
    return str(started.absolute()) if started.name == "fanin" else f"{sys.executable} -m fanin"


def ip(*arguments: str) -> str:
    """Run `ip ARGUMENTS` and return its output; a FaninError has its error text."""
    return run(["ip", *arguments])


def ip_batch(namespace: str, lines: Sequence[str]) -> None:
    """Run `ip` commands, one per line, in a namespace."""
    _batch(["ip", "-netns", namespace, "-batch", "-"], lines)


def tc_batch(namespace: str, lines: Sequence[str]) -> None:
    """Run `tc` commands, one per line, in a namespace."""
    _batch(["tc", "-netns", namespace, "-batch", "-"], lines)


def without_offloads(namespace: str, device: str, offloads: Sequence[str]) -> None:
    """Turn offloads off: a program that reads single frames from the device needs them whole, with checksums."""
    run(in_namespace(namespace, ["ethtool", "-K", device, *(word for each in offloads for word in (each, "off"))]))


def in_namespace(namespace: str, command: Sequence[str]) -> list[str]:
    """The command line that runs `command` in the namespace, replacing its own process."""
    return ["ip", "netns", "exec", namespace, *command]


def run(command: Sequence[str], text: str = "") -> str:
    """Run a command with `text` as input and return its standard output; FaninError if it fails."""
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False, timeout=COMMAND_LIMIT_S)
    if done.returncode != 0:
        raise FaninError(
            f"`{' '.join(command)}` failed: {done.stderr.strip() or f'status {done.returncode}'}. "
            "Remedy: see what the command says; tools such as `ip` and `tc` need root"
        )
    return done.stdout


def _batch(command: list[str], lines: Sequence[str]) -> None:
    if lines:
        run(command, "\n".join(lines) + "\n")
