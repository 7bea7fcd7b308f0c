"""Check that docstrings, comments and documents are sentences in plain English: `python -m tools.words [FILE...]`.

Rules, in the order of the harm that their violation does
---------------------------------------------------------
* fragment: a docstring starts with its subject. It does not start with a relative word ("What", "Of", "As", "Where",
  "That", "Those", "Who", "Which" and their relatives), whose clause has no main verb or hides the subject. Nor does an
  option's help, or a comment of C++ or P4.
* headless: no sentence has a clause without a head as its subject ("What is refused, the first flow refuses").
* reference: a docstring, help or comment does not replace a description by the name of another function ("As
  Session.submit.").
* short: a docstring, or a comment above a declaration of C++ or P4, of one to three words repeats the name ("Noted.");
  it says more than the name, or it goes.
* idiom: `IDIOMS` has no place in technical text.
* symbol: M, H and S_max mean what `SYMBOLS` says, in every line of every file, formulas and comments of P4 included.

Docstrings are those of modules, classes, functions and of attributes (a string behind an assignment). Comments are
those of Python, and of C++ and P4 in both of their forms. Help is that of Typer's and argparse's options. Messages are
the texts of raised exceptions and of `print`; headless and idiom concern them. In Markdown, code blocks, tables' rules,
quotations and headings are left out.

tests/documents/test_words.py lets no finding pass.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.support.repository import ROOT, repository_files

KINDS = ("*.py", "*.pyi", "*.cpp", "*.hpp", "*.p4", "*.md")
"""Patterns of the files that are checked."""
FRAGMENT = re.compile(
    r"(What|Whatever|Of|As|Where|Wherever|That|Those|Who|Whoever|Whom|Whose|Which|Whichever)\b(?! if\b)"
)
HEADLESS = re.compile(
    r"(?:^|(?<=[.:;!?] ))((?:What|Whatever|Who|Whoever|Whichever)(?:'s| [a-z']+)[^.?!:;]*[.;:])(?=\s|$)"
)
REFERENCE = re.compile(r"(?:As|Like|See) [`\w.]+\.?$|The same(?: as [`\w. ]+)?\.?$")
IDIOMS = re.compile(
    r"\b(so too|so (?:is|are|does|do|has|have|was|were) (?:every|each|any|all|its|the|a)\b|may be had|can be had"
    r"|is as it is|as it was before|and no other\b|for whom it may|has none of its own of)",
    re.IGNORECASE,
)
SYMBOLS = {"M": "N (S_max + 1)", "H": "S_max + 2"}
"""Contributions that a round can hold, and depth of its rings (docs/glossary.md): definitions of these symbols."""
DEFINITION = re.compile(r"\b([MH]) = ((?:N|K|S|S_max|M)\b[^.,;:|`]*)")
OLD_SYMBOL = re.compile(r"\b(?:S|stale) (?:=|>|<=) M\b|\bS \+ 2\b")
"""Uses of M for the largest staleness, and depths of rings that ignore that S may rise."""
SHORT_WORDS = 3
"""Words up to which a docstring counts as too short."""

BLOCKS = ("body", "orelse", "finalbody", "handlers", "cases")
"""Attributes of a syntax-tree node that hold statements, or nodes with statements."""


@dataclass(frozen=True)
class Finding:
    """One violation of a rule, at a line of a file (path relative to the repository)."""

    path: str
    line: int
    rule: str
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.rule}: {self.text}"


def _one_line(text: str) -> str:
    """The text with every run of white space as one space."""
    return " ".join(text.split())


def _in_sentences(text: str) -> Iterator[tuple[str, str]]:
    """Yield (rule, excerpt) for each violation that is possible in any prose."""
    flat = _one_line(text)
    for match in HEADLESS.finditer(flat):
        yield "headless", match[1][:90]
    for match in IDIOMS.finditer(flat):
        yield "idiom", flat[max(0, match.start() - 30) : match.end() + 30]


def _in_description(text: str, *, short: bool = True, lower: bool = False) -> Iterator[tuple[str, str]]:
    """Yield (rule, excerpt) for each violation in a docstring, an option's help or a comment.

    `short` applies the rule of this name; `lower` means that it may start with a small letter.
    """
    flat = _one_line(text)
    first = re.split(r"(?<=[.:]) ", flat, maxsplit=1)[0]
    headed = flat[:1].upper() + flat[1:] if lower else flat
    fragment = FRAGMENT.match(headed)
    if REFERENCE.match(headed):
        yield "reference", flat[:90]
    elif fragment and not first.endswith("?"):
        yield "fragment", first[:90]
    elif short and len(re.findall(r"[\w'`.-]+", flat)) <= SHORT_WORDS:
        yield "short", flat[:90]
    for rule, excerpt in _in_sentences(flat):
        if not (rule == "headless" and flat.startswith(excerpt[:40]) and fragment):
            yield rule, excerpt


def docstrings(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield (line, text) of every docstring of a module, class, function or attribute."""
    nodes = [tree]
    while nodes:  # only statements, because a walk through all expressions takes three times as long
        node = nodes.pop()
        for block in BLOCKS:
            nodes += getattr(node, block, ())
        body = getattr(node, "body", None)
        if not isinstance(body, list):
            continue
        owner = isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        for at, statement in enumerate(body):
            if not (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)):
                continue
            follows_assignment = at > 0 and isinstance(body[at - 1], ast.Assign | ast.AnnAssign)
            if isinstance(statement.value.value, str) and ((owner and at == 0) or follows_assignment):
                yield statement.lineno, statement.value.value


