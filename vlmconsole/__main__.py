"""`python -m vlmconsole`: the same as the `vlmconsole` script."""

from vlmconsole.cli import main

main()
