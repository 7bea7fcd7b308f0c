"""The control messages: what is written is read back, and nothing but ControlError escapes the parser."""

from __future__ import annotations

import dataclasses
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanin.protocol import control
from fanin.protocol.control import ControlError
from fanin.protocol.strict import MAX_TEXT_CHARACTERS

TEXT = st.text(st.characters(categories=("L", "N", "P", "S", "Zs")), max_size=40).filter(
    lambda text: text.isprintable() or not text
)
NUMBER = st.integers(0, 2**64 - 1)
FRACTION = st.floats(0, 1e9)
LOSS = st.sampled_from(["raise", "continue"])
SCHEME = st.sampled_from(["udp", "zmq"])
RANKS = st.lists(st.integers(0, 31), max_size=5).map(tuple)
COUNTERS = st.dictionaries(TEXT, NUMBER, max_size=4)
SPENDING = st.builds(
    control.Spending, age_us=NUMBER, communicating_us=NUMBER, quantizing_us=NUMBER, sending_us=NUMBER,
    decoding_us=NUMBER,
)  # fmt: skip
MEMBER = st.builds(
    control.MemberReport, rank=st.integers(0, 31), process=TEXT, state=TEXT, spending=st.none() | SPENDING
)
JOB = st.builds(
    control.JobReport,
    name=TEXT,
    state=TEXT,
    index=st.none() | NUMBER,
    generation=st.none() | NUMBER,
    scheme=SCHEME,
    size=NUMBER,
    quorum=NUMBER,
    staleness=NUMBER,
    max_staleness=NUMBER,
    on_worker_loss=LOSS,
    slots=NUMBER,
    words_per_packet=NUMBER,
    flows=NUMBER,
    memory_bytes=NUMBER,
    ring_bytes=NUMBER,
    wanted_ring_bytes=NUMBER,
    age_s=FRACTION,
    members=st.lists(MEMBER, max_size=3).map(tuple),
    counters=COUNTERS,
)
DATA = st.builds(control.DataReport, scheme=SCHEME, description=TEXT, ports=RANKS, counters=COUNTERS)
JOIN = st.builds(
    control.Join, job=TEXT, rank=NUMBER, size=NUMBER, nonce=TEXT, wire_version=NUMBER, software=TEXT, process=TEXT,
    scheme=SCHEME, path_mtu=NUMBER, receive_buffer_bytes=NUMBER, slots=st.none() | NUMBER,
    words_per_packet=st.none() | NUMBER, checksum=st.booleans(),
    authenticate=st.none() | st.booleans(), exposed=st.booleans(), tags=st.lists(TEXT, max_size=3).map(tuple),
    quorum=st.none() | NUMBER, staleness=NUMBER, max_staleness=st.none() | NUMBER, on_worker_loss=LOSS,
    join_timeout_s=FRACTION,
)  # fmt: skip
WAITING = st.builds(control.Waiting, job=TEXT, missing=RANKS)
REGROUPED = st.builds(
    control.Regrouped, job=TEXT, successor=TEXT, ranks=RANKS, lost=RANKS, dead=RANKS, first=NUMBER, again=RANKS,
    holders=RANKS,
)  # fmt: skip
REFUSED = st.builds(control.Refused, code=TEXT, reason=TEXT, remedy=TEXT, ranks=RANKS)
PLACED = st.builds(
    control.Placed,
    index=NUMBER,
    generation=NUMBER,
    branch=NUMBER,
    token=NUMBER,
    ranks=RANKS,
    size=NUMBER,
    slots=NUMBER,
    words_per_packet=NUMBER,
    codes_per_packet=NUMBER,
    checksum=st.booleans(),
    liveness_timeout_s=FRACTION,
    ports=RANKS,
    authenticate=st.booleans(),
)
MESSAGES = st.one_of(
    JOIN,
    WAITING,
    st.builds(
        control.Admitted, job=TEXT, rank=NUMBER, index=NUMBER, generation=NUMBER, workers=NUMBER, quorum=NUMBER,
        staleness=NUMBER, max_staleness=NUMBER, slots=NUMBER, words_per_packet=NUMBER, codes_per_packet=NUMBER,
        checksum=st.booleans(), authenticate=st.booleans(),
        liveness_timeout_s=FRACTION, on_worker_loss=LOSS, running=st.booleans(), ranks=RANKS,
        total_workers=st.none() | NUMBER,
        token=NUMBER, scheme=SCHEME, ports=RANKS,
        shared_memory=st.lists(TEXT, max_size=2).map(tuple),
    ),
    st.builds(control.Started, job=TEXT, processes=st.lists(TEXT, max_size=3).map(tuple)),
    REFUSED,
    st.builds(control.Leave, job=TEXT, rank=NUMBER, nonce=TEXT, reason=TEXT, lost=st.booleans()),
    st.builds(control.Left, job=TEXT, rank=NUMBER),
    st.builds(control.Spent, job=TEXT, rank=NUMBER, nonce=TEXT, spending=SPENDING),
    st.builds(control.Noted, job=TEXT, rank=NUMBER),
    st.builds(control.Explain, job=TEXT, generation=NUMBER),
    st.builds(control.Explanation, known=st.booleans(), text=TEXT, lost=RANKS, left=RANKS),
    st.builds(
        control.Regroup, job=TEXT, rank=NUMBER, nonce=TEXT, lost=RANKS, dead=RANKS, members=RANKS, first=NUMBER,
        last=NUMBER, done=RANKS, held_back=RANKS, shard=NUMBER, decided=st.none() | REGROUPED,
    ),
    REGROUPED,
    st.builds(control.Ask),
    st.builds(control.Challenge, challenge=TEXT, key=TEXT, known=st.booleans(), closed=st.booleans()),
    st.builds(control.Enlist, leaf=TEXT, address=TEXT, join=JOIN),
    st.builds(control.Attach, leaf=TEXT, address=TEXT),
    st.builds(control.Attached, leaf=TEXT),
    st.builds(
        control.Relayed, job=TEXT, rank=NUMBER, waiting=st.none() | WAITING, placed=st.none() | PLACED,
        started=st.none(), refused=st.none() | REFUSED,
    ),
    st.builds(
        control.Tune, job=TEXT, quorum=st.none() | NUMBER, staleness=st.none() | NUMBER, index=st.none() | NUMBER
    ),
    st.builds(control.Tuned, job=TEXT, quorum=NUMBER, staleness=NUMBER, max_staleness=NUMBER),
    st.builds(
        control.Stats, software=TEXT, wire_version=NUMBER, engine=TEXT, uptime_s=FRACTION, memory_bytes=NUMBER,
        memory_used_bytes=NUMBER, curve=st.booleans(), data=st.lists(DATA, max_size=2).map(tuple),
        jobs=st.lists(JOB, max_size=2).map(tuple), refused=COUNTERS,
    ),
)  # fmt: skip
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


