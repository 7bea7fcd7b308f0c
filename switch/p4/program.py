"""Load a compiled program (BMv2's JSON format): it becomes Python functions, with the state that they work on.

p4c-bm2-ss writes the format; docs/JSON_format.md of the behavioral model describes it. Loading turns parser, actions,
tables, checksums and deparser into the source of one Python module and compiles that once; packets then run through
functions, not through JSON. Parts that are not implemented are refused here, with their place in the document.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import CodeType
from typing import Any

from fanin.errors import ProgramError, UnsupportedError
from fanin.switch.p4.action_profiles import ActionProfile
from fanin.switch.p4.actions import ActionFacts, TableError
from fanin.switch.p4.bounds import MAX_FIELD_BITS, SourceBudget
from fanin.switch.p4.calculations import algorithm, calculation_source
from fanin.switch.p4.control_flow import HIT, MISS, Action, ControlFlow, TableSource
from fanin.switch.p4.document import Node
from fanin.switch.p4.externs import Counter, ExternBudget, Register, read_counters, read_registers
from fanin.switch.p4.header_codec import word_format
from fanin.switch.p4.keeping import kept
from fanin.switch.p4.layout import Layout
from fanin.switch.p4.meters import MeterArray, read_meters
from fanin.switch.p4.packet_state import RUNTIME
from fanin.switch.p4.parser import ParserCompiler, ValueSet, deparser_lines, read_errors
from fanin.switch.p4.primitives import Compiler, Objects
from fanin.switch.p4.tables import Table

MAJOR_VERSION = 2
"""Version of the JSON format; the meaning of other versions is unknown."""
PIPELINES = ("ingress", "egress")
OTHER_ARCHITECTURES = {"PSA": {"ingress_parser", "egress_parser"}, "PNA": {"main_parser"}}
"""Names of the parsers in programs of other architectures, which p4c-bm2-psa and p4c-pna write."""
REFUSED = {"extern_instances": "extern instances of the program's own"}
"""Members of the document that must be empty, and what they declare."""


@dataclass(frozen=True, slots=True)
class LearnList:
    """The fields of a digest, each with its place and its width in bits."""

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
    """Parts of the program that the native interpreter does not run, in words."""
    field_lists: Mapping[int, tuple[int, ...]]
    """By field list, places of the fields that a clone, or a packet in its second pass, keeps."""
    actions: Mapping[str, tuple[str, ...]]
    """Names of the parameters of every action of a table."""
    document: str | bytes
    """The document that the program was loaded from. Programs of the same document differ in their state alone."""
    source: str
    """Python source of the functions, from which the native interpreter's code is translated."""
    names: dict[str, Any]
    """Values of the names in `source`: the globals of its functions."""
    nodes: Mapping[str, tuple[str, str]]
    """By function name in `source`: its kind (state, table, condition or call), and its name in P4."""
    parser_start: Callable[..., Any] | None
    ingress_start: Callable[..., Any] | None
    egress_start: Callable[..., Any] | None
    verify: Callable[[list[int], Any], bool]
    """Whether a checksum that the program verifies is wrong."""
    update: Callable[[list[int], Any], None]
    """Compute and store the checksums that the program updates."""
    deparse: Callable[[list[int], Any], bytes]


