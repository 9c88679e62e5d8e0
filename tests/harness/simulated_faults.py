"""Faults of a simulated world, each a function of the world. Everything random comes from the world's seed."""

from __future__ import annotations

from collections.abc import Callable

from harness.simulated_brokers import NODES
from harness.simulated_world import MemberWorld, Process
from spark_kgroup.member import contract
from spark_kgroup.member.classic import State

Fault = Callable[[MemberWorld], None]


def _someone(world: MemberWorld) -> Process | None:
    running = [p for p in world.processes if p.running]
    return world.rng.choice(running) if running else None


def break_connection(world: MemberWorld) -> None:
    """A connection ends. A request on it is lost, or it arrived and its answer is lost."""
    process = _someone(world)
    if process and process.connection:
        world.log(f"FAULT break_connection {process.name}")
        process.lose_connection(process.connection, "broken")


def black_hole(world: MemberWorld) -> None:
    """A connection swallows everything until one end times out."""
    process = _someone(world)
    if process and process.connection:
        world.log(f"FAULT black_hole {process.name}")
        process.on_trouble()
        process.connection.black_hole = True


def pause(world: MemberWorld) -> None:
    """SIGSTOP, for up to two sessions."""
    process = _someone(world)
    if process and not process.paused:
        world.log(f"FAULT pause {process.name}")
        process.pause()
        world.after(world.rng.randint(10, 2 * process.config.session_timeout_ms), process.resume)


def restart(world: MemberWorld) -> None:
    """SIGKILL, and a new process on the same seat some time later."""
    process = _someone(world)
    if process:
        world.log(f"FAULT restart {process.name}")
        process.kill()
        wait_ms = world.rng.choice((0, 50, 1_000, 2 * process.config.session_timeout_ms))
        world.after(wait_ms, lambda: world.relaunch(process.seat))


def quick_restart(world: MemberWorld) -> None:
    """SIGKILL, and a new process on the same seat well within the session."""
    process = _someone(world)
    if process:
        world.log(f"FAULT quick restart {process.name}")
        process.kill()
        world.after(world.rng.choice((0, 50, 1_000, 3_000)), lambda: world.relaunch(process.seat))


def die_renaming(world: MemberWorld) -> None:
    """SIGKILL, and soon a new process, which is killed when it has asked for a member id of its own."""
    process = _someone(world)
    if process and process.config.instance_id is not None:
        world.log(f"FAULT die renaming {process.name}")
        process.kill()
        world.after(500, lambda: _launch_to_die_renaming(world, process.seat))


def _launch_to_die_renaming(world: MemberWorld, name: str) -> None:
    world.relaunch(name)
    for process in world.of_seat(name):
        process.dies_renaming = not world.at_peace


def duplicate(world: MemberWorld) -> None:
    """A second process takes a seat while the first is alive."""
    process = _someone(world)
    if process and process.config.instance_id is not None:
        world.log(f"FAULT duplicate {process.name}")
        world.launch(process.seat)


def leave(world: MemberWorld) -> None:
    """A member leaves for good. Later a new process takes its seat."""
    process = _someone(world)
    if process and process.machine.state is not State.LEAVING and not process.paused:
        world.log(f"FAULT leave {process.name}")
        process.post(contract.Leave(reason="the test says so"))
        world.after(5_000, process.kill)
        world.after(world.rng.randint(5_001, 10_000), lambda: world.relaunch(process.seat))


def outage(world: MemberWorld) -> None:
    """No broker can be reached, for up to two sessions."""
    if not world.reachable:
        return
    world.log("FAULT outage")
    world.reachable = False
    for process in world.processes:
        process.on_trouble()
        if process.connection:
            process.lose_connection(process.connection, "outage")
    session_ms = max(config.session_timeout_ms for config in world.seats.values())
    world.after(world.rng.randint(100, 2 * session_ms), lambda: end_outage(world))


def end_outage(world: MemberWorld) -> None:
    """The network is back."""
    world.reachable = True
    for process in world.processes:
        process.on_trouble()


