"""The native extension. Everything else about the package stands in pyproject.toml."""

import os
import runpy
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from types import MethodType

import pybind11
from pybind11.setup_helpers import ParallelCompile, Pybind11Extension, build_ext
from setuptools import setup
from setuptools._distutils.ccompiler import new_compiler
from setuptools._distutils.sysconfig import customize_compiler
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

NATIVE = os.environ.get("FANIN_BUILD_NATIVE", "1") != "0"  # 0: without the extension, the Python twin runs, slowly
SANITIZER = os.environ.get("FANIN_SANITIZE", "")  # "address,undefined" or "thread": see docs/development.md
COMPILING = {"bdist_wheel", "build", "build_ext", "develop", "editable_wheel", "install"}
"""Commands that compile the extension; others, such as those that ask for metadata, need no compiler."""
FLAGS = ["-fno-math-errno", "-ffp-contract=off", "-Wall", "-Wextra", "-Wshadow", "-g1", "-MMD"]
if os.environ.get("FANIN_BUILD_WARNINGS") == "error":  # a developer's compiler, not a user's, which may warn of more
    FLAGS.append("-Werror")
QUICK = os.environ.get("FANIN_BUILD_QUICK", "") not in ("", "0")
"""Whether to optimize nothing, which compiles in half of the time: for checks that ask whether it works, not how fast.
"""
LINK = ["-pthread"]
UNITS = {"codecs": 1, "io": 1, "machine": 1, "p4": 1, "bind": 2}
"""Folders of native/ whose files are compiled together, in so many translation units. Most of the time goes to headers
and templates that the files of a folder have in common, pybind11's above all."""
GLUE = "bind"
"""The unit that only converts arguments: it is compiled with -O1, which takes two thirds of the time, and linked last,
so that inline functions which it shares with others are theirs, with -O3."""
LOOPS = ["--param", "vect-epilogues-nomask=0"]
"""Flags of kernels with long vectors: the compiler vectorizes their loops once. It would do so again with shorter
vectors for what is left at a loop's end, which takes half of the time of compiling and nothing off that of a sum."""
if SANITIZER:
    FLAGS += [f"-fsanitize={SANITIZER}", "-fno-omit-frame-pointer", "-DFANIN_SANITIZED=1"]
    LINK += [f"-fsanitize={SANITIZER}"]


