"""fanin: in-network aggregation for data-parallel training."""

TYPE_CHECKING = False  # the import of typing takes longer than all that is here
if TYPE_CHECKING:
    from fanin.options import Options

__version__ = "0.2.0"
__all__ = ["Options", "__version__"]


def __getattr__(name: str) -> object:
    """Import `Options` when it is asked for: fanin/__main__.py can then handle Ctrl-C while modules are imported."""
    if name != "Options":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from fanin.options import Options

    return Options


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
