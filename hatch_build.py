"""Compiles the native decoder, `datasource/pyspark_kgroup/executor/native/records.c`.

A wheel gets the binaries of all platforms, so that one wheel serves a mixed cluster: zig, which pip installs, compiles
them on any machine. An editable install gets this machine's alone, beside the source, by `cc` where there is one.
`python hatch_build.py` does the same.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

NATIVE: Final = Path("datasource", "pyspark_kgroup", "executor", "native")
PACKAGED: Final = Path("pyspark_kgroup", "executor", "native", "lib")

# No C library: memcpy is that of the process, so that one binary for Linux serves glibc and musl.
FLAGS: Final = ("-std=c11", "-O3", "-g0", "-fPIC", "-shared", "-fvisibility=hidden", "-nostdlib")
ZIG: Final = (sys.executable, "-m", "ziglang", "cc")

TARGETS: Final = {
    "linux-x86_64.so": "x86_64-linux-gnu.2.17",
    "linux-aarch64.so": "aarch64-linux-gnu.2.17",
    "darwin-x86_64.dylib": "x86_64-macos.11.0",
    "darwin-arm64.dylib": "aarch64-macos.11.0",
}
"""File name, as `library.py` looks for it -> zig's target."""


class NativeDecoder(BuildHookInterface[Any]):
    """What hatchling calls before it builds."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, and name what a wheel holds besides the sources."""
        root = Path(self.root)
        if version == "editable":
            try:
                compile_here(root)
            except (OSError, subprocess.CalledProcessError) as error:
                self.app.display_warning(f"No native decoder for this machine, which librdkafka stands in for: {error}")
        elif find_spec("ziglang") is None:  # pyproject.toml asks for it wherever it exists
            self.app.display_warning("No native decoder, since there is no zig for this machine: librdkafka stands in")
        else:
            for name in TARGETS:
                binary = compile_for(root, name, root / ".build" / "native")
                build_data["force_include"][str(binary)] = str(PACKAGED / name)


def compile_here(root: Path) -> Path:
    """The binary for this machine, beside its source.

    Raises:
        OSError, subprocess.CalledProcessError: no compiler, or none that knows this machine.
    """
    name = f"{sys.platform}-{platform.machine().lower()}{'.dylib' if sys.platform == 'darwin' else '.so'}"
    folder = root / NATIVE / "lib"
    if shutil.which("cc") is None:
        return compile_for(root, name, folder) if name in TARGETS else _compiled(root, [*ZIG], folder / name)
    linked = ("-undefined", "dynamic_lookup", "-lSystem") if sys.platform == "darwin" else ()
    return _compiled(root, ["cc", *linked], folder / name)


def compile_for(root: Path, name: str, folder: Path) -> Path:
    """The binary `name` of `TARGETS` in `folder`; the same bytes on every machine."""
    named = ["-Wl,-install_name,@rpath/" + name] if name.endswith(".dylib") else []
    return _compiled(root, [*ZIG, "-target", TARGETS[name], *named], folder / name)


def _compiled(root: Path, compiler: Sequence[str], binary: Path) -> Path:
    binary.parent.mkdir(parents=True, exist_ok=True)
    caches = {f"ZIG_{kind}_CACHE_DIR": str(root / ".build" / "zig") for kind in ("LOCAL", "GLOBAL")}
    with TemporaryDirectory(dir=binary.parent) as folder:  # a process that has loaded the old binary keeps it
        written = Path(folder, binary.name)  # zig signs with this name
        command = [*compiler, *FLAGS, "-o", str(written), str(NATIVE / "records.c")]
        subprocess.run(command, check=True, cwd=root, env=os.environ | caches)
        return written.replace(binary)


if __name__ == "__main__":
    compile_here(Path(__file__).parent)
