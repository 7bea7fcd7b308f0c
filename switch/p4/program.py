"""A compiled program (BMv2's JSON format) made into Python functions, with the state that it works on.

The format is the one that p4c-bm2-ss writes and docs/JSON_format.md of the behavioral model describes. Loading turns
parser, actions, tables, checksums and deparser into the source of one Python module and compiles that once; a packet
then runs through functions, not through JSON. Parts that are not implemented are refused here, with their place in the
document.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import CodeType
from typing import Any

from fanin.errors import ProgramError, UnsupportedError
from fanin.switch.p4.action_profiles import ActionProfile
from fanin.switch.p4.actions import ActionFacts, TableError
from fanin.switch.p4.bounds import MAX_FIELD_BITS, SourceBudget
from fanin.switch.p4.calculations import algorithm, calculation_source
from fanin.switch.p4.control_flow import HIT, MISS, ControlFlow, TableSource
from fanin.switch.p4.document import Node
from fanin.switch.p4.externs import Counter, ExternBudget, Register, read_counters, read_registers
from fanin.switch.p4.header_codec import word_format
from fanin.switch.p4.layout import Layout
from fanin.switch.p4.meters import MeterArray, read_meters
from fanin.switch.p4.packet_state import RUNTIME
from fanin.switch.p4.parser import ParserCompiler, ValueSet, deparser_lines, read_errors
from fanin.switch.p4.primitives import Compiler, Objects
from fanin.switch.p4.tables import Table

MAJOR_VERSION = 2
"""Version of the JSON format; the meaning of other versions is unknown."""
PIPELINES = ("ingress", "egress")
PROGRAMS_KEPT = 4
"""Programs whose code is kept, since a third of loading one again would be spent on that."""
OTHER_ARCHITECTURES = {"PSA": {"ingress_parser", "egress_parser"}, "PNA": {"main_parser"}}
"""Names of parsers in what p4c-bm2-psa and p4c-pna make."""
REFUSED = {"extern_instances": "extern instances of the program's own"}
"""Members of the document that must be empty, and what they declare."""


@dataclass(frozen=True, slots=True)
class LearnList:
    """The fields of a digest: name, and place and width of each."""

    name: str
    places: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Program:
    """A loaded program. Its functions take `f`, the list of fields, and `k`, the packet state."""

    layout: Layout
    errors: Mapping[str, int]
    tables: Mapping[str, Table]
    registers: Mapping[str, Register]
    counters: Mapping[str, Counter]
    value_sets: Mapping[str, ValueSet]
    meters: Mapping[str, MeterArray]
    profiles: Mapping[str, ActionProfile]
    learn_lists: Mapping[int, LearnList]
    python_only: tuple[str, ...]
    """Parts of it that the native interpreter does not run, in words."""
    field_lists: Mapping[int, tuple[int, ...]]
    """Places of the fields that a clone, or a packet on its second way, keeps."""
    actions: Mapping[str, tuple[str, ...]]
    """Names of the parameters of every action of a table."""
    document: str | bytes
    """The document that it was made of. Two programs of one document differ in their state alone."""
    source: str
    """The Python that runs; the native interpreter's code is made of it."""
    names: dict[str, Any]
    """Values of the names in `source`: the globals of its functions."""
    nodes: Mapping[str, tuple[str, str]]
    """By the name of a function in `source`: what it is (state, table, condition, call), and its name in P4."""
    parser_start: Callable[..., Any] | None
    ingress_start: Callable[..., Any] | None
    egress_start: Callable[..., Any] | None
    verify: Callable[[list[int], Any], bool]
    """Whether a checksum that the program wants verified is wrong."""
    update: Callable[[list[int], Any], None]
    """Compute the checksums that the program wants written."""
    deparse: Callable[[list[int], Any], bytes]


def load(text: str | bytes, *, drop_port: int) -> Program:
    """Compile a program.

    `drop_port` is what mark_to_drop writes. ProgramError for a document that is malformed, UnsupportedError for a
    construct that is not implemented; both name the place. Widths and counts beyond switch/p4/bounds.py are refused
    before there is memory for them.
    """
    try:
        return _loaded(text, drop_port)
    except RecursionError:
        raise UnsupportedError("the program's expressions are nested too deeply") from None


