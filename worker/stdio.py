"""Standard streams that are really there.

A process that was started with one of the descriptors 0 to 2 closed gets the next socket or pipe under that number:
libuv aborts on it, and what is printed goes to whoever is at the other end. So a command opens /dev/null there, before
it opens anything else.
"""

import os
import sys
from typing import Final

_STREAMS: Final = (("stdin", "r"), ("stdout", "w"), ("stderr", "w"))


def open_missing() -> None:
    """Open /dev/null under every standard descriptor that is closed."""
    for descriptor, (name, mode) in enumerate(_STREAMS):
        try:
            os.fstat(descriptor)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)
            if opened != descriptor:
                os.dup2(opened, descriptor)
                os.close(opened)
            os.set_inheritable(descriptor, True)  # noqa: FBT003 - positional only
        if getattr(sys, name) is None:
            setattr(sys, name, open(descriptor, mode, encoding="utf-8", closefd=False))  # noqa: SIM115 - a descriptor, for the life of the process
