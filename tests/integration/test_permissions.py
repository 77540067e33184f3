"""Every user of the broker tries everything: what is not its own is refused, and what it needs works."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import aclosing, suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest
from nats.js.api import AckPolicy, ConsumerConfig

from ratchet.bus.connection import Bus, Patience
from ratchet.bus.kv import Bucket, has_key
from ratchet.bus.listener import Listener
from ratchet.bus.nats_client import API, Refused
from ratchet.bus.ordered_reader import OrderedReader
from ratchet.bus.outbox import Outbox
from ratchet.bus.permissions import rights_of
from ratchet.bus.received import Received
from ratchet.bus.settings import BusSettings
from ratchet.bus.spool import Spool
from ratchet.bus.testing import eventually
from ratchet.cli.doctor_servers import check_streams
from ratchet.cli.endpoints import Endpoints
from ratchet.core.contract import OptOut
from ratchet.core.contract.audit import AuditEntry
from ratchet.core.contract.opt_out import NEWEST, OptedOut
from ratchet.core.errors import BusUnavailable, NotPermitted
from ratchet.core.service.audit import Act
from ratchet.core.service.contracts import load_contracts
from ratchet.local.local_stack.broker_users import ADMIN, user_of
from ratchet.rl_coordinator.opt_outs import OptOuts
from tests.support.broker_with_users import AGENT, ROLE, BrokerWithUsers, broker_with_users
from tests.support.messages import AT, trajectory
from tests.support.running import running

CONTRACTS = load_contracts()
PROGRAMS = sorted(CONTRACTS.programs)
BUCKETS, STREAMS = sorted(CONTRACTS.buckets), sorted(CONTRACTS.streams)
ALL_STREAMS = [*STREAMS, *(f"KV_{bucket}" for bucket in BUCKETS)]
DIGEST = "9f2c51d8a0b34e7796c1f0d2e8ab47c3"
ENOUGH_S = 60.0
"""On a busy machine. Callers that no one answers would wait until here."""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerWithUsers]:
    with broker_with_users(tmp_path_factory.mktemp("permissions")) as broker:
        yield broker


@pytest.fixture
async def admin(broker: BrokerWithUsers) -> AsyncIterator[Bus]:
    """With all streams and buckets made, and each service's durable consumers."""
    async with broker.bus(ADMIN) as bus:
        await bus.make_streams()
        yield bus


def tries() -> Iterator[tuple[str, str, str]]:
    """(verb, name, subject) of all that a program may try, by the names of the API for the account with the streams."""
    for topic in CONTRACTS.topics:
        if topic == AuditEntry.TOPIC:
            yield from (("append", program, f"{topic}.{program}") for program in (*PROGRAMS, "another"))
            continue
        for subject in CONTRACTS.subjects(topic):
            filled = subject.replace("*", "RL_TURNS.x" if subject.count("*") > 1 else "another", 1).removesuffix(".*")
            yield "send", topic, filled
    for bucket in BUCKETS:
        yield "write", bucket, f"$KV.{bucket}.another"
        asked = f"{API}.DIRECT.GET.KV_{bucket}.$KV.{bucket}"
        yield from (("ask", bucket, f"{asked}.{role}.{DIGEST}") for role in (ROLE, "_all", "another"))
        yield from (("look", bucket, f"{asked}.{key}") for key in (DIGEST, ">"))
    for stream in ALL_STREAMS:
        yield "get", stream, f"{API}.STREAM.MSG.GET.{stream}"
        yield "read", stream, f"{API}.CONSUMER.CREATE.{stream}.reader-1"
        yield "follow", stream, f"{API}.CONSUMER.LIST.{stream}"
        yield "trim", stream, f"{API}.STREAM.PURGE.{stream}"
        yield "delete", stream, f"{API}.STREAM.MSG.DELETE.{stream}"
        for never in ("STREAM.CREATE", "STREAM.UPDATE", "STREAM.DELETE", "STREAM.SNAPSHOT", "STREAM.RESTORE"):
            yield "change", stream, f"{API}.{never}.{stream}"
    for spec in CONTRACTS.consumers.values():
        name = spec.name.replace("<pool>", "default")
        yield "consume", spec.name, f"{API}.CONSUMER.MSG.NEXT.{spec.stream}.{name}"
        yield "consume", spec.name, f"{API}.CONSUMER.DURABLE.CREATE.{spec.stream}.{name}"
        yield "consume", spec.name, f"$JS.ACK.{spec.stream}.{name}.1.1.1.1.1"
        yield "change", spec.name, f"{API}.CONSUMER.DELETE.{spec.stream}.{name}"
        yield "change", spec.name, f"{API}.CONSUMER.PAUSE.{spec.stream}.{name}"
        yield "change", spec.name, f"{API}.CONSUMER.CREATE.{spec.stream}.{name}"
        yield "change", spec.name, f"{API}.CONSUMER.CREATE.{spec.stream}.{name}.agent.rl.feedback.v1"


