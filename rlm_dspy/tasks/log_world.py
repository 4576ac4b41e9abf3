"""The company whose services write the logs: its names, and its ordinary entries.

Names are chosen so that a service, a host, a user or a path is never part of another one. What is rare here (CRITICAL
entries, the statuses of `RARE`, requests slower than `SLOW` milliseconds) is rare enough for a question to own it.
"""

from __future__ import annotations

import datetime
from typing import Any

from rlm_dspy.tasks._draw import Draw

SERVICES = (
    *("auth-api", "billing-worker", "cart-api", "catalog-sync", "checkout-api", "courier-hub", "discount-engine"),
    *("edge-proxy", "email-sender", "fraud-scorer", "geo-lookup", "image-resizer", "inventory-db", "label-printer"),
    *("loyalty-api", "media-store", "order-router", "payout-job", "price-feed", "refund-worker", "report-builder"),
    *("review-api", "search-index", "session-store", "tax-service", "video-encoder", "voucher-api", "warehouse-link"),
)
SITES = ("ams", "bom", "cpt", "dub", "fra", "gru", "icn", "lhr", "mel", "nrt", "ord", "sea", "waw", "yyz")
PATHS = (
    *("/v1/carts", "/v1/orders", "/v1/quotes", "/v2/accounts", "/v2/addresses", "/v2/tickets", "/v1/coupons"),
    *("/v1/parcels", "/v3/profiles", "/v3/wishlists", "/v1/invoices", "/v2/uploads", "/v1/ratings", "/v2/transfers"),
)
METHODS = ("GET", "GET", "GET", "POST", "POST", "PUT", "DELETE", "PATCH")
LEVELS = ("DEBUG", "INFO", "WARN", "ERROR", "CRITICAL")

USUAL = {"INFO": (200, 200, 200, 201, 204), "WARN": (400, 401, 403, 404, 409, 429), "ERROR": (500, 502, 503, 504)}
RARE = (402, 415, 423, 451, 507)
SLOW = 25_000

MESSAGES = {
    "INFO": (
        *("request completed", "served from cache", "response streamed in full", "done after one retry"),
        *("completed, client kept the connection open", "completed without errors", "handed over to the queue"),
        *("body compressed before sending", "completed within its time budget", "replica answered first"),
    ),
    "WARN": (
        *("rejected: token is stale", "rejected: no such record", "rejected: malformed body", "client gave up early"),
        *("throttled, too many calls in a row", "rejected: version conflict", "rejected: caller lacks permission"),
        *("deprecated field in body, ignored", "slow answer from a replica", "fallback value used"),
    ),
    "ERROR": (
        *("upstream timed out", "connection reset by peer", "connection pool exhausted", "no healthy backend left"),
        *("could not decode the upstream reply", "write failed: disk quota reached", "deadlock found, gave up"),
        *("lost the lease while writing", "unexpected end of stream", "checksum mismatch on read"),
    ),
    "CRITICAL": (
        *("out of file handles, shedding load", "replica set lost its majority", "heap exhausted, restarting"),
        *("cannot reach any database node", "data directory is read-only", "watchdog fired, process stuck"),
    ),
}
NOISE = (
    *("heartbeat ok", "garbage collection took {}ms", "{} connections idle in pool", "refreshed {} cache keys"),
    *("config poll: nothing new", "queue depth {}", "metrics flushed, {} series", "lease renewed for {}s"),
    *("scheduler tick, {} jobs waiting", "dns answer cached for {}s", "compacted segment {}", "clock drift {}us"),
    *("health probe answered", "log level unchanged", "rotated file after {} entries", "no errors since last probe"),
)
# Entries that speak of other entries: a search for a word alone counts these too.
ECHOES = (
    "retried a call to {service} that had ended in {level}, fine now",
    "alert rule '{level} rate of {service}' evaluated: quiet",
    "mirrored {level} summary from {service} to the dashboard",
    "caller reports that {service} answered it with status {status}, not confirmed",
)
EXCEPTIONS = (
    *("StaleLeaseException", "PoolDrainedException", "QuotaReachedException", "BadChecksumException"),
    *("SchemaDriftException", "HandshakeException", "ShardMissingException", "ClockSkewException"),
    *("DuplicateKeyException", "TruncatedFrameException", "CircuitOpenException", "DecodeException"),
)
FRAMES = (
    *("net.Transport.send", "net.Transport.await", "store.Lease.renew", "store.Shard.read", "store.Writer.commit"),
    *("http.Router.dispatch", "http.Filter.apply", "codec.Frame.parse", "pool.Pool.borrow", "task.Loop.step"),
)
FIRST = ("Amina", "Boris", "Carla", "Dario", "Elin", "Femi", "Gita", "Hugo", "Irena", "Jalil", "Keiko", "Lorenz")
LAST = ("Abara", "Brandt", "Castell", "Dvorak", "Eklund", "Fontaine", "Gruber", "Haldane", "Ibarra", "Jansky")


class Record:
    """One entry. ``request`` is ``""`` for entries that belong to no request; ``frames`` are the lines of a trace."""

    __slots__ = (
        *("day", "hour", "clock", "level", "service", "host", "request", "user", "method", "path", "status"),
        *("latency", "message", "error", "frames", "topic", "value"),
    )
    day: str
    hour: int
    clock: str
    level: str
    service: str
    host: str
    request: str
    user: str
    method: str
    path: str
    status: int
    latency: int
    message: str
    error: str
    frames: tuple[str, ...]
    topic: str
    value: str


