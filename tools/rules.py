"""Collects the machines' rules, the lines that obey them, and the tests that show it: `python -m tools.rules`.

docs/rules.md has them all in one place: number, text, lines and tests. It is generated, and its texts are those of
docs/slot-machine.md, docs/protocol.md and docs/control.md, where a rule is written in its context, as
**R-SLOT-3, its title.** and its text, in a list, in a paragraph or in a row of a table. A comment names it at the line
that obeys it, in Python, C++ and P4, and in or above the test that shows it. The rules of the worker's result are rows
of data (host/machine/result_rows.py), from which docs/protocol.md and the native table are generated.

`python -m tools.rules` prints docs/rules.md. `python -m tools.rules R-SLOT-3` prints the text and places of one rule.
`python -m tools.rules --write` writes all that is generated: the rows in docs/protocol.md, the native table,
docs/rules.md. tests/documents/test_rules.py fails where a text differs between pages, for a rule without a text, a line
or a test, and for a line or a test without a rule.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from fanin.host.machine.result_rows import ROWS, Deed, Fact, Row

ROOT = Path(__file__).resolve().parent.parent
INDEX = "docs/rules.md"
RESULT_PAGE = "docs/protocol.md"
RESULT_HEADER = "native/machine/result_rows.hpp"
PAGES = ("docs/slot-machine.md", "docs/protocol.md", "docs/control.md")
TITLES = {
    "SLOT": "Slots",
    "LEAF": "Leaves of a tree",
    "WORKER": "The worker",
    "RESULT": "A result at the worker",
    "RECEIPT": "Receipts",
    "RECOVERY": "Loss recovery",
    "CONGESTION": "Congestion window and pace",
    "MEMBER": "Membership",
    "JOB": "Life of a job",
}
"""Titles of the groups of rules, in the order of the index."""
CODE = (
    "switch/machine",
    "switch/controller",
    "host/machine",
    "fanin/protocol",
    "native/machine",
    "p4/v1model",
    "p4/tna",
)
COMMENT_MARKS = {".py": "#", ".hpp": "//", ".cpp": "//", ".p4": "/*"}
"""By a file's suffix, the start of a comment that may name a rule."""
ONE_LANGUAGE = frozenset({"JOB"})
"""Groups that are implemented in Python alone, because controllers have no native twin."""
OWN_TEST = "tests/documents/test_rules.py"
"""Test that names rules of its own, which no page defines."""

NUMBER = re.compile(r"\bR-([A-Z]+)-([0-9]+)\b")
DEFINITION = re.compile(r"\*\*(R-[A-Z]+-[0-9]+), ([^*]+?)\.?\*\*")
ITEM = re.compile(r" *(-|[0-9]+\.) ")
"""Start of an item of a list, which ends the text of a rule above it."""
MADE = "<!-- made by python -m tools.rules: begin -->\n", "<!-- made: end -->\n"


@dataclass(frozen=True, order=True, slots=True)
class Place:
    """A line that names a rule, and the function that it is in."""

    path: str
    function: str
    line: int


@dataclass(frozen=True, slots=True)
class Rules:
    """All rules by number, each with its page, its title, its text and the places that name it."""

    page: dict[str, str]
    title: dict[str, str]
    text: dict[str, str]
    repeated: list[str]
    code: dict[str, list[Place]]
    tests: dict[str, list[Place]]

    @property
    def ordered(self) -> list[str]:
        """Numbers in the order of the index."""
        return sorted(self.page, key=order)

    def missing(self) -> list[str]:
        """Complaints about rules without a text, a line or a test, numbers without a rule, gaps in the numbers."""
        found = [f"{rule} stands twice" for rule in self.repeated]
        for rule in self.ordered:
            if DEFINITION.fullmatch(self.text[rule]):
                found.append(f"{rule} has no text")
            suffixes = {Path(place.path).suffix for place in self.code.get(rule, [])}
            if ".py" not in suffixes:
                found.append(f"{rule} has no line in Python")
            if not suffixes & {".hpp", ".cpp"} and group(rule) not in ONE_LANGUAGE:
                found.append(f"{rule} has no line in C++")
            if rule not in self.tests:
                found.append(f"{rule} has no test")
        for where in (self.code, self.tests):
            found += [f"{rule}, named in {where[rule][0].path}, is no rule" for rule in where if rule not in self.page]
        for name in {group(rule) for rule in self.page}:
            numbers = sorted(order(rule)[1] for rule in self.page if group(rule) == name)
            if numbers != [*range(1, len(numbers) + 1)] or name not in TITLES:
                found.append(f"R-{name} has the numbers {numbers}")
        return found


def group(rule: str) -> str:
    """The group in a rule's number, such as SLOT."""
    return rule.split("-")[1]


