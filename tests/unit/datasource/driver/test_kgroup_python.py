"""`kgroup-python`: which archives it takes off PYTHONPATH, and which Python it runs, by each shell that is here."""

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[4] / "datasource" / "kgroup-python"

SHELLS = [shell for shell in ("sh", "dash", "bash", "busybox", "ksh", "mksh", "zsh") if shutil.which(shell)]

SAYS = """#!/bin/sh
printf '%s\\n' "${PYTHONPATH-unset}" "$0" "$@"
"""
"""A Python that prints its PYTHONPATH, its own path and its arguments, a line each."""

INSTALLED = ("spark_kgroup-0.1.0", "pyspark-4.3.0", "py4j-0.10.9.9")
SPARK = ("/s/python/lib/pyspark.zip", "/s/python/lib/py4j-0.10.9.9-src.zip", "/s/jars/spark-core_2.13-4.3.0.jar")
SPARK_4_2 = (*SPARK[:2], "/s/jars/spark-core_2.13-4.2.0.jar")


class Environment:
    """A folder with the script, and what it looks for there, as an installer lays them out."""

    def __init__(
        self, folder: Path, installed: Sequence[str] = INSTALLED, lib: str = "python3.12/site-packages"
    ) -> None:
        self.folder = folder
        self.bin = folder / "bin"
        self.bin.mkdir(parents=True)
        self.script = Path(shutil.copy(SCRIPT, self.bin))
        for name in installed:
            (folder / "lib" / lib / f"{name}.dist-info").mkdir(parents=True)

    def python(self, name: str = "python3.12") -> Path:
        return executable(self.bin / name, SAYS)


def executable(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o755)
    return path


def run(
    command: Sequence[str | Path], pythonpath: str | None = None, path: str = "/usr/bin:/bin", at: Path | None = None
) -> list[str]:
    """What the Python says."""
    environment = {"PATH": path} | ({} if pythonpath is None else {"PYTHONPATH": pythonpath})
    done = subprocess.run(command, env=environment, cwd=at, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.fixture
def environment(tmp_path: Path) -> Environment:
    made = Environment(tmp_path / "an environment")
    made.python()
    return made


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param(":".join(SPARK), "", id="nothing but Spark's"),
        pytest.param(":".join((*SPARK, "/a b", "", "/c*", "/jobs/pyspark", "")), "/a b::/c*:/jobs/pyspark:", id="kept"),
        pytest.param(":".join(("/first", *SPARK, "/last", *SPARK)), "/first:/last", id="in the midst, and twice"),
        pytest.param(
            "/pwd/job.zip:/pwd/pyspark.zip:/pwd/py4j-0.10.9.9-src.zip:/cache/__spark_libs__/spark-core_2.13-4.3.0.jar",
            "/pwd/job.zip",
            id="YARN",
        ),
        pytest.param(
            ":".join((SPARK[0], "/s/python/lib/py4j-0.10.9.7-src.zip", SPARK[2])),
            "/s/python/lib/py4j-0.10.9.7-src.zip",
            id="another Py4J",
        ),
        *(
            pytest.param(same, same, id=why)
            for same, why in (
                (":".join((*SPARK_4_2, "/a")), "another Spark"),
                (":".join((*SPARK, "/b/spark-core_2.12-3.5.8.jar")), "two Sparks"),
                (":".join(("/b/spark-core_2.12-3.5.8.jar", *SPARK)), "two Sparks, the other first"),
                (":".join((*SPARK[:2], "/s/jars/spark-core_2.13-4.3.0-amzn-1.jar")), "a vendor's Spark"),
                (":".join(SPARK[:2]), "no jar that tells the version"),
                ("/a::/b:", "nothing of Spark's"),
                ("", "empty"),
            )
        ),
    ],
)
def test_the_archives_of_a_pyspark_that_is_installed_leave_the_path(
    environment: Environment, shell: str, before: str, after: str
) -> None:
    applet = ["sh"] if shell == "busybox" else []
    said, python, *arguments = run([shell, *applet, environment.script, "-m", "pyspark.daemon", "a  b", ""], before)
    assert said == after
    assert python == f"{environment.bin}/python3.12"
    assert arguments == ["-m", "pyspark.daemon", "a  b", ""]


def test_a_path_that_is_not_set_stays_so(environment: Environment) -> None:
    assert run([environment.script])[0] == "unset"


@pytest.mark.parametrize("installed", [("spark_kgroup-0.1.0",), ("spark_kgroup-0.1.0", "pyspark_client-4.3.0")])
def test_an_environment_without_pyspark_leaves_the_path_as_it_is(tmp_path: Path, installed: tuple[str, ...]) -> None:
    environment = Environment(tmp_path, installed)
    environment.python()
    assert run([environment.script], ":".join(SPARK))[0] == ":".join(SPARK)