def _loaded(text: str | bytes, drop_port: int) -> Program:
    root = Node.read(text)
    _check_version(root)
    _check_architecture(root)
    for key, what in REFUSED.items():
        if (found := next(root.each(key), None)) is not None:
            raise UnsupportedError(f"{found.path}: {what} are not implemented")
    layout = Layout.read(root)
    memory, budget = ExternBudget(), SourceBudget()
    registers, counters, errors = read_registers(root, memory), read_counters(root, memory), read_errors(root)
    calculations = {node["name"].text: f"K_{at}" for at, node in enumerate(root.each("calculations"))}
    field_lists = {node["id"].integer: _places(node, layout) for node in root.each("field_lists")}
    meters, learn_lists = read_meters(root, memory), _learn_lists(root, layout)
    objects = Objects(
        layout,
        registers,
        counters,
        calculations,
        frozenset(field_lists),
        drop_port,
        meters,
        frozenset(learn_lists),
        budget,
    )
    names: dict[str, Any] = dict(RUNTIME)
    names |= {register.symbol: register.cells for register in registers.values()}
    names |= {counter.symbol: counter for counter in counters.values()}
    names |= {meter.symbol: meter for meter in meters.values()}

    structs: dict[str, str] = {}
    for at, kind in enumerate(layout.types.values()):
        if (form := word_format(kind)) is not None:
            structs[kind.name] = f"W_{at}"
            names[f"W_{at}"] = form
    lines: list[str] = []
    for node in root.each("calculations"):
        symbol = calculations[node["name"].text]
        names[f"H_{symbol}"] = algorithm(node["algo"])
        lines += calculation_source(symbol, node, layout, budget)

    value_sets, set_names = {}, {}
    for at, node in enumerate(root.each("parse_vsets")):
        bits = node["compressed_bitwidth"].at_most(MAX_FIELD_BITS, "bits of a parse value set")
        value_set = ValueSet(node["name"].text, bits)
        value_sets[value_set.name], set_names[value_set.name] = value_set, f"V_{at}"
        names[f"V_{at}"] = value_set
    plain = Compiler(objects, ())
    parser = ParserCompiler(plain, errors, structs, set_names)
    lines += parser.states(_only(root, "parsers"))
    flow = ControlFlow(objects, counters)
    flow.read_actions(root)
    for pipeline in root["pipelines"]:
        if pipeline["name"].text not in PIPELINES:
            raise UnsupportedError(f"{pipeline.path}: v1model has no pipeline {pipeline['name'].text!r}")
        flow.read_pipeline(pipeline)
    lines += flow.lines
    for profile in flow.profiles.values():
        names[profile.symbol] = profile
        if profile.selector is not None:
            names[f"H_{profile.selector}"] = algorithm(flow.selectors[profile.name]["algo"])
            lines += calculation_source(profile.selector, flow.selectors[profile.name], layout, budget)
    lines += _checksum_lines(root, plain, calculations)
    lines += deparser_lines(_only(root, "deparsers"), plain, structs)

    for source in flow.tables.values():
        names[f"T_{source.symbol}"] = source.table
        names[f"T_{source.symbol}_exact"] = source.table.exact.get
        names[f"T_{source.symbol}_remembered"] = source.table.remembered.get
    text_source = "\n".join(lines) + "\n"
    try:
        exec(_compiled(text_source), names)
    except (SyntaxError, RecursionError, MemoryError) as error:  # too many levels of parentheses
        raise UnsupportedError(f"an expression of the program is nested too deeply: {error}") from None
    for source in flow.tables.values():
        _furnish(source, flow, names)
    for profile in flow.profiles.values():
        profile.hashed = None if profile.selector is None else names[profile.selector]
    return Program(
        layout=layout,
        errors=errors,
        tables={name: source.table for name, source in flow.tables.items()},
        registers=registers,
        counters=counters,
        value_sets=value_sets,
        meters=meters,
        profiles=flow.profiles,
        learn_lists=learn_lists,
        python_only=_python_only(layout, flow),
        field_lists=field_lists,
        actions={action.name: action.parameters for action in flow.actions.values()},
        document=text,
        source=text_source,
        names=names,
        nodes=flow.nodes | {symbol: ("state", name) for name, symbol in parser.symbols.items()},
        parser_start=names["parser_start"],
        ingress_start=names.get("ingress_start"),
        egress_start=names.get("egress_start"),
        verify=names["verify"],
        update=names["update"],
        deparse=names["deparse"],
    )


@functools.lru_cache(maxsize=PROGRAMS_KEPT)
def _compiled(source: str) -> CodeType:
    """The module's code, which holds no state: what the functions work on are the names that it is executed with."""
    return compile(source, "<compiled P4 program>", "exec")