def order(rule: str) -> tuple[int, int]:
    """Sort key of a rule in the index: index of its group, and its number there."""
    names = list(TITLES)
    name = group(rule)
    return names.index(name) if name in names else len(names), int(rule.split("-")[2])


def collect(root: Path = ROOT) -> Rules:
    """Read pages, code and tests below `root`."""
    rules = Rules({}, {}, {}, [], {}, {})
    for page in PAGES:
        for rule, title, text in definitions((root / page).read_text(encoding="utf-8")):
            if rule in rules.page:
                rules.repeated.append(rule)
            rules.page[rule], rules.title[rule], rules.text[rule] = page, title, text
    for folder in CODE:
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in COMMENT_MARKS:
                _collect(rules.code, root, path)
    for path in sorted((root / "tests").rglob("test_*.py")):
        if path != root / OWN_TEST:
            _collect(rules.tests, root, path, tests=True)
    return rules


def definitions(page: str) -> Iterator[tuple[str, str, str]]:
    """Yield (number, title, text) of each rule of a page; the text begins with number and title.

    Of a rule in a row it has all cells, each behind the name of its column. Any other text ends at a blank line or at
    the next item of a list.
    """
    lines = page.splitlines()
    columns: list[str] = []
    for number, line in enumerate(lines):
        columns = _cells(line) if line.startswith("| rule |") else columns
        for match in DEFINITION.finditer(line):
            if line.startswith("|"):
                named = zip(columns[1:], _cells(line)[1:], strict=True)
                cells = [f"*{column.capitalize()}:* {cell}." for column, cell in named if cell]
                yield match[1], match[2], " ".join([match[0], *cells])
                continue
            text = [line[match.start() :].strip()]
            for later in lines[number + 1 :]:
                if not later or ITEM.match(later):
                    break
                text.append(later.strip())
            yield match[1], match[2], "\n".join(text)


def _cells(row: str) -> list[str]:
    """The cells of a row of a Markdown table."""
    return [cell.strip() for cell in row.strip().strip("|").split(" | ")]


def _collect(found: dict[str, list[Place]], root: Path, path: Path, *, tests: bool = False) -> None:
    """Add to `found` the places in a file where a comment names a rule."""
    mark = COMMENT_MARKS[path.suffix]
    source = path.read_text(encoding="utf-8")
    if not NUMBER.search(source):
        return
    functions = _python_functions(source) if path.suffix == ".py" else {}
    for number, line in enumerate(source.splitlines(), 1):
        continued = path.suffix == ".p4" and line.startswith(" *")
        comment = line if continued else line.partition(mark)[2]
        for match in NUMBER.finditer(comment):
            function = functions.get(number, "")
            if not tests or function.startswith("test_"):
                found.setdefault(match[0], []).append(Place(str(path.relative_to(root)), function, number))


def _python_functions(source: str) -> dict[int, str]:
    """By line, the innermost function; a comment right above a function belongs to it."""
    lines = source.splitlines()
    found: dict[int, str] = {}
    nodes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef | ast.ClassDef)]
    for node in sorted(nodes, key=lambda node: node.lineno):
        if isinstance(node, ast.ClassDef):
            continue
        first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
        while first > 1 and lines[first - 2].lstrip().startswith("#"):
            first -= 1
        for line in range(first, (node.end_lineno or node.lineno) + 1):
            found[line] = node.name
    return found


# --- what is made ---


def index(rules: Rules) -> str:
    """The text of docs/rules.md."""
    lines = [
        "# Rules",
        "",
        "Each rule of the machines has a number.",
        "Its text, with its reason, is the same here and on the page that is linked, which shows it in its context.",
        "A comment names the number at each line that obeys the rule, in Python, C++ and P4, and in each test that "
        "shows it.",
        "`grep -rn R-SLOT-9 switch native p4 tests`, or `python -m tools.rules R-SLOT-9`, finds the lines.",
        "`python -m tools.rules --write` makes this page; `tests/documents/test_rules.py` refuses a text that differs "
        "from the other page's, and a rule without a line or a test.",
    ]
    for name, title in TITLES.items():
        rows = [rule for rule in rules.ordered if group(rule) == name]
        if not rows:
            continue
        pages = [page.removeprefix("docs/") for page in dict.fromkeys(rules.page[rule] for rule in rows)]
        stand = " and ".join(f"[{page}]({page})" for page in pages)
        lines += ["", f"## {title}", "", f"The context of these rules is in {stand}.", ""]
        for rule in rows:
            code, tests = _links(rules.code.get(rule, [])), _links(rules.tests.get(rule, []))
            text = "\n  ".join(rules.text[rule].splitlines())
            lines += [f"- {text}", f"  Lines: {code}.", f"  Tests: {tests}."]
    return "\n".join(lines) + "\n"


