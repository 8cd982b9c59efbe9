"""How much of a property a tier looks at."""

from hypothesis import settings


def examples(full):
    """Return the number of examples for a test that has that many in the full tier."""
    return full if settings.get_current_profile_name() == "full" else max(10, full // 4)
