"""What every record of an image is."""

import msgspec


class Record(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False):
    """Records lead to no cycle, so Python's cycle collector need not look at thousands of them."""