def is_right(program: str, verb: str, name: str) -> bool:
    """Whether the registry gives a program this; changing streams and consumers is no program's."""
    rights = rights_of(CONTRACTS, program)
    opened = {*rights.opens, *rights.writes}
    buckets, looked_up = {f"KV_{bucket}" for bucket in opened}, opened & CONTRACTS.asked
    followed = {*rights.follows, *rights.trims}
    consumed = {CONTRACTS.consumers[consumer].stream for consumer in rights.consumes}
    given: dict[str, set[str]] = {
        "send": {*rights.sends},
        "append": {program} if AuditEntry.TOPIC in rights.sends else set(),
        "write": {*rights.writes},
        "read": {*rights.reads, *buckets},
        "ask": {keys.partition(".")[0] for keys in rights.asks} | looked_up,
        "look": looked_up,
        "get": {*rights.reads, *buckets} | followed | consumed,
        "follow": followed,
        "trim": {*rights.trims},
        "delete": {*rights.deletes},
        "consume": {*rights.consumes},
        "change": set(),
    }
    return name in given[verb]


async def outcomes(bus: Bus) -> dict[tuple[str, str, str], bool]:
    """By try, whether the broker let it through: what it refuses it says before it answers what was sent later."""
    refused, every = set[str](), list(tries())
    for _, _, subject in every:
        own = bus.nc.api + subject.removeprefix(API) if subject.startswith(f"{API}.") else subject
        bus.nc.when_refused(own, lambda _, subject=subject: refused.add(subject))
        await bus.nc.publish(own, b"nothing that could be meant", reply=bus.nc.new_inbox())
    with suppress(Refused):  # of an agent
        await bus.nc.request(f"{bus.nc.api}.STREAM.NAMES", timeout=60)
    return {one: one[2] not in refused for one in every}


@pytest.mark.parametrize("program", PROGRAMS)
async def test_program_gets_through_with_its_rights_and_nothing_else(
    broker: BrokerWithUsers, admin: Bus, program: str
) -> None:
    async with broker.bus(user_of(program)) as bus:
        tried = await outcomes(bus)
    wrong = {one: through for one, through in tried.items() if through != is_right(program, *one[:2])}
    assert wrong == {}


async def test_agent_sends_for_its_role_and_looks_single_keys_up(broker: BrokerWithUsers, admin: Bus) -> None:
    async with broker.bus(AGENT) as bus:
        await bus.publish(msgspec.structs.replace(trajectory(), role=ROLE))
        with pytest.raises(NotPermitted, match=r"may not publish agent\.rl\.trajectory\.v1\.another"):
            await bus.publish(msgspec.structs.replace(trajectory(), role="another"))
        tried = await outcomes(bus)
    asked = f"{API}.DIRECT.GET.KV_opt_outs.$KV.opt_outs"
    assert {one for one, through in tried.items() if through} == {
        ("send", "agent.rl.alert.v1", "agent.rl.alert.v1"),
        ("ask", "opt_outs", f"{asked}.{ROLE}.{DIGEST}"),
        ("ask", "opt_outs", f"{asked}._all.{DIGEST}"),
    }


async def never_erases(*_: object) -> None:
    """An erasure is another test's."""


