"""Packages that a command needs beyond fanin's own dependencies, and the extra to install if one is missing."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path

from fanin.errors import ConfigurationError

MODULES = {
    "torch": ("torch",),
    "demo": ("torch", "sklearn"),
    "docs": ("mkdocs", "mkdocstrings"),
    "federated": ("torch", "sklearn"),
    "frameworks": ("accelerate", "deepspeed", "lightning", "ray", "transformers"),
    "metrics": ("prometheus_client",),
    "otel": ("opentelemetry",),
    "notebooks": (
        "torch",
        "matplotlib",
        "jinja2",
        "scapy",
        "ipykernel",
        "jupytext",
        "nbclient",
        "nbconvert",
        "sklearn",
    ),
    "p4": ("grpc", "google", "p4"),
    "plot": ("matplotlib", "jinja2"),
    "rl": ("torch", "gymnasium"),
    "scapy": ("scapy",),
    "torchft": ("torch", "torchft"),
}
"""Top-level modules that each extra of pyproject.toml brings."""


def require(extra: str, what: str) -> None:
    """ConfigurationError where a module of that extra is not installed: before processes are started that need it."""
    for module in MODULES[extra]:
        if importlib.util.find_spec(module) is None:
            raise ConfigurationError(f"{what} needs {module}. Remedy: pip install 'fanin[{extra}]'")


def require_for(command: Sequence[str]) -> None:
    """Require torch for a training command that torchrun starts with our own interpreter: `python train.py`."""
    if len(command) > 1 and Path(command[0]).name == command[0] and command[0].startswith("python"):
        require("torch", f"{command[0]} under torchrun")


def remedy(module: str | None) -> str | None:
    """The installation command for a module that could not be imported; None if no extra has it."""
    top = (module or "").partition(".")[0]
    return next((f"pip install 'fanin[{extra}]'" for extra, modules in MODULES.items() if top in modules), None)