@dataclass(frozen=True, slots=True)
class Reading:
    """A document that was read: all parts of its programs except their state, which `program` creates."""

    layout: Layout
    errors: Mapping[str, int]
    actions: Mapping[int, Action]
    tables: Mapping[str, TableSource]
    profiles: Mapping[str, Callable[[], ActionProfile]]
    nodes: Mapping[str, tuple[str, str]]
    """By function name in `source`: its kind, and its name in P4, as in Program."""
    registers: Mapping[str, Register]
    counters: Mapping[str, Counter]
    meters: Mapping[str, MeterArray]
    value_sets: Mapping[str, tuple[str, int]]
    """Symbol and width in bits of each parse value set, by name."""
    learn_lists: Mapping[int, LearnList]
    field_lists: Mapping[int, tuple[int, ...]]
    constants: Mapping[str, Any]
    """Values of the names in `source` that hold no state."""
    document: str | bytes
    source: str
    code: CodeType

    def program(self) -> Program:
        """A new program whose registers are zero and whose tables have the entries of the document."""
        registers = {name: each.made() for name, each in self.registers.items()}
        counters = {name: each.made() for name, each in self.counters.items()}
        meters = {name: each.made() for name, each in self.meters.items()}
        profiles = {name: make() for name, make in self.profiles.items()}
        tables = {name: source.make() for name, source in self.tables.items()}
        names = dict(self.constants)
        names |= {register.symbol: register.cells for register in registers.values()}
        names |= {counter.symbol: counter for counter in counters.values()}
        names |= {meter.symbol: meter for meter in meters.values()}
        names |= {profile.symbol: profile for profile in profiles.values()}
        value_sets = {}
        for name, (symbol, bits) in self.value_sets.items():
            value_sets[name] = names[symbol] = ValueSet(name, bits)
        for name, source in self.tables.items():
            names[f"T_{source.symbol}"] = table = tables[name]
            names[f"T_{source.symbol}_exact"] = table.exact.get
            names[f"T_{source.symbol}_remembered"] = table.remembered.get
        exec(self.code, names)
        for name, source in self.tables.items():
            _furnish(tables[name], source, self.actions, profiles, names)
        for profile in profiles.values():
            profile.hashed = None if profile.selector is None else names[profile.selector]
        return Program(
            layout=self.layout,
            errors=self.errors,
            tables=tables,
            registers=registers,
            counters=counters,
            value_sets=value_sets,
            meters=meters,
            profiles=profiles,
            learn_lists=self.learn_lists,
            python_only=_python_only(self.layout, tables.values()),
            field_lists=self.field_lists,
            actions={action.name: action.parameters for action in self.actions.values()},
            document=self.document,
            source=self.source,
            names=names,
            nodes=self.nodes,
            parser_start=names["parser_start"],
            ingress_start=names.get("ingress_start"),
            egress_start=names.get("egress_start"),
            verify=names["verify"],
            update=names["update"],
            deparse=names["deparse"],
        )


def load(text: str | bytes, *, drop_port: int) -> Program:
    """Compile a program. Programs of one document share everything except their state.

    `drop_port`: the port that mark_to_drop writes. ProgramError for a malformed document, UnsupportedError for a
    construct that is not implemented; both name the place. Widths and counts beyond switch/p4/bounds.py are refused
    before memory for them is allocated.
    """
    try:
        return _read(text, drop_port).program()
    except RecursionError:
        raise UnsupportedError("the program's expressions are nested too deeply") from None


