"""Names that facts about a made-up repository are about. None is part of another, or of ordinary code."""

from __future__ import annotations

from rlm_dspy.tasks._draw import Draw

__all__ = ["CALLERS", "CONSTANTS", "FUNCTIONS", "KEYS", "OWNERS", "REGIONS", "SERVICES", "VARIABLES", "callers"]

FUNCTIONS = (
    *("submit_invoice", "reserve_stock", "sign_webhook", "rotate_session", "publish_quote", "archive_ledger"),
    *("charge_deposit", "notify_courier", "issue_refund", "seal_envelope", "lock_tariff", "mint_voucher"),
    *("escrow_payment", "stamp_manifest", "bill_subscriber", "dispatch_pallet"),
)
"""Python functions that others call."""

CALLERS = {
    "verbs": ("handle", "process", "finish", "resume", "begin", "repeat", "accept", "cancel", "review", "close"),
    "nouns": (
        *("order", "parcel", "claim", "booking", "renewal", "transfer", "return", "dispute", "upgrade", "trial"),
        *("audit", "payout", "delivery", "pledge", "lease", "warranty"),
    ),
}
"""What the names of planted functions are made of."""

SERVICES = (
    *("billing", "shipping", "identity", "catalog", "pricing", "support", "payroll", "fleet", "kiosk", "lending"),
    *("returns", "insights"),
)
KEYS = ("timeout_ms", "max_parallel", "page_size", "cooldown_s", "burst_limit", "grace_days")
REGIONS = ("eu-west", "eu-north", "us-east", "us-south", "ap-east", "sa-east")
ENVIRONMENTS = ("production", "staging", "development")
CONSTANTS = ("MAX_ATTEMPTS", "GRACE_PERIOD", "CREDIT_CEILING", "FLUSH_EVERY", "PARCEL_WEIGHT", "ROUND_TRIP")
VARIABLES = (
    *("LEDGER_URL", "COURIER_ENDPOINT", "TARIFF_BUCKET", "VOUCHER_SALT_FILE", "INVOICE_REGION", "PALLET_QUEUE"),
    *("QUOTE_DEADLINE", "ESCROW_HOST"),
)
"""Environment variables."""

OWNERS = ("anneke", "bruno", "chiara", "dmitri", "farah", "goran", "hiroko", "ismael")
OPTIONS = ("retries", "priority", "deadline", "attempts", "weight")
"""Keywords of the functions."""


def callers(draw: Draw, count: int) -> list[str]:
    """So many different names for planted functions."""
    every = [f"{verb}_{noun}" for verb in CALLERS["verbs"] for noun in CALLERS["nouns"]]
    return draw.sample(every, count)
