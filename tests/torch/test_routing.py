"""The routing table: docs and code agree, and there is a route for everything that torch's users sum."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BEGIN, END = "<!-- routes:", "<!-- end of routes -->"


def test_the_table_in_the_docs_is_the_one_in_the_code() -> None:
    from fanin.host.torch.collectives.routing import markdown

    text = (ROOT / "docs" / "torch.md").read_text()
    written = text[text.index("\n", text.index(BEGIN)) : text.index(END)].strip()
    assert written == markdown().strip()


def test_every_element_type_of_the_switch_is_summed_by_the_switch() -> None:
    from fanin.host.torch.collectives.routing import AVG, ELEMENTS, PREMUL_SUM, SUM, Path, route_of

    for dtype, element in ELEMENTS.items():
        assert route_of(SUM, dtype).path is Path.SWITCH
        assert route_of(SUM, dtype).element is element
        for op in (AVG, PREMUL_SUM):
            if element.floating:
                assert route_of(op, dtype).path is Path.SWITCH


def test_gloo_never_sums_floats() -> None:
    from fanin.host.torch.collectives.routing import AVG, PREMUL_SUM, ROUTES, SUM, Path

    for (op, dtype), route in ROUTES.items():
        if op in (SUM, AVG, PREMUL_SUM) and (dtype.is_floating_point or dtype.is_complex):
            assert route.path is Path.SWITCH


def test_gloo_is_asked_only_for_element_types_that_it_knows() -> None:
    from fanin.host.torch.collectives.routing import ROUTES, Path
    from fanin.host.torch.handles.host_tensor import GLOO_DTYPES

    assert all(route.wire_dtype in GLOO_DTYPES for route in ROUTES.values() if route.path is Path.GLOO)


def test_the_backend_is_known_after_import_torch_alone() -> None:
    code = "import torch; assert torch.distributed.is_backend_available('fanin')"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_broken_backend_does_not_break_import_torch() -> None:
    code = (
        "import sys; sys.modules['torch.distributed'] = None\n"
        "from fanin._torch_entry import register\n"
        "register(); register()"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert done.returncode == 0
    assert "could not be registered" in done.stderr


def test_a_pytorch_that_is_too_old_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from fanin import _torch_entry, torch_versions
    from fanin.errors import ConfigurationError

    assert f'torch = ["torch>={torch_versions.OLDEST}"]' in (ROOT / "pyproject.toml").read_text()
    monkeypatch.setattr(torch, "__version__", torch.torch_version.TorchVersion("2.7.1+cpu"))
    with pytest.raises(
        ConfigurationError, match=r"PyTorch 2\.8 or newer, and this is 2\.7\.1.*pip install 'torch>=2\.8'"
    ):
        _torch_entry._create(None, None)
    with pytest.raises(ConfigurationError, match=r"shard_codecs needs PyTorch 2\.9 or newer.*install"):
        from fanin.host.torch import shard_codecs  # noqa: F401


@pytest.mark.parametrize("size", [33, 1000])
def test_more_ranks_than_a_switch_takes_are_refused_with_a_remedy(size: int) -> None:
    from datetime import timedelta

    from torch._C import _distributed_c10d as c10d

    from fanin.errors import UnsupportedError
    from fanin.host.torch import FaninProcessGroup

    with pytest.raises(UnsupportedError, match=f"{size} ranks; one switch takes at most 32.*new_group"):
        FaninProcessGroup(c10d.HashStore(), 0, size, timedelta(seconds=1), group_name="wide")
