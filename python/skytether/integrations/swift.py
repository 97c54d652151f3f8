"""OpenStack Swift's object auditor without reading objects: the target below the disks computes their MD5.

Swift takes its disk-file class from an entry point, so nothing of it is changed. In `swift.conf`, for each storage
policy with replicas:

    [storage-policy:0]
    diskfile_module = egg:skytether#oas

And in `object-server.conf`, which target has which disk:

    [object-auditor]
    oas_target_sdb1 = iscsi://10.0.0.7:3260/iqn.2024-01.io.skytether:drive/1
    oas_target_sdc1 = auto

`auto` is for disks of the kernel's own iSCSI initiator. Disks without a line are read as before, and so is what a
target can't do. Only the auditor has these lines: object servers have the same class, and send objects to clients.

An object is put aside only after the auditor has read it itself: a target that answers wrong costs a read.

The auditor's `bytes_per_second` counts bytes that it reads, and so none of these; `files_per_second` holds.
"""

from __future__ import annotations

import os
from typing import Any, Iterator

from swift.obj import diskfile

from .. import oas
from ..errors import CorruptError, UnavailableError


class DiskFileReader(diskfile.DiskFileReader):
    """Reads an object for a client, or has it checked where its disk has a target."""

    def _inner_iter(self) -> Iterator[bytes]:
        session = self.manager.oas_session(os.path.basename(self._device_path))
        if session is None or self._fp.tell():
            yield from super()._inner_iter()
            return
        why = None
        try:
            digest = session.sum(self._fp, "md5").value.hex()
            if digest == self._etag:
                # What `close` compares with the object's metadata.
                self._md5_of_sent_bytes = digest
                self._bytes_read = os.fstat(self._fp.fileno()).st_size
                self._started_at_0 = self._read_to_eof = True
            else:
                why = f"its MD5 is {digest}, not {self._etag}"
        except (CorruptError, UnavailableError) as error:
            why = str(error)
        finally:
            if why is None and not self._suppress_file_closing:
                self.close()
        if why is not None:
            # The target may be a wrong one: only what reading finds bad, on the disk and not in the cache, is so.
            self._logger.warning("oas: reading %s, because the target says: %s", self._data_file, why)
            os.posix_fadvise(self._fp.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            self._fp.seek(0)
            yield from super()._inner_iter()


class DiskFile(diskfile.DiskFile):
    """An object of a policy with replicas."""

    reader_cls = DiskFileReader


class DiskFileManager(diskfile.DiskFileManager):
    """The objects of a server."""

    diskfile_cls = DiskFile

    def __init__(self, conf: dict[str, Any], logger: Any) -> None:
        super().__init__(conf, logger)
        prefix = "oas_target_"
        self._targets = {key.removeprefix(prefix): str(target) for key, target in conf.items() if key.startswith(prefix)}
        self._sessions: dict[str, oas.Session] = {}

    def oas_session(self, device: str) -> oas.Session | None:
        """The session with the target of a device, if it has one. It begins here and not in `__init__`, because the
        auditor forks."""
        if device not in self._sessions and (target := self._targets.get(device)):
            self._sessions[device] = oas.Session(None if target == "auto" else target)
        return self._sessions.get(device)
