"""`doctor(spark)`: the abilities of each executor's Python processes, the costs of their surroundings, and the fixes.

Runs on: both. `examination` runs in the user's own process, and a task of it in each slot of the executors.

On many platforms an executor's log is out of sight, and a fault there shows as a slow query alone: a PySpark that each
process compiles anew, a port that is closed, a folder that refuses files.
"""

from pyspark_kgroup.diagnosis.examination import Diagnosis, doctor
from pyspark_kgroup.diagnosis.findings import Finding, Verdict

__all__ = ["Diagnosis", "Finding", "Verdict", "doctor"]
