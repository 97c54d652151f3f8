"""What several files of tests have in common."""

from __future__ import annotations

import os
import random
from typing import Iterator

import pytest

from .servers import Disk, as_file, as_loop, mounted, needs, run, serve


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Disk]:
    """A mounted ext4 file system on a volume, with files."""
    needs("nbdfuse", "losetup", "mkfs.ext4", root=True)
    tmp = tmp_path_factory.mktemp("oas")
    with serve(tmp / "d", "--volume", "disk=256MiB") as server:
        with as_file(server.volumes["nbd", "disk"], tmp / "f") as file, as_loop(file) as device:
            run("mkfs.ext4", "-q", "-F", device)
            with mounted(device, tmp / "m") as place:
                chance = random.Random(5)
                words = [bytes(chance.choices(b"abcdefgh", k=chance.randrange(1, 9))) for _ in range(3000)]
                lines = [b" ".join(chance.choices(words, k=chance.randrange(0, 12))) for _ in range(60_000)]
                (place / "text").write_bytes(b"\n".join(lines) + b"\n")
                (place / "random").write_bytes(chance.randbytes(5_000_001))
                (place / "empty").touch()
                with (place / "holes").open("wb") as sparse:
                    sparse.write(b"begin")
                    sparse.seek(3_000_000)
                    sparse.write(b"end\n")
                os.sync()
                yield Disk(server.volumes["iscsi", "disk"], place)