PYTHON_COMMENT = re.compile(
    r"""\"{3}(?:\\.|[^\\])*?\"{3}|'{3}(?:\\.|[^\\])*?'{3}|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'|\#(?P<comment>[^\n]*)""",
    re.DOTALL,
)
"""A string or comment of Python; strings are matched because they may contain the sign of a comment. The tokenizer of
the standard library takes ten times as long."""


def python_comments(source: str) -> Iterator[tuple[int, str]]:
    """Yield (line, text) of every run of comment lines; a comment beside code is a run of its own."""
    run: list[str] = []
    start = last = line = at = 0
    for found in PYTHON_COMMENT.finditer(source):
        if found["comment"] is None:
            continue
        line, at = line + source.count("\n", at, found.start()), found.start()
        alone = source[source.rfind("\n", 0, at) + 1 : at].strip() == ""
        if run and not (alone and line == last + 1):
            yield start + 1, " ".join(run)
            run = []
        if not run:
            start = line
        run.append(found[0].lstrip("#: "))
        last = line if alone else -1
    if run:
        yield start + 1, " ".join(run)


def help_texts(nodes: Iterable[ast.Call | ast.Raise]) -> Iterator[tuple[int, str]]:
    """Yield (line, text) of the help of every option of Typer and argparse."""
    for node in nodes:
        if isinstance(node, ast.Call):
            for keyword in node.keywords:
                if keyword.arg == "help" and (text := _literal(keyword.value)):
                    yield keyword.value.lineno, text


def messages(nodes: Iterable[ast.Call | ast.Raise]) -> Iterator[tuple[int, str]]:
    """Yield (line, text) of every text given to an exception that is raised, or to `print`."""
    for node in nodes:
        call = node.exc if isinstance(node, ast.Raise) else node
        if not isinstance(call, ast.Call):
            continue
        if isinstance(node, ast.Raise) or (isinstance(call.func, ast.Name) and call.func.id == "print"):
            yield from ((each.lineno, text) for each in call.args if (text := _literal(each)))