def in_units(sources: list[str], folder: Path) -> list[str]:
    """Sources to compile in the place of these: files in `folder` that include those of a folder of UNITS.

    Units among the sources are kept: a wheel's build comes to its extension twice.
    """
    kept = [source for source in sources if Path(source).parent.name not in UNITS]
    made = []
    for name, count in UNITS.items():
        files = [Path(source) for source in sources if Path(source).parent.name == name]
        for number in range(count if files else 0):
            unit = folder / f"{name}_{number}.cpp"
            included = files[number * len(files) // count : (number + 1) * len(files) // count]
            text = "".join(f'#include "{each.relative_to("native")}"\n' for each in included)
            if not unit.exists() or unit.read_text() != text:  # a unit that is written again is compiled again
                folder.mkdir(parents=True, exist_ok=True)
                unit.write_text(text)
            made.append(str(unit))
    return kept + made


def level_of(source: Path) -> list[str]:
    """Flags that say how much a source is optimized."""
    unit = source.stem.partition("_")[0]
    if SANITIZER == "thread" and unit in ("io", "machine"):  # where threads meet, and its tests spend their time
        return ["-O1"]
    if QUICK or SANITIZER:  # ASan's and UBSan's builds take half of the time so, and their tests no longer
        return ["-O0"]
    if unit == GLUE:
        return ["-O1"]
    return ["-O3", *(LOOPS if source.stem in ("kernels_avx2", "kernels_avx512") else [])]


def needs_recompile(object_file: str, source: str) -> bool:
    """Whether the source, a header that it includes or this file is newer than the object."""
    compiled, dependencies = Path(object_file), Path(object_file).with_suffix(".d")
    if not (compiled.exists() and dependencies.exists()):
        return True
    _, _, listed = dependencies.read_text().partition(":")
    inputs = [Path(__file__), Path(source), *map(Path, listed.replace("\\\n", " ").split())]
    return any(not path.exists() or path.stat().st_mtime > compiled.stat().st_mtime for path in inputs)


def missing() -> str:
    """The missing requirement for compiling the extension, with the remedy; empty if everything is there."""
    found = new_compiler()
    customize_compiler(found)
    words = getattr(found, "compiler_so_cxx", None) or found.compiler_so
    compiler = [word for word in words if not word.startswith("-")]  # perhaps behind ccache
    remedy = "or set FANIN_BUILD_NATIVE=0 for the Python twin alone, which is many times slower"
    if shutil.which(compiler[0]) is None:
        return f"{compiler[0]} is not there. Remedy: install a C++20 compiler (Debian: apt install g++), {remedy}"
    for source, what in (
        ("#include <concepts>", "does not compile C++20. Remedy: install g++ 11 or clang 14, or newer"),
        (
            "#include <Python.h>",
            "finds no Python.h. Remedy: install Python's headers (Debian: apt install python3-dev)",
        ),
    ):
        includes = [f"-I{sysconfig.get_path('include')}", f"-I{sysconfig.get_path('platinclude')}"]
        probe = [*compiler, "-std=c++20", "-fsyntax-only", *includes, "-x", "c++", "-"]
        if subprocess.run(probe, input=source.encode(), capture_output=True, check=False).returncode:
            return f"{compiler[0]} {what}, {remedy}"
    return ""


def write_commit(folder: Path) -> None:
    """Write into fanin/ of a wheel or a source distribution which commit it is made from (fanin/build_commit.py)."""
    of_checkout = runpy.run_path("fanin/build_commit.py")["of_checkout"]  # fanin itself may not be importable yet
    if (commit := of_checkout(Path.cwd())) is not None:  # none: these are the files of a source distribution
        (folder / "fanin" / "commit.txt").write_text(commit, encoding="ascii")


class BuildPython(build_py):
    """Writes the commit into a wheel."""

    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            write_commit(Path(self.build_lib))


class SourceDistribution(sdist):
    """Writes the commit into a source distribution: wheels that are built from it name it, too."""

    def make_release_tree(self, base_dir: str, files: list[str]) -> None:
        super().make_release_tree(base_dir, files)
        write_commit(Path(base_dir))


class BuildExtension(build_ext):
    """Keeps objects in build/ between builds, editable ones too, so that only what changed is compiled again."""

    def finalize_options(self) -> None:
        super().finalize_options()
        kind = SANITIZER.replace(",", "-") or "release"
        self.build_temp = str(Path("build", f"native-{kind}-{sys.implementation.cache_tag}"))

    def build_extensions(self) -> None:
        # Of this very compiler: ParallelCompile.install() changes a class of distutils, of which setuptools has two.
        compile_sources = ParallelCompile("FANIN_BUILD_JOBS", needs_recompile=needs_recompile, default=0).function()
        self.compiler.compile = MethodType(compile_sources, self.compiler)
        compile_one = self.compiler._compile

        def compile_as_it_needs(
            obj: str, source: str, ext: str, given: list[str], extra: list[str], macros: list[str]
        ) -> None:
            compile_one(obj, source, ext, given, [*extra, *level_of(Path(source))], macros)

        self.compiler._compile = compile_as_it_needs
        for extension in self.extensions:
            extension.sources = in_units(extension.sources, Path(self.build_temp, "units"))
        super().build_extensions()


if NATIVE and COMPILING.intersection(sys.argv) and (lacking := missing()):
    # An error, before anything is copied and in one line: with the twin instead, fanin would work and be slow.
    raise SystemExit(f"fanin: the native engine cannot be built: {lacking}")
setup(
    cmdclass={"build_ext": BuildExtension, "build_py": BuildPython, "sdist": SourceDistribution},
    ext_modules=[]
    if not NATIVE
    else [
        Pybind11Extension(
            "fanin._native",
            sorted(str(path) for path in Path("native").glob("*/*.cpp") if path.parent.name != "fuzz"),
            depends=["setup.py", *sorted(map(str, Path("native").glob("*/*.hpp")))],  # a change of these is one
            include_dirs=["native"],
            cxx_std=20,
            extra_compile_args=[*FLAGS, "-pthread", "-isystem", pybind11.get_include()],  # its warnings are not ours
            extra_link_args=LINK,
        )
    ],
)
