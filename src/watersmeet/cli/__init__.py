"""The command line, one file a command: each has `add_parser(subparsers)` and `run(options)`."""