def parse_or_refuse(data: bytes) -> control.Message | None:
    """The parsed message, or None after a ControlError; any other exception fails the test."""
    try:
        return control.parse(data)
    except ControlError:
        return None


@given(MESSAGES)
def test_what_is_written_is_read_back(message: control.Message) -> None:
    assert control.parse(control.to_bytes(message)) == message


@given(st.binary(max_size=200))
def test_arbitrary_bytes_raise_nothing_but_control_error(data: bytes) -> None:
    assert parse_or_refuse(data) is None


@given(MESSAGES, st.data())
def test_every_prefix_and_every_appendix_is_refused(message: control.Message, draw: st.DataObject) -> None:
    data = control.to_bytes(message)
    assert parse_or_refuse(data[: draw.draw(st.integers(0, len(data) - 1))]) is None
    assert parse_or_refuse(data + b"}") is None


@given(MESSAGES, st.data())
def test_a_flipped_byte_is_refused_or_gives_a_legal_message(message: control.Message, draw: st.DataObject) -> None:
    data = bytearray(control.to_bytes(message))
    data[draw.draw(st.integers(0, len(data) - 1))] ^= draw.draw(st.integers(1, 255))
    read = parse_or_refuse(bytes(data))
    assert read is None or parse_or_refuse(control.to_bytes(read)) == read


@given(MESSAGES, st.data(), JSON)
def test_a_field_of_another_type_is_refused_or_still_legal(
    message: control.Message, draw: st.DataObject, value: object
) -> None:
    body = json.loads(control.to_bytes(message))
    body[draw.draw(st.sampled_from(sorted(body)))] = value
    read = parse_or_refuse(json.dumps(body).encode())
    assert read is None or control.parse(control.to_bytes(read)) == read


@given(MESSAGES, st.data())
def test_unknown_fields_are_refused_and_so_are_absent_ones_without_a_default(
    message: control.Message, draw: st.DataObject
) -> None:
    body = json.loads(control.to_bytes(message))
    assert parse_or_refuse(json.dumps({**body, "extra": 1}).encode()) is None
    required = [field.name for field in dataclasses.fields(message) if field.default is dataclasses.MISSING]
    if required:
        del body[draw.draw(st.sampled_from(required))]
        assert parse_or_refuse(json.dumps(body).encode()) is None


def test_a_message_of_another_version_is_refused_and_the_version_named() -> None:
    with pytest.raises(ControlError, match=f"version 7; this side speaks {control.VERSION}") as caught:
        control.parse(control.to_bytes(control.Ask(), version=7))
    assert caught.value.version == 7


def test_a_refusal_is_read_from_any_version_even_with_fields_of_the_future() -> None:
    refused = control.Refused(code="version", reason="you are old", remedy="update")
    body = json.loads(control.to_bytes(refused, version=7))
    assert control.parse(json.dumps({**body, "of_the_future": 1}).encode()) == refused


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"null",
        b"[]",
        b"{}",
        b'{"fanin": true, "type": "ask"}',
        b'{"fanin": 1}',
        b'{"fanin": 1, "type": "no-such"}',
        b'{"fanin": 1, "type": ["ask"]}',
        b'{"fanin": 1, "type": "ask", "type": "ask"}',
        b'{"fanin": 1, "type": "started", "job": "\\u001b[2J"}',
        b'{"fanin": 1, "type": "started", "job": "' + b"x" * 513 + b'"}',
        b'{"fanin": 1, "type": "waiting", "job": "j", "missing": [1e400]}',
        b'{"fanin": 1, "type": "waiting", "job": "j", "missing": [NaN]}',
        b'{"fanin": 1, "type": "waiting", "job": "j", "missing": [' + b"9" * 5000 + b"]}",
        b"[" * 60_000,
        b" " * (control.MAX_MESSAGE_BYTES + 1),
        b"\xff\xfe",
    ],
)
def test_malformed_messages_are_refused(data: bytes) -> None:
    assert parse_or_refuse(data) is None


def test_text_for_a_message_is_made_printable_and_short() -> None:
    line = control.one_line("two\nlines\x1b[0m " + "x" * 1000)
    assert line.isprintable()
    assert len(line) == MAX_TEXT_CHARACTERS
