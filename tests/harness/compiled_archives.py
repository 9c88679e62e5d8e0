"""`python -m harness.compiled_archives`: compile the modules in this environment's PySpark archives.

Spark puts pyspark.zip and py4j's archive first on the PYTHONPATH of each Python process that it starts. They hold no
.pyc, and zipimport writes none, so each of these processes compiles PySpark anew: about a second of CPU, and the tests
start hundreds of them. Afterwards an archive holds each module as source and compiled, and behaves the same.
"""

import os
import py_compile
import warnings
import zipfile
from pathlib import Path
from tempfile import TemporaryDirectory

import pyspark


def compile_archive(path: Path) -> int:
    """Add the compiled form of each module to an archive. Returns how many were added (none the second time)."""
    with zipfile.ZipFile(path) as archive:
        entries = {info.filename: archive.read(info) for info in archive.infolist()}
    missing = [name for name in entries if name.endswith(".py") and f"{name}c" not in entries]
    if missing:
        unfinished = path.with_suffix(f".{os.getpid()}")
        with zipfile.ZipFile(unfinished, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in {**entries, **{f"{name}c": compiled(entries[name], name) for name in missing}}.items():
                archive.writestr(name, content)
        unfinished.rename(path)
    return len(missing)


def compiled(source: bytes, name: str) -> bytes:
    """A .pyc that Python does not compare with its source (PEP 552, unchecked): both are in one archive."""
    with TemporaryDirectory() as folder:
        module, target = Path(folder, "module.py"), Path(folder, "module.pyc")
        module.write_bytes(source)
        unchecked = py_compile.PycInvalidationMode.UNCHECKED_HASH
        with warnings.catch_warnings(action="ignore", category=SyntaxWarning):  # PySpark's own
            py_compile.compile(str(module), str(target), dfile=name, doraise=True, invalidation_mode=unchecked)
        return target.read_bytes()


if __name__ == "__main__":
    for found in sorted((Path(pyspark.__file__).parent / "python" / "lib").glob("*.zip")):
        print(f"{found.name}: {compile_archive(found)} modules compiled")
