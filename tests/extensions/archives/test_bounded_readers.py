"""An import refuses an archive with a file that is too large, or with a file name that is too long."""

import io
import tarfile

import pytest

from tests.support.endless import check_documented
from turnstream.domain.errors import ConfigError
from turnstream.extensions.archives.commands import _parts_in
from turnstream.extensions.archives.tar import MAX_ATTRIBUTE_BYTES, MAX_FILE_BYTES

ATTRIBUTES = (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK)
BOUNDS = {tarfile.REGTYPE: MAX_FILE_BYTES, **dict.fromkeys(ATTRIBUTES, MAX_ATTRIBUTE_BYTES)}


@pytest.mark.parametrize(("type", "bound"), BOUNDS.items())
def test_a_file_is_read_up_to_its_bound(type: bytes, bound: int) -> None:
    check_documented("archive of an owner", MAX_FILE_BYTES)
    huge = tarfile.TarInfo("huge.json")
    huge.type, huge.size = type, bound + 1
    packed = io.BytesIO(huge.tobuf() + bytes(10_000))
    with pytest.raises(ConfigError, match=f"of {bound:,} that it may have"):
        list(_parts_in(packed))