def test_an_environment_without_py4j_keeps_its_archive(tmp_path: Path) -> None:
    environment = Environment(tmp_path, INSTALLED[:2])
    environment.python()
    assert run([environment.script], ":".join(SPARK))[0] == SPARK[1]


# --------------------------------------------------------------------------------------- how it is called


@pytest.mark.parametrize("command", ["./an environment/bin/kgroup-python", "an environment/bin/../bin/kgroup-python"])
def test_it_is_called_by_a_relative_path_as_on_yarn(environment: Environment, command: str) -> None:
    said, python = run([command], ":".join(SPARK), at=environment.folder.parent)
    assert said == ""
    assert environment.folder.parent.joinpath(python).resolve() == environment.bin / "python3.12"


def test_it_is_found_through_path(environment: Environment) -> None:
    assert run(["/usr/bin/env", "kgroup-python"], ":".join(SPARK), f"{environment.bin}:/usr/bin:/bin")[0] == ""
    assert run(["/usr/bin/env", "kgroup-python"], ":".join(SPARK), ":/usr/bin:/bin", at=environment.bin)[0] == ""


def test_it_is_called_by_a_symbolic_link_to_it_or_to_its_environment(environment: Environment, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "absolute").symlink_to(environment.script)
    (elsewhere / "relative").symlink_to(Path("..", "an environment", "bin", "kgroup-python"))
    (elsewhere / "twice").symlink_to("relative")
    (elsewhere / "current").symlink_to(environment.folder)
    for called in ("absolute", "relative", "twice", "current/bin/kgroup-python"):
        said, python = run([elsewhere / called], ":".join(SPARK))
        assert said == ""
        assert Path(python).samefile(environment.bin / "python3.12")


# ------------------------------------------------------------------------------------- which Python it runs


def test_a_user_s_installation_runs_the_python_of_its_version_on_path(tmp_path: Path) -> None:
    """`pip install --user` puts the script into ~/.local/bin, where no Python is."""
    user = Environment(tmp_path / "user")
    system = tmp_path / "usr"
    system.mkdir()
    for name in ("python3", "python3.11", "python3.12"):
        executable(system / name, SAYS)
    assert run([user.script], ":".join(SPARK), f"{system}:/usr/bin:/bin") == ["", f"{system}/python3.12"]


def test_debian_s_folder_of_packages_counts_too(tmp_path: Path) -> None:
    system = Environment(tmp_path, lib="python3.13/dist-packages")
    system.python("python3.13")
    assert run([system.script], ":".join(SPARK)) == ["", f"{system.bin}/python3.13"]


def test_of_several_pythons_in_one_folder_that_with_the_package_runs(tmp_path: Path) -> None:
    """As in /usr/local, where `python3` may be another one than that whose pip installed the package."""
    system = Environment(tmp_path)
    (tmp_path / "lib" / "python3.11" / "site-packages" / "pyspark-4.3.0.dist-info").mkdir(parents=True)
    for name in ("python3", "python3.11", "python3.12"):
        system.python(name)
    assert run([system.script])[1] == f"{system.bin}/python3.12"


def test_without_the_package_the_python_beside_it_runs(tmp_path: Path) -> None:
    """`pip install --target`, or an archive that was unpacked."""
    unpacked = Environment(tmp_path, ())
    unpacked.python("python3")
    assert run([unpacked.script], ":".join(SPARK)) == [":".join(SPARK), f"{unpacked.bin}/python3"]


def test_a_variable_of_the_environment_reaches_python_as_it_was(environment: Environment) -> None:
    names = ("self", "target", "bin", "python", "site", "installed", "rest", "kept", "fits", "entry", "name", "version")
    executable(environment.bin / "python3.12", "#!/bin/sh\nexec env\n")
    given = dict.fromkeys((*names, "IFS"), "theirs") | {"PATH": os.defpath, "PYTHONPATH": ":".join(SPARK)}
    said = subprocess.run([environment.script], env=given, capture_output=True, text=True, check=True).stdout
    assert {f"{name}=theirs" for name in names} <= set(said.splitlines())


def test_the_status_of_python_is_that_of_the_script(environment: Environment) -> None:
    executable(environment.bin / "python3.12", "#!/bin/sh\nexit 7\n")
    assert subprocess.run([environment.script]).returncode == 7
    (environment.bin / "python3.12").unlink()
    assert subprocess.run([environment.script], env={"PATH": "/nowhere"}, stderr=subprocess.DEVNULL).returncode == 127
