"""A tree of links around another build of the extension: whatever its tests start loads that build."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tools.linked_tree import link_tree

SAYS_WHERE = "import tests.support.rank_server as server; print(server.ROOT)"


def test_ranks_find_the_package_of_the_tree_that_their_test_runs_in(tmp_path: Path) -> None:
    """A rank finds its programs through PYTHONPATH, where this folder comes first."""
    tree = tmp_path / "tree"
    link_tree(tree)
    said = subprocess.run([sys.executable, "-c", SAYS_WHERE], cwd=tree, capture_output=True, text=True, check=True)
    assert Path(said.stdout.strip()) == tree
