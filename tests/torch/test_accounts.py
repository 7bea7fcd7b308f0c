"""Posts of ranks about their accounts in torch's store, which anybody who reaches it can write."""

from __future__ import annotations

import base64
import json
import pickle
from collections import Counter

import pytest

from fanin.errors import HandoverError
from fanin.host.stale.account import Account
from fanin.host.torch.training.accounts import from_text, to_text


def an_account(rounds: int = 5, chunks: int = 3) -> Account:
    account = Account(2, chunks, handed_in=4, contributed=3, dropped=Counter({"late": 1}), folded=2, clipped_elements=9)
    account.ages[1] = 3
    account.bases = list("CPCDFA" * rounds)
    account.contributors = list(range(rounds))
    account.accepted_chunks[:] = range(chunks)
    return account


@pytest.mark.parametrize("rounds", [0, 5, 40_000])
def test_an_account_arrives_as_it_was_however_long_the_training(rounds: int) -> None:
    account = an_account(rounds, chunks=rounds + 1)
    text = to_text(account)
    assert text.isascii()
    read = from_text(text.encode(), 2)
    assert read.accepted_chunks.tolist() == account.accepted_chunks.tolist()
    assert [getattr(read, name) for name in NAMES] == [getattr(account, name) for name in NAMES]


NAMES = [name for name in Account.__slots__ if name != "accepted_chunks"]


class Explosive:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return exec, ("raise SystemExit('what the store says was executed')",)


def changed(**fields: object) -> bytes:
    return json.dumps({**json.loads(to_text(an_account())), **fields}).encode()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"{}",
        base64.b64encode(pickle.dumps(Explosive())),
        changed(rank=3),
        changed(chunks=-1),
        changed(chunks=2**62),
        changed(chunks=2),
        changed(ages={"young": 1}),
        changed(contributors=["!"]),
        changed(contributors=["AAAA"]),
        changed(bases="C"),
        changed(extra=1),
    ],
)
def test_what_no_rank_has_posted_is_an_error_that_names_the_rank(data: bytes) -> None:
    with pytest.raises(HandoverError, match=r"account of rank 2 in the group's store.*MASTER_PORT"):
        from_text(data, 2)