def opting_out(session: str) -> Received[OptOut]:
    message = OptOut(opt_out_id=str(uuid.uuid4()), kind="session", ref=session, at=AT, role=ROLE)
    named = {"stream": "RL_OPT_OUTS", "sequence": 1, "delivered": 1, "time": AT}
    return Received(message, message.subject, event_id=message.event_id, correlation_id=message.event_id, **named)  # type: ignore[arg-type]


async def test_agent_learns_of_the_key_that_it_names_and_of_no_other(broker: BrokerWithUsers, admin: Bus) -> None:
    bucket, kept, other = Bucket(admin, "opt_outs", msgspec.Raw), f"{ROLE}.{DIGEST}", f"{ROLE}.{'0' * 32}"
    await bucket.put(kept, msgspec.Raw(b"{}"))
    async with broker.bus(AGENT) as bus:
        assert [await has_key(bus, "opt_outs", key) for key in (kept, other)] == [True, False]
        assert not await has_key(bus, "opt_outs", f"{ROLE}.{DIGEST[:8]}*")
        await OptOuts(Bucket(admin, "opt_outs", OptedOut), never_erases, list[Act]().append).take(opting_out("mia"))
        asked = f"{bus.nc.api}.DIRECT.GET.KV_opt_outs.$KV.opt_outs.{ROLE}"
        for any_key in ("*", ">"):  # the broker answers with the newest key
            answer = await bus.nc.request(f"{asked}.{any_key}", timeout=ENOUGH_S)
            assert (answer.headers or {})["Nats-Subject"] == f"$KV.opt_outs.{ROLE}.{NEWEST}"
        with pytest.raises(BusUnavailable, match="may not publish"):
            await has_key(bus, "opt_outs", f"another.{DIGEST}")
        with pytest.raises(BusUnavailable, match="may not publish"):
            await bus.extent("KV_opt_outs")
        with pytest.raises(Refused):
            await bus.nc.request(f"{bus.nc.api}.DIRECT.GET.KV_opt_outs", b'{"seq": 1}', timeout=ENOUGH_S)
        await bucket.delete(kept)
        assert not await has_key(bus, "opt_outs", kept)


@pytest.mark.parametrize("program", PROGRAMS)
async def test_program_reads_and_writes_all_that_the_registry_names(
    broker: BrokerWithUsers, admin: Bus, program: str
) -> None:
    """By the library itself: its readers, consumers and buckets need more of the broker's API than one may think."""
    rights = rights_of(CONTRACTS, program)
    await admin.publish(msgspec.structs.replace(trajectory(program), role=ROLE))
    async with broker.bus(user_of(program)) as bus:
        assert await bus.missing() == frozenset()
        for stream in rights.reads:
            async with aclosing(OrderedReader(bus, stream).to_end()) as batches:
                read = [message async for batch in batches for message in batch]
            assert bool(read) == ((extent := await bus.extent(stream)).first <= extent.last)
        for name in rights.consumes:
            spec = CONTRACTS.consumers[name]
            config = ConsumerConfig(durable_name=name.replace("<pool>", "default"), ack_policy=AckPolicy.EXPLICIT)
            consumer = bus.pull(spec.stream, config, batch=10, linger_s=0.0)
            await consumer.open()
            for message in await consumer.next_batch(wait_s=0.2):
                await message.ack_sync(timeout=60)
            assert await consumer.oldest_s() >= 0.0
            await consumer.close()
        for name in (*rights.opens, *rights.writes):
            bucket = Bucket(bus, name, msgspec.Raw)
            if name in rights.writes:
                await bucket.update("one", msgspec.Raw(b"2"), await bucket.put("one", msgspec.Raw(b"1")))
                await bucket.delete("one")
            assert await bucket.get("one") is None
            async with aclosing(bucket.watch()) as changes:
                assert sorted(key for key, _ in await anext(changes)) == sorted(await bucket.keys())


