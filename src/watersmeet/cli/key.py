"""`watersmeet key`: print a new key for links."""

import argparse

from watersmeet.cli.options import Subparsers, debug_option
from watersmeet.errors import InputError


def add_parser(subparsers: Subparsers) -> None:
    """Declare the command and its options."""
    parser = subparsers.add_parser(
        "key",
        parents=[debug_option()],
        help="print the line of a new key for encrypted links",
        description="Print one line for the key_file of link_transport: an id and 256 random bits. All sites need the "
        "same file; the first key in it encrypts, every key decrypts.",
    )
    parser.add_argument("id", metavar="ID", help="a name for the key, such as 2026-11")
    parser.set_defaults(command=run)


def run(options: argparse.Namespace) -> int:
    """Print a new key for links."""
    from watersmeet.spark.links.seal import is_key_id, new_key

    if not is_key_id(options.id):
        raise InputError(f"the id {options.id!r} of a key must be one word of up to 64 ASCII characters, without #")
    print(new_key(options.id))
    return 0
