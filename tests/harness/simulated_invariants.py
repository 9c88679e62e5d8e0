"""Checks that must hold at every step of a simulated run. Each check says which promise it is."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING

from spark_kgroup.member import contract
from spark_kgroup.member.classic import ClassicMember, State
from spark_kgroup.model import NO_GENERATION, ErrorCode, GroupMember, MemberIdentity, TopicDescription, TopicPartition

if TYPE_CHECKING:
    from harness.model_conversion import Response
    from harness.simulated_world import MemberWorld, Process

SLACK_MS = 2_000


def check_ownership(machine: ClassicMember) -> None:
    """The numbered invariants of `member.ownership`, and the conditions that each state adds to them."""
    sets, subscribed = machine.ownership, frozenset(machine.config.topics)
    given_up_for_a_reason = sets.left_over | sets.unwanted
    assert not sets.owned & given_up_for_a_reason, "invariant 1"
    assert not sets.left_over & sets.unwanted, "invariant 1"
    assert not sets.assigned & given_up_for_a_reason, "invariant 2"
    if sets.previously_owned:
        assert not sets.owned | sets.assigned | given_up_for_a_reason, "invariant 3"
    assert {tp.topic for tp in sets.owned | sets.assigned} <= subscribed, "invariant 4"
    assert not {tp.topic for tp in sets.unwanted} & subscribed, "invariant 4"
    assert (sets.owned - sets.assigned) | sets.left_over <= sets.claimed, "invariant 5"
    assert not sets.owned or sets.assigned_in != NO_GENERATION, "invariant 6"
    if machine.state in (State.STABLE, State.REVOKING):
        assert sets.assigned_in == machine.identity.generation
    if machine.state in (State.STABLE, State.RENAMING):
        assert machine.identity.generation == sets.assigned_in
    if machine.state is State.STABLE:
        assert sets.owned == sets.assigned, "in a generation, owning what it is assigned"
        assert not machine.to_give_up
    if machine.state is State.REVOKING:
        assert machine.to_give_up
    if machine.state in (State.JOINING, State.ASSIGNING, State.SYNCING) and not machine.config.cooperative:
        assert not sets.claims, "an eager member joins with empty hands"


def check_belief(before: TopicDescription | None, now: TopicDescription | None) -> None:
    """No process goes back to an earlier state of a topic, whichever broker it asks."""
    if before is None or now is before:
        return
    assert now is not None, "a topic is forgotten"
    assert before.topic_id is not None
    assert now.topic_id is not None
    assert now.topic_id.int >= before.topic_id.int, f"a topic id comes back: {now.topic_id} after {before.topic_id}"
    assert now.partition_count >= before.partition_count, (
        f"a topic loses partitions: {now.partition_count} after {before.partition_count}"
    )
    if now.topic_id == before.topic_id:
        older = [p for p, epoch in before.leader_epochs.items() if now.leader_epochs[p] < epoch]
        assert not older, f"leaders of partitions {older} are older than those known before"


class Invariants:
    """Told of every event a machine took and of every request that reached the coordinator."""

    def __init__(self, world: MemberWorld) -> None:
        self.lost: list[tuple[Process, frozenset[TopicPartition], str]] = []
        self.fences = 0
        self.renamings = 0
        self.overlaps = 0
        """How often a partition had two owners where that is allowed."""
        self.all_return_in_time = False
        self.owners_within_ms: int | None = None
        """How soon each new partition has had an owner, None where faults set no bound."""
        self._new = frozenset[TopicPartition]()
        self._world = world
        self._last_to_take_seat: dict[str, Process] = {}
        self._displaced: set[Process] = set()
        self._ids_of: defaultdict[Process, set[str]] = defaultdict(set)

    def on_request(self, process: Process, request: contract.Request) -> None:
        """A request reached the coordinator."""
        who = request.identity
        if isinstance(request, contract.JoinRequest) and who.instance_id is not None and not who.member_id:
            last = self._last_to_take_seat.get(who.instance_id)
            if last is not None and last is not process:
                self._displaced.add(last)  # even if a coordinator that takes over does not remember it
            self._last_to_take_seat[who.instance_id] = process
        if isinstance(request, contract.RenameRequest) and who.instance_id is not None:
            self.renamings += 1
            current = self._world.coordinator.member_id_of(who.instance_id)
            if current and current not in self._world.coordinator.renaming:
                self._last_to_take_seat[who.instance_id] = process

    def on_assigning(self, process: Process, members: Sequence[GroupMember], count: int) -> None:
        """A leader assigns `count` partitions: no fewer than it has known, or than members have. None ever goes."""
        known = process.client.known.topics
        most = max((topic.partition_count for topic in known.values()), default=0)
        assert count >= most, f"{process.name} assigns {count} partitions, and has known {most}"
        last = max((tp.partition for member in members for tp in member.subscription.owned), default=-1)
        assert count > last, f"{process.name} assigns {count} partitions, and a member has {last}"

    def on_added(self, partitions: frozenset[TopicPartition]) -> None:
        """The topic has grown by `partitions`."""
        self._new |= partitions
        if self.owners_within_ms is not None:
            self._world.after(self.owners_within_ms, lambda: self._have_had_an_owner(partitions))

    def _have_had_an_owner(self, partitions: frozenset[TopicPartition]) -> None:
        left = sorted(tp.partition for tp in partitions & self._new)
        assert not left, f"partitions {left} have had no owner for {self.owners_within_ms} ms"

    def _note_owners(self, effects: Sequence[contract.Effect]) -> None:
        for effect in effects:
            if isinstance(effect, contract.Assigned):
                self._new -= effect.added

    def on_forgotten(self) -> None:
        """The coordinator lost the state that it had not persisted: which process took which seat is open again."""
        self._last_to_take_seat.clear()

    def on_fenced(self, process: Process) -> None:
        """KIP-345: only a later join with the same instance id fences a member."""
        self.fences += 1
        assert process.config.instance_id is not None
        last = self._last_to_take_seat.get(process.config.instance_id)
        assert last is not process, f"{process.name} is fenced though nobody took its seat"
        now = self._world.coordinator.member_id_of(process.config.instance_id)
        by_another = process in self._displaced or not now or now not in {process.replaces, *self._ids_of[process]}
        assert by_another, f"{process.name} is fenced by itself, or by whom it replaced"

    def word(self, process: Process, response: Response, given_at_ms: int) -> None:
        """A member heard that it is one, in an answer that the coordinator gave at `given_at_ms`: its word."""
        gave_it = response.error == ErrorCode.NONE
        if isinstance(response, contract.JoinResponse):
            self._ids_of[process].add(response.member_id)
        if isinstance(response, contract.HeartbeatResponse):
            gave_it |= response.error == ErrorCode.REBALANCE_IN_PROGRESS
        if gave_it:
            process.word_given_at_ms = max(process.word_given_at_ms, given_at_ms)
            if not process.word_is_watched:
                process.word_is_watched = True
                self._when_the_word_is_over(process)

    def _when_the_word_is_over(self, process: Process) -> None:
        until_ms = process.word_given_at_ms + process.config.session_timeout_ms
        if self._world.now_ms <= until_ms:  # given anew since, or for the first time
            self._world.at(until_ms + 1, lambda: self._when_the_word_is_over(process))
        else:
            process.word_is_watched = False
            self._nothing_held_without_a_word(process)

    def _nothing_held_without_a_word(self, process: Process) -> None:
        """No partition is held for longer than a session after the coordinator's last word, in spite of any fault."""
        reads = process.running and process.machine.state is not State.LEAVING
        if reads and not process.paused and process.machine.owned:
            silent_ms = self._world.now_ms - process.word_given_at_ms
            assert silent_ms <= process.config.session_timeout_ms, (
                f"{process.name} holds after {silent_ms} ms of silence"
            )

    def after(
        self,
        process: Process,
        event: contract.Event,
        effects: Sequence[contract.Effect],
        before: frozenset[TopicPartition],
        identity_before: MemberIdentity,
    ) -> None:
        """A machine took `event`. Before that it held `before` as `identity_before`."""
        if self._world.own_ids_in_company and getattr(event, "error", None) == ErrorCode.ILLEGAL_GENERATION:
            process.on_trouble()  # a conversion has passed it by, and a parked join is no word of the coordinator's
        if self._new:
            self._note_owners(effects)
        if not process.running or process.machine.state is State.LEAVING:
            return
        self._seat_kept_until_removed(process, event, identity_before)
        check_ownership(process.machine)
        self._owned_changes_with_a_reason(process, event, effects, before)
        self._lost_with_a_cause(process, effects)
        self._heartbeats_go_on(process)
        self._nothing_held_without_a_word(process)
        if process.machine.owned != before or effects:
            self.one_owner()
            if self.all_return_in_time:
                self._nobody_has_the_unfinished()

    def _owned_changes_with_a_reason(
        self,
        process: Process,
        event: contract.Event,
        effects: Sequence[contract.Effect],
        before: frozenset[TopicPartition],
    ) -> None:
        # KIP-429: a partition that is kept is never taken away silently, and a new one is always announced.
        held = before - event.partitions if isinstance(event, contract.GaveUp) else before
        for effect in effects:
            match effect:
                case contract.Lost(partitions=partitions):
                    assert partitions <= held, f"{process.name} lost what it did not hold"
                    held -= partitions
                case contract.Assigned(added=added, revoked=revoked):
                    assert not added & held, f"{process.name} is told to adopt what it holds"
                    held |= added
                    assert revoked <= held | process.machine.to_give_up
                case contract.GiveUpAll(partitions=partitions):
                    assert not process.config.cooperative, f"{process.name} is cooperative, and gives everything up"
                    assert partitions == held
                case _:
                    pass
        assert process.machine.owned == held, f"{process.name} holds {process.machine.owned}, was told {held}"

    def _lost_with_a_cause(self, process: Process, effects: Sequence[contract.Effect]) -> None:
        for effect in effects:
            if isinstance(effect, contract.Lost):
                self.lost.append((process, effect.partitions, effect.reason))
            if isinstance(effect, contract.Lost | contract.Rejoining) and effect.reason.startswith("no answer"):
                # A session may only run out after a fault outside of the process.
                healthy_ms = self._world.now_ms - process.healthy_since_ms
                allowed_ms = process.config.session_timeout_ms + SLACK_MS
                assert healthy_ms <= allowed_ms, f"{process.name} expired after {healthy_ms} ms of health"

    def _seat_kept_until_removed(self, process: Process, event: contract.Event, before: MemberIdentity) -> None:
        # KIP-345: a join without a member id takes the seat from its present member. So a member that once had an id
        # sends such a join only when the coordinator does not know it any more, or has forgotten that it took the seat:
        # else a zombie would fence its successor.
        if before.member_id and not process.machine.identity.member_id:
            justified = getattr(event, "error", None) == ErrorCode.UNKNOWN_MEMBER_ID
            justified |= isinstance(event, contract.SeatSeen) and event.member_id == process.replaces
            assert justified, f"{process.name} forgot its member id at {event}"

    def _heartbeats_go_on(self, process: Process) -> None:
        machine, now_ms = process.machine, self._world.now_ms
        wakeup_at_ms = machine.next_wakeup_at_ms()
        in_generation = machine.state in (State.STABLE, State.REVOKING)
        if process.connection is not None and in_generation:
            # Heartbeats never stop while in a generation.
            latest_ms = now_ms + process.config.heartbeat_interval_ms
            assert wakeup_at_ms is not None, f"{process.name} stopped its heartbeats"
            assert wakeup_at_ms <= latest_ms, f"{process.name} stopped its heartbeats"

    def one_owner(self) -> None:
        """KIP-429: no member adopts a partition while another member of the same generation still holds it.

        A member counts unless it was left out and does not know yet: it counts if it believes to be in the current
        generation of the group, or took part in forming this one and the one before, and has heard of each that it did
        not take part in. Where seats change their member ids before they have adopted a partition, only adopted
        partitions count.
        """
        group = self._world.coordinator
        alone = self._world.own_ids and not self._world.own_ids_in_company
        owner: dict[TopicPartition, str] = {}
        for process in self._world.processes:
            member = group.members.get(process.machine.identity.member_id) if process.running else None
            if member is None:
                continue
            known = process.machine.identity.generation
            believes = known == group.generation
            left_out = member.missed == group.generation - 1 or NO_GENERATION < known < member.missed
            took_part = member.took_part_in == group.generation and not left_out
            if believes or took_part:
                for partition in process.machine.owned & process.adopted if alone else process.machine.owned:
                    other = owner.setdefault(partition, process.name)
                    self.overlaps += other != process.name
                    allowed = other == process.name or self._world.own_ids_in_company
                    assert allowed, f"{partition} is held by {other} and {process.name}"

    def _nobody_has_the_unfinished(self) -> None:
        """A partition that a process left unfinished has no other owner until its seat has given it up."""
        owner: dict[TopicPartition, str] = {}
        for config in self._world.seats.values():
            last = next(p for p in reversed(self._world.processes) if p.config is config)
            for partition in last.unfinished:
                other = owner.setdefault(partition, last.name)
                assert other == last.name, f"{partition} is unfinished at {last.name}, and {other} has it"

    def at_rest(self) -> str:
        """The conditions of a group at rest that do not hold yet, empty if all hold."""
        world, group = self._world, self._world.coordinator
        running = [p for p in world.processes if p.running]
        shares = [p.machine.owned for p in running]
        owned = [tp for share in shares for tp in share]
        missing = {
            "phase": group.phase.value != "Stable",
            "each SyncGroup": group.awaits_syncs,
            "one process a seat": len(running) != len(world.seats) or len(group.members) != len(world.seats),
            "settled": not all(p.machine.settled for p in running),
            "one generation": {p.machine.identity.generation for p in running} != {group.generation},
            "the coordinator's word": any(
                p.machine.identity.member_id not in group.members
                or group.members[p.machine.identity.member_id].assignment != p.machine.owned
                or p.machine.ownership.assigned != p.machine.owned
                for p in running
            ),
            "each partition once": sorted(owned) != sorted(world.partitions()),
            "balance": bool(shares) and max(map(len, shares)) - min(map(len, shares)) > 1,
            "a word under way": world.words_under_way > 0,
            "one leader": sum(p.machine.leader for p in running) not in ((0, 1) if world.own_ids else (1,)),
            "ids of their own": world.own_ids_in_company
            and any(p.machine.config.own_id not in ("", p.machine.identity.member_id) for p in running),
        }
        return ", ".join(name for name, lacks in missing.items() if lacks)
