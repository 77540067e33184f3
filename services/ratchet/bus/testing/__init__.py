"""What tests of a service need: a broker in memory, a clock that moves when a test says so, waiting without sleeping.

    broker = FakeBroker(contracts)
    bus = FakeBus(broker)                       # a Bus
    consumer = subscribe(bus, "shop-bills", {Order: each(bill)})
    await bus.publish(Order(number=7))
    ...
    assert bus.published(Bill) == [Bill(number=7)]

The library's own consumers, projections and ordered readers run on these fakes; in memory are the streams, their
durable consumers and the buckets. The same tests run against the fakes and against nats-server
(tests/integration/test_bus_contract.py), so that the fakes do what the server does.
"""

from ratchet.bus.testing.broker import FakeBroker, Faults, Killed
from ratchet.bus.testing.clock import START, FakeClock, eventually
from ratchet.bus.testing.fakes import FakeBus, connect

__all__ = ["START", "FakeBroker", "FakeBus", "FakeClock", "Faults", "Killed", "connect", "eventually"]
