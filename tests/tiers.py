"""The number of examples of a property in each tier."""

from hypothesis import HealthCheck, settings


def examples(full):
    """Return the number of examples for a test with `full` examples in the full tier."""
    return full if settings.get_current_profile_name() == "full" else max(10, full // 4)


def seeded(full):
    """Give a property `full` examples in the full tier, the same on every machine and day."""
    return settings(
        max_examples=examples(full),
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
