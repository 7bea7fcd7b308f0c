"""`python -m fanin`, and the `fanin` script."""

import sys


def main() -> None:
    """Run the command line; Ctrl-C ends it with a line and no traceback, even while modules are imported."""
    try:
        from fanin.cli import main as command

        command()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
