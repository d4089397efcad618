"""Profile: the recordings of all workers as one measured timeline, beside the predicted one."""

from weft.profile.lines import LineRow, ProgramProfile
from weft.profile.profile import Profile, profile

__all__ = ["LineRow", "Profile", "ProgramProfile", "profile"]
