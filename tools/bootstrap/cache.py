"""Built things kept by content: one build per machine, shared safely by many clones."""

import fcntl
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

KEY_DIGITS = 12


def content_key(parts: Mapping[str, object]) -> str:
    """A short name for everything that a build depends on."""
    text = json.dumps(parts, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:KEY_DIGITS]


def file_digest(*paths: Path) -> str:
    """Digest of files' names and contents, in the given order."""
    digest = hashlib.sha256()
    for path in paths:
        data = path.read_bytes()
        digest.update(f"{path.name} {len(data)}\n".encode())
        digest.update(data)
    return digest.hexdigest()


def default_cache_dir() -> Path:
    """$HETERPS_CACHE, or the user's cache folder as the XDG rules have it."""
    if own := os.environ.get("HETERPS_CACHE"):
        return Path(own).expanduser().resolve()
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "heterps"


class Cache:
    """A folder of finished builds, each published whole by one rename."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def get(self, kind: str, parts: Mapping[str, object], build: Callable[[Path], None]) -> Path:
        """The folder built from `parts`; builds it if absent, once even if many ask."""
        target = self.root / kind / content_key(parts)
        if target.is_dir():
            return target
        with self._lock(target):
            if target.is_dir():  # another clone built it while this one waited
                return target
            scratch = Path(tempfile.mkdtemp(prefix=".building-", dir=target.parent))
            try:
                build(scratch)
                # says what the key stood for, when someone asks why a build was not found
                (scratch / "key.json").write_text(json.dumps(parts, indent=1, default=str) + "\n")
                scratch.chmod(0o755)
                scratch.rename(target)
            finally:
                shutil.rmtree(scratch, ignore_errors=True)
        return target

    @contextmanager
    def _lock(self, target: Path) -> Iterator[None]:
        target.parent.mkdir(parents=True, exist_ok=True)
        with (target.parent / f".{target.name}.lock").open("w") as handle:
            fcntl.flock(handle, fcntl.LOCK_EX)  # released by the kernel even if we are killed
            yield


class Stamps:
    """Which steps of an environment are done, and for which key."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def done(self, step: str, key: str) -> bool:
        stamp = self.folder / step
        return stamp.is_file() and stamp.read_text().strip() == key

    def mark(self, step: str, key: str) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / step).write_text(key + "\n")