@kept
def _read(text: str | bytes, drop_port: int) -> Reading:
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
    constants: dict[str, Any] = dict(RUNTIME)
    structs: dict[str, str] = {}
    for at, kind in enumerate(layout.types.values()):
        if (form := word_format(kind)) is not None:
            structs[kind.name] = f"W_{at}"
            constants[f"W_{at}"] = form
    lines: list[str] = []
    for node in root.each("calculations"):
        symbol = calculations[node["name"].text]
        constants[f"H_{symbol}"] = algorithm(node["algo"])
        lines += calculation_source(symbol, node, layout, budget)

    value_sets = {
        node["name"].text: (f"V_{at}", node["compressed_bitwidth"].at_most(MAX_FIELD_BITS, "bits of a parse value set"))
        for at, node in enumerate(root.each("parse_vsets"))
    }
    plain = Compiler(objects, ())
    parser = ParserCompiler(plain, errors, structs, {name: symbol for name, (symbol, _) in value_sets.items()})
    lines += parser.states(_only(root, "parsers"))
    flow = ControlFlow(objects, counters)
    flow.read_actions(root)
    for pipeline in root["pipelines"]:
        if pipeline["name"].text not in PIPELINES:
            raise UnsupportedError(f"{pipeline.path}: v1model has no pipeline {pipeline['name'].text!r}")
        flow.read_pipeline(pipeline)
    lines += flow.lines
    for symbol, selector in flow.selectors.items():
        constants[f"H_{symbol}"] = algorithm(selector["algo"])
        lines += calculation_source(symbol, selector, layout, budget)
    lines += _checksum_lines(root, plain, calculations)
    lines += deparser_lines(_only(root, "deparsers"), plain, structs)

    source = "\n".join(lines) + "\n"
    try:
        code = compile(source, "<compiled P4 program>", "exec")
    except (SyntaxError, RecursionError, MemoryError) as error:  # too many levels of parentheses
        raise UnsupportedError(f"an expression of the program is nested too deeply: {error}") from None
    return Reading(
        layout=layout,
        errors=errors,
        actions=flow.actions,
        tables=flow.tables,
        profiles=flow.profiles,
        nodes=flow.nodes | {symbol: ("state", name) for name, symbol in parser.symbols.items()},
        registers=registers,
        counters=counters,
        meters=meters,
        value_sets=value_sets,
        learn_lists=learn_lists,
        field_lists=field_lists,
        constants=constants,
        document=text,
        source=source,
        code=code,
    )


def _check_version(root: Node) -> None:
    meta = root.get("__meta__")
    version = None if meta is None else meta.get("version")
    if version is not None and version[0].integer != MAJOR_VERSION:
        raise ProgramError(f"{version.path}: format version {version[0].integer}; this reads version {MAJOR_VERSION}")


def _check_architecture(root: Node) -> None:
    """Raise ProgramError for a program of another architecture, recognized by the names of its parsers."""
    names = {node["name"].text for node in root["parsers"]}
    for name, parsers in OTHER_ARCHITECTURES.items():
        if names and names <= parsers:
            raise root["parsers"].fail(
                f"the program was compiled for {name} (its parsers are {', '.join(sorted(names))}), and this runs "
                "v1model. Remedy: compile a program of v1model, with p4c-bm2-ss"
            )


def _only(root: Node, key: str) -> Node:
    """The only parser or deparser; ProgramError if there is not exactly one, as v1model has."""
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


def _python_only(layout: Layout, tables: Iterable[Table]) -> tuple[str, ...]:
    there = {
        "stacks of header unions": bool(layout.union_stacks),
        "entries that age": any(table.ages for table in tables),
    }
    return tuple(what for what, is_there in there.items() if is_there)


def _checksum_lines(root: Node, compiler: Compiler, calculations: dict[str, str]) -> list[str]:
    """Source of the functions `verify(f, k)` and `update(f, k)`."""
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


def _furnish(
    table: Table,
    source: TableSource,
    actions: Mapping[int, Action],
    profiles: Mapping[str, ActionProfile],
    names: Mapping[str, Any],
) -> None:
    """Give a table its compiled actions, the nodes that follow them, its default action and its constant entries."""
    table.actions = {
        name: ActionFacts(name, actions[number].widths, names[actions[number].symbol])
        for name, number in source.actions.items()
    }
    if table.profile is not None:
        profile = profiles[table.profile]
        profile.actions |= table.actions
        profile.tables.append(table.name)
    nexts = {key: None if symbol == "None" else names[symbol] for key, symbol in source.nexts.items()}

    def after(action: str, hit: bool) -> Callable[..., object] | None:
        key = HIT if hit else MISS
        return nexts[key] if key in nexts else nexts.get(action)

    table.after = after
    try:
        action, data, fixed = source.default
        table.initialize(action, data, fixed=fixed)
        if source.entries is not None:
            table.initialize_entries(source.entries)
    except TableError as error:
        raise source.place.fail(str(error)) from None