def _links(places: list[Place]) -> str:
    """Links to the files of these places, each with the functions there."""
    files: dict[str, list[str]] = {}
    for place in places:
        functions = files.setdefault(place.path, [])
        if place.function and place.function not in functions:
            functions.append(place.function)
    return "; ".join(
        f"[{path.removeprefix('p4/') if path.startswith('p4/') else Path(path).name}](../{path})"
        + "".join(f" `{function}`" for function in functions)
        for path, functions in files.items()
    )


def result_rows() -> str:
    """The table of a result's rows for docs/protocol.md."""
    lines = ["| rule | the packet | what is done |", "|---|---|---|"]
    for number, row in enumerate(ROWS, 1):
        lines.append(f"| **R-RESULT-{number}, {row.title}** | {row.condition} | {row.done} |")
    return "\n".join(lines) + "\n"


def result_page(text: str) -> str:
    """docs/protocol.md, whose present text is `text`, with the generated rows."""
    before, _, rest = text.partition(MADE[0])
    _, _, after = rest.partition(MADE[1])
    return before + MADE[0] + result_rows() + MADE[1] + after


def result_header() -> str:
    """The text of native/machine/result_rows.hpp."""
    return "\n".join(
        [
            "// By `python -m tools.rules --write`, from host/machine/result_rows.py, which says what each name means.",
            "// clang-format off",
            "#pragma once",
            "",
            "#include <array>",
            "#include <cstdint>",
            "",
            "namespace fanin {",
            "",
            "// Facts of a result or an answer, and of the item that it is for.",
            "namespace fact {",
            *(f"inline constexpr std::uint32_t {fact.name} = {fact.value};" for fact in Fact),
            f"inline constexpr std::uint32_t COMBINATIONS = {1 << len(Fact)};",
            "}  // namespace fact",
            "",
            "enum class Deed : std::uint8_t {",
            *(f"  {deed.name.lower()} = {deed.value}," for deed in Deed),
            "};",
            "",
            "struct ResultRow {",
            "  std::uint32_t has;",
            "  std::uint32_t lacks;",
            "  Deed deed;",
            "};",
            "",
            "// The first row that holds decides.",
            f"inline constexpr std::array<ResultRow, {len(ROWS)}> RESULT_ROWS = {{{{",
            *(_cpp_row(number, row) for number, row in enumerate(ROWS, 1)),
            "}};",
            "",
            "// The deed for each combination of facts, so that a packet costs one look-up.",
            "inline constexpr std::array<Deed, fact::COMBINATIONS> DEEDS = [] {",
            "  std::array<Deed, fact::COMBINATIONS> deeds{};",
            "  for (std::uint32_t facts = 0; facts < fact::COMBINATIONS; ++facts)",
            "    for (const ResultRow& row : RESULT_ROWS)",
            "      if ((facts & row.has) == row.has && (facts & row.lacks) == 0) {",
            "        deeds[facts] = row.deed;",
            "        break;",
            "      }",
            "  return deeds;",
            "}();",
            "",
            "}  // namespace fanin",
            "",
        ]
    )


def _cpp_row(number: int, row: Row) -> str:
    has, lacks = (
        " | ".join(f"fact::{fact.name}" for fact in Fact if fact & facts) or "0" for facts in (row.has, row.lacks)
    )
    return f"    {{{has}, {lacks}, Deed::{row.deed.name.lower()}}},  // R-RESULT-{number}, {row.title}"


def made(rules: Rules) -> Iterator[tuple[str, str]]:
    """Yield each generated file, as (path, text)."""
    yield RESULT_HEADER, result_header()
    yield RESULT_PAGE, result_page((ROOT / RESULT_PAGE).read_text(encoding="utf-8"))
    yield INDEX, index(rules)


def main(arguments: list[str]) -> int:
    """Run the command; returns 1 if --check finds a difference."""
    if arguments == ["--write"]:
        for path, text in made(collect()):
            (ROOT / path).write_text(text, encoding="utf-8")
        return 0
    rules = collect()
    if arguments == ["--check"]:
        found = rules.missing() + [
            f"{path} is not as it is made" for path, text in made(rules) if (ROOT / path).read_text() != text
        ]
        print("\n".join(found), end="\n" if found else "")
        return bool(found)
    for rule in arguments:
        print(f"{rules.text[rule]} ({rules.page[rule]})")
        for place in [*rules.code.get(rule, []), *rules.tests.get(rule, [])]:
            print(f"  {place.path}:{place.line}: {place.function}")
    if not arguments:
        print(index(rules), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
