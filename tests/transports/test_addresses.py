"""The address book: numbers are stable, never given twice, and bounded."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fanin.transports.addresses import AddressBook


@given(st.lists(st.integers(0, 20), max_size=200), st.integers(1, 8))
def test_a_number_leads_back_to_its_key_or_nowhere_and_memory_is_bounded(keys: list[int], limit: int) -> None:
    book: AddressBook[int] = AddressBook(limit)
    given_to: dict[int, int] = {}
    for key in keys:
        number = book.number(key)
        assert given_to.setdefault(number, key) == key, "a number was given to two keys"
        assert book.number(key) == number
        assert book.key(number) == key
        assert len(book) <= limit
    assert all(book.key(number) in (key, None) for number, key in given_to.items())


def test_the_key_heard_longest_ago_is_forgotten_first() -> None:
    book: AddressBook[str] = AddressBook(2)
    worker, _ = book.number("worker"), book.number("stranger 1")
    book.number("worker")
    book.number("stranger 2")
    assert book.key(worker) == "worker"
    assert book.number("stranger 1") == 3
