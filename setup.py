"""The native extension. Everything else about the package stands in pyproject.toml."""

import os
import sys
from pathlib import Path

import pybind11
from pybind11.setup_helpers import ParallelCompile, Pybind11Extension, build_ext
from setuptools import setup

SANITIZER = os.environ.get("FANIN_SANITIZE", "")  # "address,undefined" or "thread": see docs/development.md
FLAGS = ["-O3", "-fno-math-errno", "-ffp-contract=off", "-Wall", "-Wextra", "-Wshadow", "-g1", "-MMD"]
LINK = ["-pthread"]
if SANITIZER:
    FLAGS += [f"-fsanitize={SANITIZER}", "-fno-omit-frame-pointer", "-DFANIN_SANITIZED=1", "-O1"]
    LINK += [f"-fsanitize={SANITIZER}"]


def needs_recompile(object_file: str, source: str) -> bool:
    """Whether the source, a header that it includes or this file is newer than the object."""
    compiled, dependencies = Path(object_file), Path(object_file).with_suffix(".d")
    if not (compiled.exists() and dependencies.exists()):
        return True
    _, _, listed = dependencies.read_text().partition(":")
    inputs = [Path(__file__), Path(source), *map(Path, listed.replace("\\\n", " ").split())]
    return any(not path.exists() or path.stat().st_mtime > compiled.stat().st_mtime for path in inputs)


class BuildExtension(build_ext):
    """Keeps objects in build/ between builds, editable ones too, so that only what changed is compiled again."""

    def finalize_options(self) -> None:
        super().finalize_options()
        kind = SANITIZER.replace(",", "-") or "release"
        self.build_temp = str(Path("build", f"native-{kind}-{sys.implementation.cache_tag}"))


ParallelCompile("FANIN_BUILD_JOBS", needs_recompile=needs_recompile, default=0).install()
setup(
    cmdclass={"build_ext": BuildExtension},
    ext_modules=[
        Pybind11Extension(
            "fanin._native",
            sorted(str(path) for path in Path("native").glob("*.cpp")),
            depends=sorted(str(path) for path in Path("native").glob("*.hpp")),  # or a change of these builds nothing
            include_dirs=["native"],
            cxx_std=20,
            extra_compile_args=[*FLAGS, "-pthread", "-isystem", pybind11.get_include()],  # its warnings are not ours
            extra_link_args=LINK,
        )
    ],
)
