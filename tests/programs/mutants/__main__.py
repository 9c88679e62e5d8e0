"""`make mutants ROOM=member SAMPLE=300 SEED=7`: exits with 1 if too many survive."""

import argparse
import subprocess
import sys
from random import Random

from mutants.mutmut_runs import mutants_of, outcomes_of, prepare, run
from mutants.rooms import Room, Settings, read_settings
from mutants.verdict import KILLED, TIMED_OUT, Verdict, table, verdict_on


def main() -> int:
    settings = read_settings()
    given = _arguments(settings)
    verdicts = [_try(room, settings, given) for room in settings.rooms if given.room in (None, room.name)]
    print(table(verdicts))
    return 1 if any(v.killed_percent < settings.killed_percent_min for v in verdicts) else 0


def _try(room: Room, settings: Settings, given: argparse.Namespace) -> Verdict:
    folder = prepare(room, fresh=given.fresh)
    mutants, sentences_only = mutants_of(room, folder)
    wanted = [m for m in mutants if not given.only or given.only in m.where]
    sample = wanted if given.sample is None else Random(given.seed).sample(wanted, min(given.sample, len(wanted)))
    known = outcomes_of(room, folder)
    names = [m.name for m in sample if known.get(m.name) not in KILLED | TIMED_OUT]
    print(
        f"{room.name}: {len(mutants)} mutants ({sentences_only} more change only sentences), {len(sample)} of them"
        f" (SEED={given.seed}), {len(sample) - len(names)} known to be killed",
        flush=True,
    )
    if names and not given.list:
        run(folder, names, given.jobs, settings.cpu_s_max)
        known = outcomes_of(room, folder)
    outcomes = {m.name: known[m.name] for m in sample if m.name in known}
    verdict = verdict_on(room.name, mutants, outcomes)
    for mutant in sorted(verdict.survivors, key=lambda m: m.name):
        print(
            f"\n{room.name}: {mutant.where} survived ({mutant.name.rpartition('__mutmut_')[2]})",
            *mutant.change,
            sep="\n",
        )
    return verdict


def _arguments(settings: Settings) -> argparse.Namespace:
    arguments = argparse.ArgumentParser(prog="make mutants")
    arguments.add_argument("--room", choices=[room.name for room in settings.rooms], help="all of them by default")
    arguments.add_argument("--sample", type=int, help="as many of each room at random; all by default")
    arguments.add_argument("--seed", type=int, default=7, help="the same sample again")
    arguments.add_argument("--only", help="functions whose name has this in it")
    arguments.add_argument("--jobs", type=int, default=2)
    arguments.add_argument("--fresh", action="store_true", help="believe nothing of earlier runs")
    arguments.add_argument("--list", action="store_true", help="show what earlier runs found, try nothing")
    return arguments.parse_args()


if __name__ == "__main__":
    try:
        sys.exit(main())
    except subprocess.CalledProcessError as error:
        sys.exit(f"mutmut ended with {error.returncode}: see above")