def _check_version(root: Node) -> None:
    meta = root.get("__meta__")
    version = None if meta is None else meta.get("version")
    if version is not None and version[0].integer != MAJOR_VERSION:
        raise ProgramError(f"{version.path}: format version {version[0].integer}; this reads version {MAJOR_VERSION}")


def _check_architecture(root: Node) -> None:
    """ProgramError for a program of another architecture, which its parsers' names tell."""
    names = {node["name"].text for node in root["parsers"]}
    for name, parsers in OTHER_ARCHITECTURES.items():
        if names and names <= parsers:
            raise root["parsers"].fail(
                f"the program was compiled for {name} (its parsers are {', '.join(sorted(names))}), and this runs "
                "v1model. Remedy: compile a program of v1model, with p4c-bm2-ss"
            )


def _only(root: Node, key: str) -> Node:
    """The one parser or deparser that v1model has."""
    found = list(root[key])
    if len(found) != 1:
        raise root[key].fail(f"v1model has one of these, not {len(found)}")
    return found[0]


def _places(node: Node, layout: Layout) -> tuple[int, ...]:
    places = []
    for each in node["elements"]:
        if each["type"].text != "field":
            raise UnsupportedError(f"{each.path}: elements of type {each['type'].text!r} are not implemented")
        places.append(layout.field(each["value"])[0])
    return tuple(places)


def _learn_lists(root: Node, layout: Layout) -> dict[int, LearnList]:
    lists = {}
    for node in root.each("learn_lists"):
        places = []
        for each in node["elements"]:
            if each["type"].text != "field":
                raise UnsupportedError(f"{each.path}: elements of type {each['type'].text!r} are not implemented")
            place, field = layout.field(each["value"])
            places.append((place, field.bits))
        if not (number := node["id"].integer):
            raise node.fail("a learn list has a number above 0")
        lists[number] = LearnList(node["name"].text, tuple(places))
    return lists


def _python_only(layout: Layout, flow: ControlFlow) -> tuple[str, ...]:
    there = {
        "stacks of header unions": bool(layout.union_stacks),
        "entries that age": any(source.table.ages for source in flow.tables.values()),
    }
    return tuple(what for what, is_there in there.items() if is_there)


def _checksum_lines(root: Node, compiler: Compiler, calculations: dict[str, str]) -> list[str]:
    """Functions `verify(f, k)` and `update(f, k)`."""
    verify, update = ["def verify(f, k):"], ["def update(f, k):"]
    for node in root.each("checksums"):
        if node["type"].text != "generic" or node["calculation"].text not in calculations:
            raise UnsupportedError(f"{node.path}: a checksum of this type is not implemented")
        place, field = compiler.layout.field(node["target"])
        header = compiler.layout.header(node["target"][0])
        call = f"{calculations[node['calculation'].text]}(f, k)"
        condition = node.get("if_cond")
        met = "True" if condition is None else compiler.expressions.truth(condition)
        if node.get("verify") is None or node.flag("verify"):
            verify.append(f" if f[{header.valid}] and {met} and {call} != f[{place}]: return True")
        if node.get("update") is None or node.flag("update"):
            update.append(f" if {met}: f[{place}] = {field.wrapped(call)}")
    return [*verify, " return False", *update, " return None"]


def _furnish(source: TableSource, flow: ControlFlow, names: Mapping[str, Any]) -> None:
    """Give a table its compiled actions, what comes after it, its default and its constant entries."""
    table = source.table
    table.actions = {
        name: ActionFacts(name, flow.actions[number].widths, names[flow.actions[number].symbol])
        for name, number in source.actions.items()
    }
    if table.profile is not None:
        profile = flow.profiles[table.profile]
        profile.actions |= table.actions
        profile.tables.append(table.name)
    nexts = {key: None if symbol == "None" else names[symbol] for key, symbol in source.nexts.items()}

    def after(action: str, hit: bool) -> Callable[..., object] | None:
        key = HIT if hit else MISS
        return nexts[key] if key in nexts else nexts.get(action)

    table.after = after
    try:
        action, data, fixed = flow.default_of(source.node)
        table.initialize(action, data, fixed=fixed)
        if source.node.get("entries") is not None:
            table.initialize_entries(flow.entries_of(source.node, table.key))
    except TableError as error:
        raise source.node.fail(str(error)) from None