def fail_over(world: MemberWorld) -> None:
    """The coordinator moves."""
    world.fail_over()


def load(world: MemberWorld) -> None:
    """The coordinator answers COORDINATOR_LOAD_IN_PROGRESS for a while. Its sessions start when it has loaded."""
    if world.loading:
        return
    world.fail_over()
    world.loading = True
    world.after(world.rng.randint(50, 3_000), lambda: end_load(world))


def end_load(world: MemberWorld) -> None:
    """The group is loaded."""
    if world.loading:
        world.loading = False
        world.load_anew()
        for process in world.processes:
            process.on_trouble()


def load_for_long(world: MemberWorld) -> None:
    """As `load`, for up to three sessions."""
    if world.loading:
        return
    world.fail_over()
    world.loading = True
    session_ms = max(config.session_timeout_ms for config in world.seats.values())
    world.after(world.rng.randint(session_ms // 2, 3 * session_ms), lambda: end_load(world))


def freeze(world: MemberWorld) -> None:
    """The coordinator's broker stops. It goes on later, or another broker takes over while it is still stopped."""
    if world.frozen:
        return
    world.freeze()
    session_ms = max(config.session_timeout_ms for config in world.seats.values())
    goes_on = world.rng.choice((world.thaw, world.take_over))
    world.after(world.rng.randint(100, 2 * session_ms), goes_on)


def flap(world: MemberWorld) -> None:
    """Each connection of a member breaks at each JoinGroup, for up to three sessions."""
    process = _someone(world)
    if process and not process.flapping:
        world.log(f"FAULT flap {process.name}")
        process.flapping = True
        process.on_trouble()
        world.after(world.rng.randint(100, 3 * process.config.session_timeout_ms), lambda: end_flapping(process))


def end_flapping(process: Process) -> None:
    """Its connections last from now on."""
    process.flapping = False
    process.on_trouble()


def add_partitions(world: MemberWorld) -> None:
    """Some topic grows."""
    if world.partition_count < 40:
        world.log("FAULT add_partitions")
        before = world.partitions()
        world.brokers.grow(world.rng.randint(1, 3))
        world.invariants.on_added(world.partitions() - before)


def cut_off_a_broker(world: MemberWorld) -> None:
    """One broker goes on answering as of this moment, or, as if it just started, knows no topic. It may do so for ever.

    The other brokers are up to date.
    """
    if world.brokers.is_one_behind:
        return
    node, denies = world.rng.choice(sorted(NODES)), world.rng.random() < 0.25
    world.log(f"FAULT cut off broker {node}", "that denies the topic" if denies else "")
    world.brokers.cut_off(node, denies=denies)
    lasts_ms = world.rng.choice((500, 5_000, 40_000, 90_000, None))
    if lasts_ms is not None:
        world.after(lasts_ms, world.brokers.catch_up)


def elect_a_leader(world: MemberWorld) -> None:
    """A partition has another leader."""
    world.brokers.elect(world.rng.randrange(world.partition_count))


def create_topic_anew(world: MemberWorld) -> None:
    """The topic is deleted, and created with as many partitions."""
    if world.brokers.may_create_anew:
        world.log("FAULT create topic anew")
        world.brokers.create_anew()


def rejoin(world: MemberWorld) -> None:
    """A member wants a rebalance."""
    process = _someone(world)
    if process and process.machine.state is not State.IDLE:
        process.post(contract.RejoinWanted(reason="the test says so"))


def make_peace(world: MemberWorld) -> None:
    """No fault from now on, and those under way end."""
    world.log("PEACE")
    world.at_peace = True
    end_outage(world)
    end_load(world)
    world.thaw()
    for process in list(world.processes):
        process.flapping = process.dies_renaming = False
        if process.paused:
            process.resume()
        if process.connection and process.connection.black_hole:
            process.lose_connection(process.connection, "peace")
    for name in world.seats:
        world.relaunch(name)
