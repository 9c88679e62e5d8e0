"""A real Kafka consumer group member, and what it needs; imports nothing of Spark or Arrow."""

__version__: str


def __getattr__(name: str) -> str:
    """`__version__`, as the installed package says it; read when it is asked for: executors never do."""
    if name != "__version__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("spark-kgroup")
    except PackageNotFoundError:  # the sources are on the path, and nothing is installed
        return "0+unknown"
