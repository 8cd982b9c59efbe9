"""How much of a property a tier looks at."""

from hypothesis import HealthCheck, settings


def examples(full):
    """Return the number of examples for a test that has that many in the full tier."""
    return full if settings.get_current_profile_name() == "full" else max(10, full // 4)


def seeded(full):
    """Let a property have so many examples in the full tier, the same on every machine and day."""
    return settings(
        max_examples=examples(full),
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
