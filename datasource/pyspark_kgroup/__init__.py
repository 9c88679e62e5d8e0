"""`spark.readStream.format("kgroup")`: Kafka topics as a real consumer group.

Runs on: both. Spark finds `DefaultSource` in top-level modules named `pyspark_*`, so `format("kgroup")` needs no
registration where this package is installed. `register(spark)` exists for platforms without that look-up.

`python()` is the executable to name as PYSPARK_PYTHON, with which Spark's Python processes start in a third of the
time. `doctor(spark)` looks at each executor, and says what costs time or fails there. `token_callback` declares a
function that the option `tokenCallback` may name.

All are imported when they are asked for (PEP 562): an executor's sidecar needs neither Spark nor the driver's half of
this package. Measured: it starts in half of the time.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark_kgroup.diagnosis import doctor
    from pyspark_kgroup.driver.startup.spark_python import python
    from pyspark_kgroup.shared.token_callback import token_callback
    from pyspark_kgroup.source import DefaultSource, register

__all__ = ["DefaultSource", "doctor", "python", "register", "token_callback"]

_MODULES = {
    "doctor": "pyspark_kgroup.diagnosis",
    "python": "pyspark_kgroup.driver.startup.spark_python",
    "token_callback": "pyspark_kgroup.shared.token_callback",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES.get(name, "pyspark_kgroup.source")), name)
