"""`python -m fanin`, and the `fanin` script."""

import sys


def main() -> None:
    """Ctrl-C must end in a line even while modules are imported, which takes a moment."""
    try:
        from fanin.cli import main as command

        command()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