async def test_answer_of_the_broker_comes_to_who_asked_and_to_no_other_subject(
    broker: BrokerWithUsers, admin: Bus
) -> None:
    """In one account the broker would store its answer as an API key that no service can read: all doors would shut."""
    before = [await admin.extent(f"KV_{bucket}") for bucket in ("keys", "policies")]
    async with broker.bus(AGENT) as agent, broker.bus("gateway") as gateway:
        await agent.nc.publish(f"agent.rl.trajectory.v1.{ROLE}", b"{}", reply="$KV.keys.junk")
        await gateway.nc.publish(f"{gateway.nc.api}.STREAM.NAMES", b"", reply="$KV.keys.junk")
        await Bucket(gateway, "responses", msgspec.Raw).put("forged", msgspec.Raw(b"{}"))
        got = f"{gateway.nc.api}.STREAM.MSG.GET.KV_responses"
        await gateway.nc.publish(got, b'{"last_by_subj": "$KV.responses.forged"}', reply="$KV.policies.helpdesk")
        pushed = ConsumerConfig(name="reader-x", ack_policy=AckPolicy.NONE, deliver_subject="$KV.policies.helpdesk")
        await gateway.nc.jetstream().add_consumer("KV_responses", config=pushed)
        await gateway.nc.publish("agent.rl.turn.v1", b"{}", headers={"Nats-Trace-Dest": "$KV.keys.junk"})
        await asyncio.gather(agent.nc.flush(), gateway.nc.flush())
        await gateway.extent("RL_TURNS")  # the broker has seen to all that came before
    assert [await admin.extent(f"KV_{bucket}") for bucket in ("keys", "policies")] == before


async def test_consumer_of_a_program_pushes_to_no_topic(broker: BrokerWithUsers, admin: Bus) -> None:
    """To a literal subject that is listened to the broker pushes for any reader, which would send what it may not."""
    subjects = [subject.replace("*", "another") for topic in CONTRACTS.topics for subject in CONTRACTS.subjects(topic)]
    own = {subject for subject in subjects if subject.startswith("agent.rl.alert.")}
    to = sorted({*subjects, *(f"$KV.{bucket}.another" for bucket in BUCKETS)} - own)
    async with broker.bus("console") as console:
        jetstream, last = console.nc.jetstream(), await console.extent("RL_ALERTS")
        for number, subject in enumerate(to):
            config = ConsumerConfig(name=f"pushed-{number}", ack_policy=AckPolicy.NONE, deliver_subject=subject)
            await jetstream.add_consumer("RL_ALERTS", config=config)
        await console.nc.request("agent.rl.alert.v1", b"{}", timeout=30)
        made = [await jetstream.consumer_info("RL_ALERTS", f"pushed-{number}") for number in range(len(to))]
        for number in range(len(to)):
            await jetstream.delete_consumer("RL_ALERTS", f"pushed-{number}")
    assert last.last + 1 == (await admin.extent("RL_ALERTS")).last
    assert [info.config.deliver_subject for info in made if info.push_bound] == []


async def test_refusal_reaches_what_waits_with_words(broker: BrokerWithUsers, admin: Bus) -> None:
    async with broker.bus("gateway") as bus, asyncio.timeout(ENOUGH_S):
        with pytest.raises(
            NotPermitted, match=r"user gateway may not publish agent\.rl\.trajectory\.v1\.helpdesk: docs/"
        ):
            await bus.publish(msgspec.structs.replace(trajectory(), role=ROLE))
        with pytest.raises(BusUnavailable, match=r"user gateway may not publish \$KV.policies.helpdesk"):
            await Bucket(bus, "policies", msgspec.Raw).put("helpdesk", msgspec.Raw(b"{}"))
        with pytest.raises(BusUnavailable, match=r"gateway may not publish STREAMS\.API\.CONSUMER\.CREATE\.RL_REWARDS"):
            await OrderedReader(bus, "RL_REWARDS").open()
        config = ConsumerConfig(durable_name="collector-turns", ack_policy=AckPolicy.EXPLICIT)
        taking = bus.pull("RL_TURNS", config, batch=10, linger_s=0.0)
        with pytest.raises(
            Refused, match=r"may not publish STREAMS\.API\.CONSUMER\.DURABLE\.CREATE\.RL_TURNS\.collector-turns"
        ):
            await taking.open()
        listener = Listener(bus.nc, "agent.rl.>", lambda _: None)
        await listener.open()
        with pytest.raises(NotPermitted, match=r"may not listen to agent\.rl\.>"):
            await round_trips(listener)


