"""An order is stored in a database and told to others: both or neither, whatever fails in between.

python examples/transactions.py [NAME_SERVER] [TOPIC]

Order 2 fails in the database, so nobody hears of it. At order 3 the program does not say how it ended; the broker asks
after transactionTimeOut (6 s, and then each 30 s), and the database answers.
"""

from __future__ import annotations

import sqlite3
import sys

import trio

from rmqha.client import Consumer, Message, Outcome, OutgoingMessage, TransactionProducer

GROUP = "example-transactions"
database = sqlite3.connect(":memory:", isolation_level=None)
database.execute("create table orders (number primary key, amount check (amount > 0))")


async def was_stored(message: Message) -> Outcome:
    """What the broker asks: of any order of this group, by any of its members."""
    found = database.execute("select 1 from orders where number = ?", (message.keys,)).fetchone()
    print(f"the broker asks about order {message.keys}: {'stored' if found else 'not stored'}")
    return Outcome.COMMIT if found else Outcome.ROLLBACK


async def main(namesrv: str, topic: str) -> None:
    async with TransactionProducer(namesrv, GROUP, was_stored) as producer:
        for number, amount in ((1, 30), (2, -5), (3, 70)):
            message = OutgoingMessage(topic, b"%d euro" % amount, keys=str(number))
            async with producer.transaction(message, timeout_ms=30_000) as transaction:
                try:
                    database.execute("insert into orders values (?, ?)", (str(number), amount))
                except sqlite3.IntegrityError as error:
                    print(f"order {number}: {error}")
                    transaction.rollback()
                if number == 3:
                    transaction.leave_open()
        async with Consumer(namesrv, GROUP, topic) as consumer:
            for _ in range(2):
                told = await consumer.receive()
                print(f"order {told.keys} is told: {told.body.decode()}")


if __name__ == "__main__":
    arguments = dict(enumerate(sys.argv))
    trio.run(main, arguments.get(1, "127.0.0.1:9876"), arguments.get(2, "orders"))
