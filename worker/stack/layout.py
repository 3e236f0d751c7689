"""Places: where the local stack keeps data, and whether the user that PostgreSQL runs as may go there.

Data lies outside of every home directory, and permissions of directories that were there before are never changed:
PostgreSQL refuses to run as root, so for root it runs as `nobody`, who must be able to reach its data without that.
"""

from __future__ import annotations

import hashlib
import os
import stat
import tempfile
from pathlib import Path

from worker.stack.processes import StackError

SERVER_USER = "nobody"
SHARED_ROOT = Path("/var/tmp")  # noqa: S108 - survives a reboot; the directory in it is checked to be ours alone
# Root's directories let the server's user pass, and nobody list them. Others need not let anyone in.
MODE_FOR_ROOT = 0o711
MODE = 0o700


def server_user_id() -> int | None:
    """The user that PostgreSQL must run as; None means as we are."""
    if os.geteuid() != 0:
        return None
    import pwd  # noqa: PLC0415 - POSIX only

    try:
        return pwd.getpwnam(SERVER_USER).pw_uid
    except KeyError:
        raise StackError(
            f"PostgreSQL refuses to run as root and this machine has no user {SERVER_USER!r}; run as a normal user.",
        ) from None


def backstay_root() -> Path:
    """The one directory, private to this user, that holds the data of all checkouts; made if it is absent."""
    parent = SHARED_ROOT if os.access(SHARED_ROOT, os.W_OK) else Path(tempfile.gettempdir())
    root = parent / f"backstay-{os.geteuid()}"
    make_directory(root)
    found = root.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
        raise StackError(
            f"{root} is not a directory that only this user can write; remove it, or set BACKSTAY_STATE_DIR to one.",
        )
    return root


def default_state_dir() -> Path:
    """Where `make up` of this checkout keeps its data; not made by asking."""
    parent = SHARED_ROOT if os.access(SHARED_ROOT, os.W_OK) else Path(tempfile.gettempdir())
    checkout = Path(__file__).resolve().parents[2]
    return parent / f"backstay-{os.geteuid()}" / hashlib.sha256(os.fsencode(checkout)).hexdigest()[:12]


def make_directory(path: Path) -> None:
    """Make a directory of ours, and its parents; leave those that exist exactly as they are."""
    mode = MODE_FOR_ROOT if os.geteuid() == 0 else MODE
    for directory in (*reversed(path.parents), path):
        try:
            directory.mkdir(mode=mode)
        except FileExistsError:
            continue
        directory.chmod(mode)  # of the one just made: the umask must not decide


def check_reachable(path: Path, user_id: int) -> None:
    """Refuse a place that the server's user cannot enter, instead of opening it for everybody."""
    for directory in (path, *path.parents):
        found = directory.stat()
        allowed = stat.S_IXUSR if found.st_uid == user_id else stat.S_IXOTH
        if not found.st_mode & allowed:
            raise StackError(
                f"PostgreSQL runs as {SERVER_USER!r} here because we are root, and {directory} is closed to it; set "
                "BACKSTAY_STATE_DIR to a directory elsewhere. Permissions are not changed for you.",
            )