async def round_trips(listener: Listener) -> None:
    """One after the other: nats-py may ask for the first before it subscribes."""
    while True:
        await listener.round_trip()


async def test_pull_that_is_refused_ends_at_once(broker: BrokerWithUsers, admin: Bus) -> None:
    await admin.nc.jetstream().add_consumer("RL_TURNS", ConsumerConfig(durable_name="collector-turns"))
    async with broker.bus("span_exporter") as bus:
        own = ConsumerConfig(durable_name="spans-turns", ack_policy=AckPolicy.EXPLICIT)
        consumer = bus.pull("RL_TURNS", own, batch=10, linger_s=0.0)
        await consumer.open()
        consumer._name = "collector-turns"  # as a program would that takes another one's messages
        bus.nc.when_refused(consumer._pulls_by, consumer._on_refusal)
        consumer._asked_at = -100.0
        with pytest.raises(Refused, match=r"may not publish STREAMS\.API\.CONSUMER\.MSG\.NEXT\.RL_TURNS\.coll"):
            async with asyncio.timeout(30):
                await consumer.next_batch(60)


async def test_gateways_hear_one_another_in_their_account(broker: BrokerWithUsers, admin: Bus) -> None:
    heard: list[bytes] = []
    async with broker.bus("gateway") as one, broker.bus("gateway") as other:
        listener = Listener(other.nc, "agent.rl.gateway.notes.v1", heard.append)
        await listener.open()
        await listener.round_trip()

        async def has_heard() -> bool:
            """A note that is sent while a connection is made anew is missed."""
            one.nc.send_now("agent.rl.gateway.notes.v1", b"note")
            return set(heard) == {b"note"}

        await eventually(has_heard)
        assert (await other.extent("RL_GATEWAYS")).last >= 1


async def test_program_without_a_key_reads_what_it_lacks(broker: BrokerWithUsers) -> None:
    with pytest.raises(BusUnavailable, match="refuses this program's key: RATCHET_NATS_SEED_FILE, which is not set"):
        await broker_bus_without_key(broker)


async def broker_bus_without_key(broker: BrokerWithUsers) -> Bus:
    patience = Patience(deadline_s=2.0, quiet=True, first_pause_s=0.1)
    return await Bus.connect(BusSettings(broker.server.url), name="old", contracts=CONTRACTS, patience=patience)


async def test_message_that_may_not_be_sent_holds_up_no_other(
    broker: BrokerWithUsers, admin: Bus, tmp_path: Path
) -> None:
    spool = Spool(tmp_path, 1_000_000)
    async with broker.bus(AGENT) as bus:
        outbox = Outbox(CONTRACTS, "test", spool)

        async def connected() -> Bus:
            return bus

        async with running(_Sending(outbox, connected)):
            for role in (ROLE, "another", ROLE):
                outbox.put(msgspec.structs.replace(trajectory(f"outbox {role} {outbox.pending}"), role=role))
            assert await outbox.flush(30)
    spool.close()
    assert (outbox.stats.published, outbox.stats.refused) == (2, 1)


@dataclass
class _Sending:
    """An outbox as a component."""

    outbox: Outbox
    connect: Callable[[], Awaitable[Bus]]

    async def run(self) -> None:
        await self.outbox.run(self.connect)

    async def stop(self) -> None:
        await self.outbox.stop()


def test_doctor_names_the_right_that_its_key_lacks(broker: BrokerWithUsers, admin: Bus, tmp_path: Path) -> None:
    env = {"RATCHET_NATS_URL": broker.server.url, "RATCHET_NATS_SEED_FILE": str(broker.users.seed_file(AGENT))}
    finding = check_streams(Endpoints(tmp_path, None, env))
    assert (finding.state, finding.remedy) == ("failure", None)
    assert f"the broker's user {AGENT} may not " in finding.sentence
