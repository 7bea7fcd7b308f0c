"""The tag of AES-GCM-SIV: published vectors, another implementation's results, and that native code gives the same."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fanin.protocol import gcm_siv, packet_tag
from fanin.protocol.packet_tag import Direction
from fanin.protocol.tag_algorithm import GCM_SIV, SIPHASH, TAG_ALGORITHMS, preferred
from fanin.protocol.wire import HEADER_BYTES, OFFSET_CHECKSUM
from tests.support.machines import native

KEY = bytes(range(16))
RFC_8452_C_1 = [
    ("01000000000000000000000000000000", "030000000000000000000000", "", "", "dc20e2d83f25705bb49e439eca56de25"),
    ("e66021d5eb8e4f4066d4adb9c33560e4", "f46e44bb3da0015c94f70887", "", "", "a4194b79071b01a87d65f706e3949578"),
    (
        "01000000000000000000000000000000",
        "030000000000000000000000",
        "0300000000000000000000000000000004000000",
        "010000000000000000000000000000000200",
        "24afc9805e976f451e6d87f6fe106514",
    ),
    (
        "2d4ed87da44102952ef94b02b805249b",
        "ac80e6f61455bfac8308a2d4",
        "0d8c8451178082355c9e940fea2f58",
        "2950a70d5a1db2316fd568378da107b52b0da55210cc1c1b0a",
        "83b3449b9f39552de99dc214a1190b0b",
    ),
    (
        "f901cfe8a69615a93fdf7a98cad48179",
        "6245709fb18853f68d833640",
        "e42a3c02c25b64869e146d7b233987bddfc240871d",
        "7576f7028ec6eb5ea7e298342a94d4b202b370ef9768ec6561c4fe6b7e7296fa859c21",
        "2d15506c84a9edd65e13e9d24a2a6e70",
    ),
]
"""Key, nonce, plaintext, associated data and tag."""
OPENSSL = {
    36: "45d64a099dce14eea5ebeed47b45eb74",
    48: "8a9fcc261b468616278307c0f27173f3",
    52: "d7ec2b0bc658b338eea7368b63d9c39a",
    1448: "06a185c6d9266d7a3e15c849f678ee14",
    9000: "bb5b07ce6b093cf91cb7ddc340bc313f",
}
"""Tags that OpenSSL 3.5 computes under KEY and the packets' nonce, by length of the associated data 0, 7, 14, ..."""


def test_aes_gives_the_standard_s_vector() -> None:
    """FIPS 197, appendix C.1."""
    block = bytes.fromhex("00112233445566778899aabbccddeeff")
    assert gcm_siv.aes128(KEY, block).hex() == "69c4e0d86a7b0430d8cdb78070b4c55a"


def test_polyval_gives_the_rfc_s_vector() -> None:
    """RFC 8452, appendix A."""
    key = bytes.fromhex("25629347589242761d31f826ba4b757b")
    blocks = bytes.fromhex("4f4f95668c83dfb6401762bb2d01a262d1a24ddd2721d006bbe45f20d3c9f362")
    assert gcm_siv.polyval(key, blocks).hex() == "f7a3b47b846119fae5b7866cf5e5b77e"


@pytest.mark.parametrize(("key", "nonce", "plaintext", "associated", "tag"), RFC_8452_C_1)
def test_tags_are_the_rfc_s(key: str, nonce: str, plaintext: str, associated: str, tag: str) -> None:
    given_bytes = [bytes.fromhex(text) for text in (key, nonce, plaintext, associated)]
    assert gcm_siv.tag(*given_bytes).hex() == tag


def test_the_keys_of_a_nonce_are_the_rfc_s() -> None:
    """RFC 8452, appendix C.1."""
    keys = gcm_siv.keys_of(bytes.fromhex("01" + 30 * "0"), bytes.fromhex("03" + 22 * "0"))
    assert [key.hex() for key in keys] == ["d9b360279694941ac5dbc6987ada7377", "4004a0dcd862f2a57360219d2d44ef6c"]


@pytest.mark.parametrize("length", OPENSSL)
def test_tags_are_another_implementation_s(length: int) -> None:
    data = bytes(7 * place & 0xFF for place in range(length))
    assert gcm_siv.tag(KEY, packet_tag.NONCE, b"", data).hex() == OPENSSL[length]


def test_a_packet_s_tag_is_the_first_32_bits_with_the_direction_in_the_field() -> None:
    data = bytes(range(60))
    inside = data[:OFFSET_CHECKSUM] + bytes([0, 0, 0, 2]) + data[HEADER_BYTES:]
    whole = gcm_siv.tag(KEY, packet_tag.NONCE, b"", inside)
    assert packet_tag.tag(KEY, data, Direction.FROM_SWITCH, GCM_SIV) == int.from_bytes(whole[:4], "big")


def test_the_preferred_algorithm_is_one_that_everybody_names() -> None:
    assert preferred([TAG_ALGORITHMS, ["a later one", GCM_SIV, SIPHASH]]) == GCM_SIV
    assert preferred([TAG_ALGORITHMS, [SIPHASH]]) == SIPHASH
    assert preferred([[GCM_SIV], [SIPHASH]]) is None


# --- native code ---


@pytest.fixture(params=["avx512", "avx2", "portable"])
def registers(request: pytest.FixtureRequest) -> Iterator[None]:
    """Registers of four blocks, of two, of one, where the processor has them."""
    if native("SwitchMachine") is None:
        pytest.skip("the native extension is not built")
    from fanin import _native

    before = _native.kernels_in_use()
    if GCM_SIV not in _native.tag_algorithms() or not _native.use_kernels(request.param):
        pytest.skip("this processor has no such registers")
    yield
    assert _native.use_kernels(before)


@pytest.mark.usefixtures("registers")
@pytest.mark.parametrize("direction", Direction)
def test_native_tags_of_every_short_length_are_the_twin_s(direction: Direction) -> None:
    """Each way in which a datagram ends within a register, and up to two groups of powers."""
    from fanin import _native

    dice = random.Random(1)
    data = [dice.randbytes(length) for length in (*range(HEADER_BYTES, 200), *range(480, 560), *range(1000, 1100, 3))]
    tags = _native.packet_tags([KEY] * len(data), data, direction is Direction.TO_SWITCH, GCM_SIV)
    assert tags == [packet_tag.tag(KEY, each, direction, GCM_SIV) for each in data]


@pytest.mark.usefixtures("registers")
@settings(max_examples=30)
@given(
    st.lists(st.tuples(st.binary(min_size=16, max_size=16), st.integers(HEADER_BYTES, 3000)), max_size=4),
    st.randoms(use_true_random=False),
)
def test_native_tags_are_the_twin_s(runs: list[tuple[bytes, int]], dice: random.Random) -> None:
    from fanin import _native

    keys, data = [key for key, _ in runs], [dice.randbytes(length) for _, length in runs]
    tags = _native.packet_tags(keys, data, True, GCM_SIV)
    assert tags == [
        packet_tag.tag(key, each, Direction.TO_SWITCH, GCM_SIV) for key, each in zip(keys, data, strict=True)
    ]