def _literal(node: ast.expr) -> str:
    """The text of a string or formatted string, with `{}` for each value in it; "" for any other expression."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    if isinstance(node, ast.JoinedStr):
        return "".join("{}" if isinstance(each, ast.FormattedValue) else _literal(each) for each in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _literal(node.left) + _literal(node.right)
    return ""


@dataclass(frozen=True)
class Comment:
    """A comment of C++ or P4: its first line, its text, and whether it stands on lines of its own."""

    line: int
    text: str
    alone: bool


SLASH_COMMENT = re.compile(
    r'(?P<text>R"\((?s:.*?)\)"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])\')|//(?P<line>[^\n]*)|/\*(?P<block>(?s:.*?))\*/'
)
"""A string, character or comment of C++ or P4; strings are matched because they may contain the signs of a comment."""
LABEL = re.compile(r"-{2,}|={2,}|namespace\b|NOLINT|clang-format|defined\b|R-[A-Z]+-\d+")
"""Starts of comments that are no prose: headings, ends of namespaces, instructions to tools, names of rules."""


def slash_comments(source: str) -> Iterator[Comment]:
    """Yield every run of `//` comments, and every `/* */` comment, of C++ or P4."""
    run: list[str] = []
    start = last = 0
    own = True
    for found in SLASH_COMMENT.finditer(source):
        if found["text"] is not None:
            continue
        number = source.count("\n", 0, found.start()) + 1
        alone = source[source.rfind("\n", 0, found.start()) + 1 : found.start()].strip() == ""
        if run and (found["line"] is None or not (alone and number == last + 1)):
            yield Comment(start, " ".join(run), own)
            run = []
        if found["block"] is not None:
            yield Comment(number, re.sub(r"\n\s*\*", "\n", found["block"]).strip(), alone)
            continue
        if not run:
            start, own = number, alone
        run.append(found["line"].strip())
        last = number if alone else -1
    if run:
        yield Comment(start, " ".join(run), own)


def _in_comment(comment: Comment) -> Iterator[tuple[str, str]]:
    """Yield (rule, excerpt) for each violation in a comment of C++ or P4; one beside code may be short."""
    if LABEL.match(comment.text):
        yield from _in_sentences(comment.text)
    else:
        yield from _in_description(comment.text, short=comment.alone and comment.text[:1].isupper())


def markdown(source: str) -> Iterator[tuple[int, str]]:
    """Yield (line, text) of every line of prose and every cell of a table."""
    fenced = False
    for number, line in enumerate(source.splitlines(), 1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif not fenced and not line.startswith(("#", "|--", ">", "    ")):
            for cell in (
                line.strip("|").split(" | ") if line.startswith("|") else [re.sub(r"^\s*(?:[*-]|\d+\.) ", "", line)]
            ):
                yield number, cell.strip()


def symbols(source: str) -> Iterator[tuple[int, str]]:
    """Yield (line, excerpt) of every formula that gives a symbol another meaning."""
    for number, line in enumerate(source.splitlines(), 1):
        other = [found[0] for found in DEFINITION.finditer(line) if not found[2].startswith(SYMBOLS[found[1]])]
        other += [found[0] for found in OLD_SYMBOL.finditer(line)]
        yield from ((number, each) for each in other)


def findings(path: Path) -> list[Finding]:
    """Return every violation in a file; files of other kinds have none."""
    name, source = str(path.relative_to(ROOT)), path.read_text(encoding="utf-8")
    found: list[tuple[int, str, str]] = []
    if path.suffix in (".py", ".pyi"):
        tree = ast.parse(source)
        found += [(line, *each) for line, text in docstrings(tree) for each in _in_description(text)]
        found += [(line, *each) for line, text in python_comments(source) for each in _in_sentences(text)]
        said = [node for node in ast.walk(tree) if isinstance(node, ast.Call | ast.Raise)]  # one walk for both
        found += [
            (line, *each) for line, text in help_texts(said) for each in _in_description(text, short=False, lower=True)
        ]
        found += [(line, *each) for line, text in messages(said) for each in _in_sentences(text)]
    elif path.suffix in (".cpp", ".hpp", ".p4"):
        found += [(each.line, *seen) for each in slash_comments(source) for seen in _in_comment(each)]
    elif path.suffix == ".md":
        found += [(line, *each) for line, text in markdown(source) for each in _in_sentences(text)]
    found += [(line, "symbol", text) for line, text in symbols(source)]
    return [Finding(name, line, rule, text) for line, rule, text in sorted(set(found))]


def main(arguments: list[str]) -> int:
    """Print the findings in the files given (default: all), and end with 1 if there are any."""
    files = [Path(each).resolve() for each in arguments] or repository_files(*KINDS)
    found = [each for path in files for each in findings(path)]
    for each in found:
        print(each)
    print(f"{len(found)} findings", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
