"""`python -m watersmeet` is the command line."""

from watersmeet.cli.main import main

main()
