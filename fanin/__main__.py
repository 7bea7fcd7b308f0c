"""`python -m fanin`."""

from fanin.cli import main

main()