class World:
    """The names of one log, and its ordinary entries.

    Args:
        draw: The source of all that is drawn.
        lines: About how many entries there will be.
        echoes: Whether some messages mention levels, statuses and services of other entries.

    Attributes:
        services, hosts, users, days: What occurs in this log. Each host belongs to one service. Days are YYYY-MM-DD, in
            order.
    """

    def __init__(self, draw: Draw, lines: int, echoes: bool) -> None:
        self.draw = draw
        self.lines = lines
        self.echoes = echoes
        self.services = tuple(draw.sample(SERVICES, draw.between(6, 9)))
        self.hosts_of: dict[str, tuple[str, ...]] = {}
        numbers = draw.shuffled(range(11, 99))
        for service in self.services:
            count = draw.between(2, 3)
            self.hosts_of[service] = tuple(f"{draw.choice(SITES)}-{numbers.pop()}" for _ in range(count))
        self.hosts = tuple(host for service in self.services for host in self.hosts_of[service])
        self.service_of = {host: service for service in self.services for host in self.hosts_of[service]}
        self.users = tuple(f"u{number}" for number in draw.sample(range(1000, 10000), 400))
        first = datetime.date(2024, 1, 1).toordinal() + draw.below(700)
        length = draw.between(8, 14)
        self.days = tuple(datetime.date.fromordinal(first + day).isoformat() for day in range(length))

    def timed(self, record: Record, when: float) -> Record:
        """Dates a record: ``when`` is the share of the log's days that has passed, 0 to 1."""
        milliseconds = min(int(when * len(self.days) * 86_400_000), len(self.days) * 86_400_000 - 1)
        day, rest = divmod(milliseconds, 86_400_000)
        seconds, milliseconds = divmod(rest, 1000)
        minutes, seconds = divmod(seconds, 60)
        record.day, record.hour = self.days[day], minutes // 60
        record.clock = f"{minutes // 60:02d}:{minutes % 60:02d}:{seconds:02d}.{milliseconds:03d}"
        return record

    def request_id(self) -> str:
        """A request's id: ``r-`` and ten hexadecimal digits."""
        return f"r-{int(self.draw.random() * 2**40):010x}"

    def person(self) -> str:
        """Somebody's first and last name."""
        return f"{self.draw.choice(FIRST)} {self.draw.choice(LAST)}"

    def harmless(self) -> Record:
        """A request that went well: level INFO, a status below 300, under a second, without a stack trace."""
        random = self.draw.random
        record = Record()
        record.level = "INFO"
        record.service = service = self.services[int(random() * len(self.services))]
        hosts = self.hosts_of[service]
        record.host = hosts[int(random() * len(hosts))]
        record.request = f"r-{int(random() * 2**40):010x}"
        record.user = self.users[int(random() * 400)]
        record.method = METHODS[int(random() * 8)]
        record.path = PATHS[int(random() * 14)]
        record.status = USUAL["INFO"][int(random() * 5)]
        record.latency = 3 + int(random() * 900)
        record.message = MESSAGES["INFO"][int(random() * 10)]
        record.error = record.topic = record.value = ""
        record.frames = ()
        return record

    def ordinary(self) -> Record:
        """An entry as it comes: noise, a request that went well, or now and then one that did not."""
        random = self.draw.random
        record = self.harmless()
        kind = random()
        if kind < 0.2:
            return self._noise(record)
        if kind < 0.86:
            return record
        if kind < 0.95:
            self.went(record, "WARN")
        else:
            self.went(record, "CRITICAL" if kind > 0.9985 else "ERROR")
            if random() < 0.25:
                self.threw(record, EXCEPTIONS[int(random() * 12)])
        if random() < 0.01:
            record.latency = SLOW + 1 + int(random() * 60_000)
        if random() < 0.01:
            record.status = self.draw.choice(RARE)
        return record

    def went(self, record: Record, level: str, status: int = 0) -> None:
        """Makes a request one of this level, with a message, status and latency that fit."""
        choice = self.draw.choice
        record.level = level
        record.status = status or choice(USUAL["ERROR" if level == "CRITICAL" else level if level in USUAL else "INFO"])
        record.message = choice(MESSAGES[level if level in MESSAGES else "INFO"])
        if level in ("WARN", "ERROR", "CRITICAL"):
            record.latency = 200 + self.draw.below(4_000 if level == "WARN" else 19_000)

    def threw(self, record: Record, error: str) -> None:
        """Gives a record a stack trace."""
        frames = self.draw.sample(FRAMES, self.draw.between(2, 5))
        record.error = error
        record.frames = tuple(
            f"at com.shop.{frame}({frame.split('.')[1]}.java:{self.draw.between(20, 900)})" for frame in frames
        )

    def _noise(self, record: Record) -> Record:
        record.request = ""
        if self.draw.random() < 0.6:
            record.level = "DEBUG"
        record.message = NOISE[int(self.draw.random() * 16)].format(self.draw.between(2, 900))
        if self.echoes and self.draw.random() < 0.2:
            record.level = "INFO"
            other: dict[str, Any] = {"service": self.draw.choice(self.services), "level": self.draw.choice(LEVELS[2:])}
            other["status"] = self.draw.choice((*USUAL["WARN"], *USUAL["ERROR"], *RARE))
            record.message = self.draw.choice(ECHOES).format(**other)
        return record
